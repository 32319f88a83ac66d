"""PyTorch's functions under an emulation: what modes, subclasses and tables compare them with finds them."""

from __future__ import annotations

import copy
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import as_tensor, ones, tensor, zeros_like
from torch._higher_order_ops import scan
from torch.overrides import TorchFunctionMode, get_testing_overrides

import windtunnel
from windtunnel.session import Session

OWNERS = {
    "torch": torch, "Tensor": torch.Tensor, "F": torch.nn.functional, "linalg": torch.linalg, "fft": torch.fft,
    "special": torch.special,
}  # fmt: skip
BUILDS = "builds from data on the host, which then moves"
FACTORY = "takes a number for a device, and `device` beside an `out` on a device"
HALF = "transforms half precision, which C++ refuses on the CPU"
TRANSFORMS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
EQUAL = {
    **dict.fromkeys(("tensor", "as_tensor", "asarray"), BUILDS),
    **dict.fromkeys((f"sparse_{kind}_tensor" for kind in ("coo", "csr", "csc", "bsr", "bsc", "compressed")), BUILDS),
    **dict.fromkeys(
        (f"{kind}_like" for kind in ("empty", "full", "ones", "zeros", "rand", "randn", "randint")), FACTORY
    ),
    **dict.fromkeys(
        ("empty", "empty_permuted", "empty_quantized", "empty_strided", "full", "ones", "zeros", "eye", "normal"),
        FACTORY,
    ),
    **dict.fromkeys(
        ("arange", "range", "linspace", "logspace", "scalar_tensor", "tril_indices", "triu_indices"), FACTORY
    ),
    **dict.fromkeys(("rand", "randn", "randint", "randperm"), FACTORY),
    **dict.fromkeys((f"{name}_window" for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")), FACTORY),
    **dict.fromkeys(("fftfreq", "rfftfreq"), FACTORY),
    **{kind + suffix: HALF for kind in TRANSFORMS for suffix in ("", "2", "n")},
}
"""Functions for which a stand-in is there during an emulation, each with its reason: equal and handed out."""

SURFACE = "says where a tensor is, or moves or shows it"
METHODS = {
    **dict.fromkeys(("to", "cuda", "cpu", "copy_", "type", "type_as", "get_device", "data_ptr"), SURFACE),
    **dict.fromkeys(("numpy", "tolist", "__repr__", "__array__", "__dlpack_device__", "__deepcopy__"), SURFACE),
    **dict.fromkeys(("pin_memory", "is_pinned", "record_stream", "is_shared", "share_memory_"), SURFACE),
    **dict.fromkeys(("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"), FACTORY),
    **dict.fromkeys(("new", "new_tensor"), BUILDS),
}
"""Methods of tensors that are others during an emulation, each with its reason."""

OTHERS = {"torch._use_cudnn_rnn_flatten_weight": "recurrent layers ask it whether cuDNN is there"}


def overridable() -> dict[str, Any]:
    """Every public function and method that `__torch_function__` and modes may be handed, by name."""
    handed = {id(getattr(owner, name)) for owner in CXX for name in dir(owner)} | {
        id(f) for f in get_testing_overrides()
    }
    found = {}
    for prefix, owner in OWNERS.items():
        for name in set(dir(owner)) - CONSTRUCTION:
            function = getattr(owner, name, None)
            if isinstance(function, BUILT_IN) and (id(function) in handed or owner is torch.Tensor):
                found[f"{prefix}.{name}"] = function
    return found


CXX: Any = (torch._C._VariableFunctions, torch._C._fft, torch._C._linalg, torch._C._nn, torch._C._special)  # type: ignore[attr-defined]
BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.FunctionType)
CONSTRUCTION = {"__new__", "_make_wrapper_subclass", "__init_subclass__", "__subclasshook__"}
"""What classes are made with, which is never handed out."""
BEFORE = overridable()


def test_functions_stay_pytorchs() -> None:
    with windtunnel.emulate("2xV100"):
        during = {name: getattr(OWNERS[(at := name.partition("."))[0]], at[2]) for name in BEFORE}
        equal = {name for name in BEFORE if during[name] == BEFORE[name] and hash(during[name]) == hash(BEFORE[name])}
    assert len(BEFORE) > 1500
    others = {name for name in BEFORE if during[name] is not BEFORE[name]}
    assert {name.partition(".")[2] for name in others & equal} == EQUAL.keys()
    assert {name for name in others - equal if not name.startswith("Tensor.")} == OTHERS.keys()
    assert {name.partition(".")[2] for name in others - equal - OTHERS.keys()} == METHODS.keys()


class Seen(TorchFunctionMode):
    """Keeps the functions that C++ hands out."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


CALLS: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda f: f(2, device="cuda"),
    "arange": lambda f: f(3, device="cuda:1"),
    "normal": lambda f: f(0.0, 1.0, (2,), device="cuda"),
    "empty_like": lambda f: f(torch.ones(2), device="cuda"),
    "tensor": lambda f: f([1.0], device="cuda"),
    "as_tensor": lambda f: f([1.0], device=0),
    "dropout": lambda f: f(torch.ones(2).to("cuda"), 0.5, True),
    "sparse_coo_tensor": lambda f: f([[0]], [1.0], (2,), device="cuda"),
    "fft.fft": lambda f: f(torch.ones(2).to("cuda")),
    "fft.fftfreq": lambda f: f(4, device="cuda"),
}


def function(name: str) -> Any:
    """A function of `torch` by its dotted name."""
    return eval(f"torch.{name}", {"torch": torch})


@pytest.mark.parametrize("name", CALLS)
def test_a_mode_is_handed_the_function_that_the_program_has(session: Session, name: str) -> None:
    with Seen() as mode:
        assert CALLS[name](function(name)).is_cuda
    assert any(f is function(name) for f in mode.functions)


ATTRIBUTES = {name: getattr(torch.Tensor, name).__get__ for name in ("device", "is_cuda", "is_cpu", "is_meta")}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_equals_pytorchs(session: Session, name: str) -> None:
    stock, mine = ATTRIBUTES[name], getattr(torch.Tensor, name).__get__
    assert mine == stock
    assert stock == mine
    assert {stock: name}[mine] == name


def test_a_mode_that_compares_attributes_finds_the_device(session: Session) -> None:
    x = torch.ones(2)
    with Seen() as mode:
        assert x.device.type == "cpu"
    assert torch.Tensor.device.__get__ in mode.functions  # type: ignore[attr-defined]


class Handled:
    """A class that keeps a table of the functions that it handles, as TensorDict does."""

    table: dict[Any, str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls.table.get(func, NotImplemented)


@pytest.mark.parametrize("name", ["empty_like", "full_like", "rand_like", "zeros_like", "dropout", "clone", "normal"])
def test_tables_of_before_and_of_during(name: str) -> None:
    rest = {"full_like": (1.0,), "dropout": (0.5, True), "normal": (1.0,)}.get(name, ())
    before = function(name)
    Handled.table = {before: name}
    with windtunnel.emulate("1xV100"):
        assert function(name)(Handled(), *rest) == before(Handled(), *rest) == name
        Handled.table = {function(name): name}
        assert function(name)(Handled(), *rest) == before(Handled(), *rest) == name
    assert before(Handled(), *rest) == name


def test_functions_imported_before_the_emulation() -> None:
    with windtunnel.emulate("2xV100"):
        out = torch.empty(3, device="cuda")
        assert ones(3, device="cuda", out=out) is out
        assert out.tolist() == [1, 1, 1]
        with pytest.raises(RuntimeError, match="device type cpu does not match"):
            ones(3, device="cpu", out=out)
        assert ones(1, device=1).device == tensor([1.0], device=1).device == torch.device("cuda", 1)
        assert as_tensor([1.0], device="cuda").is_cuda
        assert zeros_like(out).is_cuda
        assert not zeros_like(out, device="cpu").is_cuda
    assert [tensor, ones, zeros_like] == [torch.tensor, torch.ones, torch.zeros_like]
    assert tensor is torch.tensor


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_an_inclusive_range_on_a_device(session: Session) -> None:
    x = torch.range(1, 3, device="cuda:1", requires_grad=True)
    assert (x.device, x.tolist(), x.requires_grad) == (torch.device("cuda", 1), [1, 2, 3], True)
    assert torch.range(0, 1, dtype=torch.int64, device=0).dtype == torch.int64


def test_building_from_data_by_a_function_held_elsewhere_is_refused(session: Session) -> None:
    with pytest.raises(RuntimeError, match="not linked with support for cuda devices"):
        HELD[-1]([1.0], device="cuda")


HELD = [torch.ones, torch.zeros, torch.full, torch.arange, torch.eye, torch.tensor]


def test_a_function_held_elsewhere_makes_the_programs_own_cpu_tensors(session: Session) -> None:
    on_host = HELD[0](2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        on_host + HELD[1](2, device="cuda")
    assert not (on_host + 1).is_cuda


@pytest.mark.parametrize("make", [torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_empty])
def test_new_tensors_go_where_the_program_says(session: Session, make: Any) -> None:
    x = torch.ones(2, device="cuda:1")
    assert make(x, 3).device == x.device
    assert not make(x, 3, device="cpu").is_cuda
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        make(x, 2, device="cpu") + x


def test_what_composites_make_goes_where_their_tensors_are(session: Session) -> None:
    x = torch.tensor([0, 1], device="cuda")
    assert torch.nn.functional.one_hot(x).is_cuda
    assert torch.vander(x.float()).is_cuda


def test_a_stand_in_is_the_function_for_python(session: Session) -> None:
    assert isinstance(torch.zeros, types.BuiltinFunctionType)
    assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros
    assert copy.deepcopy([torch.zeros])[0] is torch.zeros
    assert torch._C._VariableFunctions.zeros is torch.zeros  # type: ignore[attr-defined]
    assert (torch.zeros.__name__, torch.zeros.__doc__) == ("zeros", HELD[1].__doc__)
    assert torch.zeros != torch.ones
    assert HELD[0] == torch.ones
    assert torch.zeros in torch.utils._device._device_constructors()


@pytest.mark.parametrize("name", ["tensor", "as_tensor", "asarray", "zeros"])
def test_the_default_device_is_for_what_names_none(session: Session, name: str) -> None:
    with torch.device("cuda:1"):
        assert function(name)([1]).device == torch.device("cuda", 1)
        assert not function(name)([1], device="cpu").is_cuda
    with torch.device("meta"):
        assert function(name)([1]).is_meta


def test_dynamo_traces_factories_on_a_device(session: Session) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + torch.ones(3, device="cuda:1")

    x = torch.zeros(3, device="cuda:1")
    out = torch._dynamo.optimize(backend, nopython=True)(program)(x)  # type: ignore[attr-defined]
    assert (out.device, out.tolist()) == (x.device, [1, 1, 1])
    assert torch.ones in [node.target for node in graphs[0].graph.nodes]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cond(session: Session, device: str) -> None:
    x = torch.ones(2, device=device)
    out = torch.cond(torch.tensor(True, device=device), lambda x: x + 1, lambda x: x - 1, (x,))
    assert (out.device, out.tolist()) == (x.device, [2, 2])


def test_scan(session: Session) -> None:
    start, ones = torch.zeros(2, device="cuda"), torch.ones(3, 2, device="cuda")
    last, sums = scan(lambda carry, x: (carry + x, carry + x), start, ones)
    assert (last.device, last.tolist(), sums.tolist()) == (start.device, [3, 3], [[1, 1], [2, 2], [3, 3]])
