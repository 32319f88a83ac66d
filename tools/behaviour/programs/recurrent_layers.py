"""Recurrent layers, half precision products, autocast, a transform, and reading of values."""

import torch

torch.manual_seed(0)
lstm = torch.nn.LSTM(8, 16, 2, dropout=0.5, bidirectional=True).cuda()
inputs = torch.randn(5, 3, 8, device="cuda")
output, _ = lstm(inputs)
output.sum().backward()
print(output.sum().item(), lstm.weight_ih_l0.grad.norm().item())
with torch.autocast("cuda"):
    product = torch.nn.Linear(8, 4).cuda()(inputs)
print(product.dtype, product.float().mean().item(), torch.fft.rfft(inputs).abs().sum().item())
attended = torch.nn.MultiheadAttention(8, 2).cuda()(inputs, inputs, inputs)[0]
print(
    attended.sum().item(), torch.nn.functional.conv2d(inputs[None], torch.ones(2, 5, 3, 3, device="cuda")).sum().item()
)
print(torch.ones(3, device="cuda:0").to("cuda:1", non_blocking=True))
print(torch.cuda.memory_stats()["allocated_bytes.all.peak"], torch.cuda.memory_reserved())
