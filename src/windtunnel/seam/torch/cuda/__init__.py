"""What `torch.cuda` stands on: the driver's functions, streams and events, pools, graphs."""
