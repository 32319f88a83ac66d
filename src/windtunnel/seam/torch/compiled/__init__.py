"""`torch.compile` as on CUDA: Dynamo, AOTAutograd and Inductor themselves, with the emulated device below them."""
