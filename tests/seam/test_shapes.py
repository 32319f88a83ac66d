"""Without data, the shapes of known arguments come from memory: the same as the meta kernel gives, and never shared."""

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import windtunnel
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.rehearsal import shapes
from windtunnel.seam.torch.rehearsal.nodata import DatalessDispatch
from windtunnel.seam.torch.tags import storage_of


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
    with windtunnel.emulate("V100", no_data=True):
        for made in (torch.ones(4, 6, dtype=torch.int32), torch.ones(4, 6), torch.ones(6, 4).t()):
            expected = compute(made)
            x = made.cuda()
            for _ in range(3):
                out = compute(x)
                assert (out.shape, out.stride(), out.dtype) == (expected.shape, expected.stride(), expected.dtype)
                assert out.device.type == "cuda"


def test_each_result_has_memory_of_its_own_and_views_share_it() -> None:
    with windtunnel.emulate("V100", no_data=True):
        x = torch.ones(256, device="cuda")
        before = torch.cuda.memory_allocated()
        kept = [x + 1 for _ in range(4)]
        assert torch.cuda.memory_allocated() - before == 4 * 1024
        assert len({storage_of(tensor)._cdata for tensor in kept}) == 4
        assert storage_of(kept[0][:3])._cdata == storage_of(kept[0])._cdata


def test_writing_in_place_returns_the_tensor_and_counts_its_version() -> None:
    with windtunnel.emulate("V100", no_data=True):
        x = torch.ones(8, device="cuda")
        versions = [x.add_(1)._version for _ in range(3)]
        assert versions == sorted(set(versions))
        assert x.add_(1) is x
        with pytest.raises(RuntimeError):
            x.add_(torch.ones(3, device="cuda"))


def _facts(x: torch.Tensor) -> tuple[object, ...]:
    return x.shape, x.stride(), x.dtype, x.is_inference(), x.requires_grad


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: x + 1, lambda x: x + True),
        (lambda x: x + 1, lambda x: x + 1.0),
        (lambda x: x + 1, lambda x: x + 1j),
        (lambda x: x + 1, lambda x: x + torch.tensor(1.0, device="cuda")),
        (lambda x: x + 1.0, lambda x: x + torch.tensor(1.0, dtype=torch.float64)),
        (lambda x: x.sum(), lambda x: x.sum(dtype=torch.float64)),
        (lambda x: x.mul(2), lambda x: x.t().mul(2)),
        (lambda x: x.mul(2), lambda x: x[:, ::2].mul(2)),
        (lambda x: x.mul(2), lambda x: x.view(torch.int32).mul(2) if x.dtype == torch.float32 else x.float().mul(2)),
        (torch.empty_like, lambda x: torch.empty_like(x.t())),
        (torch.zeros_like, lambda x: torch.zeros_like(x, dtype=torch.int8)),
        (torch.zeros_like, lambda x: torch.zeros_like(x.t(), memory_format=torch.contiguous_format)),
        (lambda x: x.mean(0), lambda x: x.mean(0, keepdim=True)),
        (lambda x: x.mean(0), lambda x: x.mean((0, 1))),
        (lambda x: torch.cat([x, x]), lambda x: torch.cat([x, x, x])),
        (lambda x: torch.topk(x, 1).values, lambda x: torch.topk(x, 2).values),
        (lambda x: x.float().softmax(0), lambda x: x.double().softmax(0)),
    ],
)
def test_what_differs_in_anything_that_matters_is_not_taken_for_the_same(first, second) -> None:  # type: ignore[no-untyped-def]
    made = torch.ones(4, 6)
    with windtunnel.emulate("V100", no_data=True):
        x = made.cuda()
        for compute in (first, second):
            assert _facts(compute(x)) == _facts(compute(x))
        results = [_facts(first(x)), _facts(second(x))]
    with windtunnel.emulate("V100"):
        x = made.cuda()
        assert results == [_facts(first(x)), _facts(second(x))]


