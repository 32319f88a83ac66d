import torch
from torch import nn
from d2l import torch as d2l
# %%
def cpu(): #@save
    """Get the CPU device."""
    return torch.device('cpu')
def gpu(i=0): #@save
    """Get a GPU device."""
    return torch.device(f'cuda:{i}')
cpu(), gpu(), gpu(1)
# %%
def num_gpus(): #@save
    """Get the number of available GPUs."""
    return torch.cuda.device_count()
num_gpus()
# %%
def try_gpu(i=0): #@save
    """Return gpu(i) if exists, otherwise return cpu()."""
    if num_gpus() >= i + 1:
        return gpu(i)
    return cpu()
def try_all_gpus(): #@save
    """Return all available GPUs, or [cpu(),] if no GPU exists."""
    return [gpu(i) for i in range(num_gpus())]
try_gpu(), try_gpu(10), try_all_gpus()
# %%
x = torch.tensor([1, 2, 3])
x.device
# %%
X = torch.ones(2, 3, device=try_gpu())
X
# %%
Y = torch.rand(2, 3, device=try_gpu(1))
Y
# %%
Z = X.cuda(1)
print(X)
print(Z)
# %%
Y + Z
# %%
Z.cuda(1) is Z
# %%
net = nn.Sequential(nn.LazyLinear(1))
net = net.to(device=try_gpu())
# %%
net(X)
# %%
net[0].weight.data.device
