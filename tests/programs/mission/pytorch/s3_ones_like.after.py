print(y_cpu.device, y_gpu.device)
x_gpu = torch.empty(2, 3, dtype=torch.float64, device="cuda:1")
y_gpu = torch.zeros_like(x_gpu)
print(y_gpu.device, y_gpu.dtype)
