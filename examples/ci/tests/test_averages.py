import pytest
import torch
from torch import nn

from carousel import RunningMean, WeightAverage

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_cuda
def test_the_average_follows_the_model():
    model = nn.Linear(4, 4).cuda()
    average = WeightAverage(model, decay=0.5)
    with torch.no_grad():
        model.weight.add_(1)
    average.update(model)
    torch.testing.assert_close(average.model.weight, model.weight.detach() - 0.5)


@needs_cuda
def test_an_update_does_not_wait():
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8))).cuda()
    average = WeightAverage(model)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            average.update(model)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_the_mean_is_read_once():
    mean = RunningMean()
    for number in range(5):
        mean.add(torch.tensor(float(number), device="cuda"))
    assert mean.read() == 2


def test_no_number_has_no_mean():
    with pytest.raises(ValueError, match="no number"):
        RunningMean().read()
