cuda = torch.device('cuda')
x_cpu = torch.empty(2)
x_gpu = torch.empty(2, device=cuda)
x_cpu_long = torch.empty(2, dtype=torch.int64)


y_cpu = x_cpu.new_full([3, 2], fill_value=0.3)
print(y_cpu)


y_gpu = x_gpu.new_full([3, 2], fill_value=-5)
print(y_gpu)


y_cpu_long = x_cpu_long.new_tensor([[1, 2, 3]])
print(y_cpu_long)
