from mxnet import autograd, np, npx
from d2l import mxnet as d2l
npx.set_np()
