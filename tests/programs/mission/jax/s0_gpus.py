import jax
from flax import linen as nn
from jax import numpy as jnp
from d2l import jax as d2l
# %%
def cpu(): #@save
    """Get the CPU device."""
    return jax.devices('cpu')[0]
def gpu(i=0): #@save
    """Get a GPU device."""
    return jax.devices('gpu')[i]
cpu(), gpu(), gpu(1)
# %%
def num_gpus(): #@save
    """Get the number of available GPUs."""
    try:
        return jax.device_count('gpu')
    except:
        return 0 # No GPU backend found
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
x = jnp.array([1, 2, 3])
x.device()
# %%
# By default JAX puts arrays to GPUs or TPUs if available
X = jax.device_put(jnp.ones((2, 3)), try_gpu())
X
# %%
Y = jax.device_put(jax.random.uniform(jax.random.PRNGKey(0), (2, 3)),
                   try_gpu(1))
Y
# %%
Z = jax.device_put(X, try_gpu(1))
print(X)
print(Z)
# %%
Y + Z
# %%
Z2 = jax.device_put(Z, try_gpu(1))
Z2 is Z
# %%
net = nn.Sequential([nn.Dense(1)])
key1, key2 = jax.random.split(jax.random.PRNGKey(0))
x = jax.random.normal(key1, (10,)) # Dummy input
params = net.init(key2, x) # Initialization call
# %%
net.apply(params, x)
# %%
print(jax.tree_util.tree_map(lambda x: x.device(), params))
