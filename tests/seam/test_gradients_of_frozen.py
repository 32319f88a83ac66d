"""Gradients under DataParallel of a model of which a part is frozen."""

from __future__ import annotations

import torch
from torch import nn

import windtunnel


def test_data_parallel_with_frozen_parameters_adds_up_the_rest():
    with windtunnel.emulate("2xV100"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)).cuda()
        model[1].requires_grad_(False)
        inputs = torch.randn(8, 3, device="cuda")
        nn.DataParallel(model)(inputs).sum().backward()
        gradient = model[0].weight.grad.cpu()
        model.zero_grad()
        model(inputs).sum().backward()
        torch.testing.assert_close(gradient, model[0].weight.grad.cpu())
        assert model[1].weight.grad is None
