from mxnet import np, npx
from mxnet.gluon import nn
from d2l import mxnet as d2l
npx.set_np()
# %%
def cpu(): #@save
    """Get the CPU device."""
    return npx.cpu()
def gpu(i=0): #@save
    """Get a GPU device."""
    return npx.gpu(i)
cpu(), gpu(), gpu(1)
# %%
def num_gpus(): #@save
    """Get the number of available GPUs."""
    return npx.num_gpus()
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
x = np.array([1, 2, 3])
x.ctx
# %%
X = np.ones((2, 3), ctx=try_gpu())
X
# %%
Y = np.random.uniform(size=(2, 3), ctx=try_gpu(1))
Y
# %%
Z = X.copyto(try_gpu(1))
print(X)
print(Z)
# %%
Y + Z
# %%
Z.as_in_ctx(try_gpu(1)) is Z
# %%
net = nn.Sequential()
net.add(nn.Dense(1))
net.initialize(ctx=try_gpu())
# %%
net(X)
# %%
net[0].weight.data().ctx
