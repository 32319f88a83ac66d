print(batch_idx, img.device, img.type(), label.device, label.type(), device1)
