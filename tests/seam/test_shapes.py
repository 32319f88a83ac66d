"""Without data, the shapes of known arguments come from memory: the same as the meta kernel gives, and never shared."""

import pytest
import torch

import understudy
from understudy.seam.torch.tags import storage_of


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: x + 1.0,
        lambda x: x * x.to(torch.float64),
        lambda x: x.sum(0, keepdim=True),
        lambda x: torch.softmax(x.float(), -1),
        lambda x: x.float() @ x.float().t(),
        lambda x: torch.cat([x, x], 1),
        lambda x: x.unsqueeze(0),
        lambda x: x.max(1).values,
        lambda x: x.clone(memory_format=torch.contiguous_format),
    ],
)
def test_results_are_those_of_the_first_call(compute) -> None:  # type: ignore[no-untyped-def]
    with understudy.emulate("V100", no_data=True):
        for made in (torch.ones(4, 6, dtype=torch.int32), torch.ones(4, 6), torch.ones(6, 4).t()):
            expected = compute(made)
            x = made.cuda()
            for _ in range(3):
                out = compute(x)
                assert (out.shape, out.stride(), out.dtype) == (expected.shape, expected.stride(), expected.dtype)
                assert out.device.type == "cuda"


def test_each_result_has_memory_of_its_own_and_views_share_it() -> None:
    with understudy.emulate("V100", no_data=True):
        x = torch.ones(256, device="cuda")
        before = torch.cuda.memory_allocated()
        kept = [x + 1 for _ in range(4)]
        assert torch.cuda.memory_allocated() - before == 4 * 1024
        assert len({storage_of(tensor)._cdata for tensor in kept}) == 4
        assert storage_of(kept[0][:3])._cdata == storage_of(kept[0])._cdata


def test_writing_in_place_returns_the_tensor_and_counts_its_version() -> None:
    with understudy.emulate("V100", no_data=True):
        x = torch.ones(8, device="cuda")
        versions = [x.add_(1)._version for _ in range(3)]
        assert versions == sorted(set(versions))
        assert x.add_(1) is x
        with pytest.raises(RuntimeError):
            x.add_(torch.ones(3, device="cuda"))
