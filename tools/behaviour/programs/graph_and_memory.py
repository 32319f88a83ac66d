"""A captured graph on a side stream, events, pinned copies, storages, and the allocator's statistics."""

import torch

torch.manual_seed(0)
layer = torch.nn.Linear(32, 32).cuda()
static = torch.randn(8, 32, device="cuda")
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    layer(static).sum().backward()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = layer(static).relu().sum()
for value in range(3):
    static.fill_(value)
    graph.replay()
    print(result.item())
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
host = torch.empty(1 << 16, pin_memory=True)
host.copy_(torch.arange(1 << 16, device="cuda", dtype=torch.float32), non_blocking=True)
end.record()
end.synchronize()
print(host.sum().item(), start.elapsed_time(end))
try:
    torch.empty(1 << 36, device="cuda")
except torch.OutOfMemoryError as error:
    print(error)
print(torch.cuda.memory_summary())