def test_the_default_dtype_counts() -> None:
    with windtunnel.emulate("V100", no_data=True):
        x = torch.ones(3, dtype=torch.int64, device="cuda")
        try:
            found = []
            for dtype in (torch.float32, torch.float64, torch.float32):
                torch.set_default_dtype(dtype)
                found.append((x / 2).dtype)
        finally:
            torch.set_default_dtype(torch.float32)
    assert found == [torch.float32, torch.float64, torch.float32]


def test_autocast_casts_before_and_grad_mode_after() -> None:
    with windtunnel.emulate("V100", no_data=True):
        x, w = torch.ones(4, 4, device="cuda"), torch.nn.Parameter(torch.ones(4, 4, device="cuda"))
        for _ in range(2):
            assert (x @ w).requires_grad
            assert (x @ w).dtype is torch.float32
            with torch.autocast("cuda", torch.float16), torch.no_grad():
                assert not (x @ w).requires_grad
                assert (x @ w).dtype is torch.float16
            with torch.inference_mode():
                assert (x + x).is_inference()
            assert not (x + x).is_inference()


def test_channels_last_images_stay_so() -> None:
    with windtunnel.emulate("V100", no_data=True):
        x = torch.ones(2, 3, 4, 4, device="cuda")
        for _ in range(2):
            assert (x + 1).is_contiguous()
            assert (x.to(memory_format=torch.channels_last) + 1).is_contiguous(memory_format=torch.channels_last)


def test_out_and_list_forms_return_what_they_are_to() -> None:
    with windtunnel.emulate("V100", no_data=True):
        x, out = torch.ones(4, device="cuda"), torch.empty(0, device="cuda")
        many = [torch.ones(n, device="cuda") for n in (2, 3)]
        for step in range(3):
            assert torch.add(x, x, out=out) is out
            assert out.shape == (4,)
            out.resize_(0)
            torch._foreach_mul_(many, 0.5 + step)
            assert [one.shape for one in torch._foreach_add(many, 1.0)] == [(2,), (3,)]


def test_a_number_that_changes_with_each_step_makes_no_entries_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST", 8)
    plan = Plan(torch.ops.aten.mul_.Tensor)
    memory = shapes.memory_for(plan)
    assert memory is not None
    x = torch.ones(4, device="meta")
    for step in range(20):
        args = x, 1.0 / (1 + step)
        key = memory.key(args, {})
        memory.keep(key, plan, args, x)
        assert memory.known[key].new(args) is x
        assert len(memory.known) <= 8


def test_refusals_are_not_remembered_as_results() -> None:
    with windtunnel.emulate("V100", no_data=True):
        x = torch.ones(2, 3, device="cuda")
        for _ in range(2):
            assert (x @ x.t()).shape == (2, 2)
            with pytest.raises(RuntimeError):
                x @ x


def test_a_thread_remembers_with_the_others() -> None:
    with windtunnel.emulate("V100", no_data=True):
        x = torch.ones(8, device="cuda")
        found = [(x + 1).shape]
        thread = threading.Thread(target=lambda: found.append((x + 1).shape))
        thread.start()
        thread.join()
        assert found == [(8,), (8,)]


def test_a_mode_of_the_program_below_the_emulation_sees_every_operator() -> None:
    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen += "add" in func.name()
            return func(*args, **(kwargs or {}))

    with Counting() as counting, windtunnel.emulate("V100", no_data=True):
        x = torch.ones(8, device="cuda")
        for _ in range(5):
            x + 1
    assert counting.seen == 5


def test_an_operator_that_refuses_quantized_tensors_alone_is_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    stock = DatalessDispatch._computed

    def count(self: DatalessDispatch, call: Call) -> object:
        computed.append(call.plan.name)
        return stock(self, call)

    monkeypatch.setattr(DatalessDispatch, "_computed", count)
    with windtunnel.emulate("V100", no_data=True):
        x = torch.ones(4, 6, device="cuda")
        for _ in range(3):
            assert torch.cat([x, x]).shape == (8, 6)
            assert torch.ops.aten._unsafe_view(x, (6, 4)).shape == (6, 4)
    assert computed.count("aten::cat") == 1
    assert computed.count("aten::_unsafe_view") == 3
