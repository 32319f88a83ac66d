"""d2l, the package of the book "Dive into Deep Learning": devices, and the classes that its programs extend.

`d2l.torch`, `d2l.jax`, `d2l.tensorflow` and `d2l.mxnet` have what the chapter on GPUs and the one on the design of
models use: `gpu`, `try_gpu` and their kin, `add_to_class`, `HyperParameters`, `ProgressBoard`, `Module`, `Trainer`.
Data sets, models and the functions of single chapters are refused.
"""

__version__ = "1.0.3"
INSTEAD = "install d2l itself, which is then used (pip install --no-deps d2l==1.0.3)"
