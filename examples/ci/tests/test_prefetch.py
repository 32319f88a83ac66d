import pytest
import torch

from carousel import Prefetcher

pytestmark = pytest.mark.cuda


def batches(count, size=256):
    return [(torch.full((size, size), float(number)), torch.tensor([number])) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_all_batches_come_in_order(count):
    sums = [(x.sum(), y) for x, y in Prefetcher(batches(count), "cuda")]
    assert [(total.item(), y.item()) for total, y in sums] == [(number * 256 * 256, number) for number in range(count)]


def test_batches_are_on_the_device_that_was_asked_for():
    (x, y), _ = Prefetcher(batches(2), "cuda:0")
    assert (x.device, y.device) == (torch.device("cuda:0"), torch.device("cuda:0"))


def test_the_copy_of_the_next_batch_does_not_wait_for_work():
    prefetcher = iter(Prefetcher(batches(3, size=1024), "cuda"))
    (x, _) = next(prefetcher)
    started, ended = torch.cuda.Event(), torch.cuda.Event()
    started.record()
    for _ in range(50):
        x = x @ x / 1024
    ended.record()
    following, _ = next(prefetcher)
    assert not ended.query()
    torch.cuda.synchronize()
    assert following.mean().item() == 1
