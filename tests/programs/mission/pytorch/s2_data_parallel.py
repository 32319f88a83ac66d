#对模型
net = torch.nn.DataParallel(model)
