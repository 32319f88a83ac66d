print(net.device_ids, net.output_device, net.module is model)
print(net(torch.zeros(128, 13)).shape)
