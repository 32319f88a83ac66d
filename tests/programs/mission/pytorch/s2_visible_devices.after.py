print(torch.cuda.device_count(), net.device_ids)
