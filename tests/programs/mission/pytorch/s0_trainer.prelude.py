import torch
from torch import nn
from d2l import torch as d2l
