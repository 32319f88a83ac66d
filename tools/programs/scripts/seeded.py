"""Run a program that draws its weights without a seed, unchanged but with one: its losses can be compared with a CPU's.

understudy run --gpus A100 seeded.py quickstart_tutorial.py
"""

import random
import runpy
import sys

import numpy
import torch

for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(0)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
