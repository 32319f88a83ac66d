print(B.device, B.shape)
