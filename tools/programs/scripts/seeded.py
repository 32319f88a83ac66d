"""Run a program that draws its weights without a seed, unchanged but with one: its losses can be compared with a CPU's.

    windtunnel run --gpus A100 seeded.py quickstart_tutorial.py

It may import torchvision where only the Python part of that is installed.
"""

import importlib.util
import random
import runpy
import sys

import numpy
import torch
from torchvision_operators import declare_operators

for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(0)
if importlib.util.find_spec("torchvision") is not None:
    declare_operators()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
