import tensorflow as tf
from d2l import tensorflow as d2l
# %%
def cpu(): #@save
    """Get the CPU device."""
    return tf.device('/CPU:0')
def gpu(i=0): #@save
    """Get a GPU device."""
    return tf.device(f'/GPU:{i}')
cpu(), gpu(), gpu(1)
# %%
def num_gpus(): #@save
    """Get the number of available GPUs."""
    return len(tf.config.experimental.list_physical_devices('GPU'))
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
x = tf.constant([1, 2, 3])
x.device
# %%
with try_gpu():
    X = tf.ones((2, 3))
X
# %%
with try_gpu(1):
    Y = tf.random.uniform((2, 3))
Y
# %%
with try_gpu(1):
    Z = X
print(X)
print(Z)
# %%
Y + Z
# %%
with try_gpu(1):
    Z2 = Z
Z2 is Z
# %%
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    net = tf.keras.models.Sequential([
        tf.keras.layers.Dense(1)])
# %%
net(X)
# %%
net.layers[0].weights[0].device, net.layers[0].weights[1].device
