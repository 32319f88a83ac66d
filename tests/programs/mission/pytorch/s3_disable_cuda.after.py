print(args.device, torch.empty((8, 42), device=args.device).device, net.weight.device, i, x.device)
