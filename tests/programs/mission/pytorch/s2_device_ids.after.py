print(input_data.device, next(net.parameters()).device, net.device_ids)
print([part.shape[0] for part in torch.nn.parallel.scatter(input_data, net.device_ids)])
print(net(input_data).shape)
