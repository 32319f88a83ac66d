import pytest
import torch
from torch import nn

from carousel import average_


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_agree_afterwards():
    models = [nn.Linear(3, 2).to(f"cuda:{index}") for index in range(2)]
    expected = (models[0].weight.cpu() + models[1].weight.cpu()) / 2
    average_(models)
    assert [model.weight.device.index for model in models] == [0, 1]
    for model in models:
        torch.testing.assert_close(model.weight.detach().cpu(), expected.detach())
