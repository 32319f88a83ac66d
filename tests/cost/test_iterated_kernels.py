"""Element-wise kernels whose instructions count, and norms of two kernels, beside times that others published."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.families import iterated
from windtunnel.operators.classes import bare, classify
from windtunnel.trace.operation import Signature

IMAGES = (16, 64, 256, 256)


def us(gpu: str, name: str, *shapes: tuple[int, ...], dtypes: tuple[str, ...] = (), **detail: object) -> float:
    return CostModel(gpus.find(gpu), (12, 4)).kernel(call(name, *shapes, dtypes=dtypes, **detail)).duration_ns / 1000


def call(name: str, *shapes: tuple[int, ...], dtypes: tuple[str, ...] = (), **detail: object) -> Signature:
    kinds = dtypes or ("float32",) * len(shapes)
    return Signature(f"aten::{name}", shapes, kinds, len(shapes) - 1, detail=tuple(detail.items()))


def form_of(signature: Signature) -> str:
    cost = CostModel(gpus.find("A100-80GB"))
    return iterated.form(cost.problem(signature, bare(signature.name), *cost.precision(signature)))


@pytest.mark.parametrize(
    ("signature", "form"),
    [
        (call("mul", IMAGES, IMAGES), "plain"),  # by a Python number
        (call("div", IMAGES, (), IMAGES), "iterated"),  # by a number on the GPU
        (call("add", IMAGES, (64, 1, 1), IMAGES), "iterated"),
        (call("flip", (4096, 4096), (4096, 4096)), "iterated"),
        (call("mul", IMAGES, IMAGES, IMAGES, dtypes=("float32", "bool", "float32")), "converted"),
        (call("masked_fill", IMAGES, IMAGES, IMAGES, dtypes=("float32", "bool", "float32")), "plain"),
        (call("gt", IMAGES, IMAGES, dtypes=("float32", "bool")), "plain"),
    ],
)
def test_kernels_work_out_places_where_operands_do_not_lie_as_the_result_does(signature: Signature, form: str) -> None:
    assert form_of(signature) == form


@pytest.mark.parametrize(
    ("signature", "dimensions"),
    [
        (call("mul", (4096, 1024), (1024,), (4096, 1024)), 2),
        (call("mul", (8, 512, 1024), (1024,), (8, 512, 1024)), 2),
        (call("add", (8, 16, 512, 512), (1, 1, 512, 512), (8, 16, 512, 512)), 2),
        (call("add", IMAGES, (64, 1, 1), IMAGES), 3),
        (call("mul", (1, 32, 2048, 64), (1, 1, 2048, 64), (1, 32, 2048, 64)), 2),
        (call("mul", (1, 32, 2048, 64), (1, 1, 2048, 64), (1, 32, 2048, 64), strided=3), 3),
        (call("neg", (1, 32, 2048, 64), (1, 32, 2048, 64), strided=3), 3),
    ],
)
def test_dimensions_along_which_operands_go_on_alike_are_one(signature: Signature, dimensions: int) -> None:
    cost = CostModel(gpus.find("A100-80GB"))
    problem = cost.problem(signature, bare(signature.name), *cost.precision(signature))
    assert iterated.dimensions(problem) == dimensions
    further = dimensions > 2 and len(problem.inputs) > 1
    assert iterated.cycles(problem) == (iterated.FURTHER_CYCLES if further else iterated.ELEMENT_CYCLES)


@pytest.mark.parametrize(("gpu", "ms"), [("A100-80GB", 0.599), ("B200", 0.262), ("L40S", 1.22), ("A10G", 1.66)])
def test_a_division_by_a_norm_on_the_gpu_takes_what_kernelbench_timed(gpu: str, ms: float) -> None:
    """KernelBench level1/37 at v0.1; B200's memory is four times as fast as its SMs can use here."""
    whole = us(gpu, "linalg_vector_norm", IMAGES, ()) + us(gpu, "div", IMAGES, (), IMAGES)
    assert whole / 1000 == pytest.approx(ms, rel=0.25)


def test_such_kernels_of_16_bits_gain_less_than_half() -> None:
    """An H100's `mul row 16384 x 4096` took 220 us in 32 bits, 172 in 16 (make hardware)."""
    shapes = (16384, 4096), (4096,), (16384, 4096)
    wide, narrow = us("H100", "mul", *shapes), us("H100", "mul", *shapes, dtypes=("bfloat16",) * 3)
    assert wide == pytest.approx(220, rel=0.1)
    assert narrow == pytest.approx(172, rel=0.1)


def test_copies_into_fewer_bits_go_in_line() -> None:
    """`from fp32 16384 x 4096` took 134 us on an H100, `to fp32` 207 (make hardware): both move as many bytes."""
    shape = (16384, 4096)
    assert us("H100", "_to_copy", shape, shape, dtypes=("float32", "bfloat16")) == pytest.approx(134, rel=0.1)
    assert us("H100", "_to_copy", shape, shape, dtypes=("bfloat16", "float32")) == pytest.approx(207, rel=0.15)


@pytest.mark.parametrize(
    ("gpu", "ms"), [("A100-80GB", 1.15), ("B200", 0.739), ("L40S", 1.25), ("L4", 3.4), ("T4", 3.85)]
)
def test_a_group_norm_is_statistics_and_then_their_application(gpu: str, ms: float) -> None:
    """KernelBench level1/35 at v0.1: 128 groups of 524,288 elements."""
    shapes = IMAGES, (64,), (64,), IMAGES, (16, 8), (16, 8)
    signature = Signature("aten::native_group_norm", shapes, ("float32",) * 6, 3, detail=(("group", 8),))
    assert CostModel(gpus.find(gpu), (12, 4)).kernel(signature).duration_ns / 1e6 == pytest.approx(ms, rel=0.12)


def test_a_batch_norms_few_channels_bound_its_statistics_and_all_sms_apply_them() -> None:
    """64 channels leave half of an A100 idle, 1,024 do not; where the statistics are fixed there is one kernel."""

    def norm(channels: int, training: int) -> float:
        shape = (16 * 64 // channels, channels, 256, 256)
        return us("A100-80GB", "native_batch_norm", shape, (channels,), (channels,), shape, training=training)

    few, many, fixed = norm(64, 1), norm(1024, 1), norm(64, 0)
    assert few > 1.5 * many > 1.5 * fixed


def test_large_reductions_reach_what_copies_do() -> None:
    """An H100's of 16,384 x 4,096 took 94 to 101 us (make hardware), of whose 268 MB a copy would take 90."""
    for shape in ((16384,), (4096,), ()):
        assert us("H100", "sum", (16384, 4096), shape) == pytest.approx(97, rel=0.06)


def test_flips_are_element_wise() -> None:
    assert classify("aten::flip").name == "elementwise"
