"""Autocast with CUDA's lists, for tensors that are physically on the CPU.

While `torch.autocast("cuda")` is on, the CPU's autocast key is on too and its kernels are ours: each looks at where its
tensors live and applies CUDA's rules there, the CPU's own switch elsewhere. They are registered when a program first
uses autocast on CUDA and taken out when the emulation ends.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from windtunnel.operators.card import card, stating
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.kernels import recurrent
from windtunnel.seam.torch.plans.arguments import Arguments, Cast, Keywords, OpOverload, overload_of, tensors_in
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import ORDINARY, device_of, disable_torch_function, tag_of

C = torch._C
is_cached: Callable[[torch.Tensor], bool] = C._is_cached_tensor  # type: ignore[attr-defined]
KEY, CUDA_KEY = "AutocastCPU", "AutocastCUDA"
"""PyTorch's build for the CPU has CUDA's kernels of autocast too: an operator that has none is not on CUDA's lists."""
KEYS = C.DispatchKeySet(C.DispatchKey.AutocastCPU)
Rule = Callable[[Cast, OpOverload, Arguments, Keywords, torch.dtype], object]

APPENDED = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
"""Overloads that autocast calls another one for, which takes the result's type, float32, and converts nothing before
(AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE)."""
OURS = frozenset({"aten::_cudnn_rnn"})
"""Operators that we run on CUDA's lists, and that PyTorch's build for the CPU has no kernel of autocast for."""
BANNED_TEXT = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


class Switches(threading.local):
    """What this thread's program switched on."""

    cuda = False
    cpu = False
    inside = 0  # kernels of ours on the stack: autocast does not look inside them
    region: int | None = None  # the line that entered the outermost region on CUDA


@dataclass(slots=True)
class Kept:
    """A weight's cast, kept until the outermost region ends, and each stream's last write when the two were alike."""

    weight: torch.Tensor
    cast: torch.Tensor
    writes: dict[object, int]
    told: bool = False


@cache
def keeps_casts_with_history() -> bool:
    """Whether a weight first cast without gradients has them later in the region: pytorch#165068, asked of the CPU.

    No mode sees it, such as that of PyTorch's sanitizer, which would ask for CUDA's streams before they are there.
    """
    cast = torch.autocast("cpu", dtype=torch.bfloat16)
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False), torch.enable_grad(), cast:
        weight = torch.ones(1, 1, dtype=torch.float32, device="cpu", requires_grad=True)
        with torch.no_grad():
            torch.mm(weight, weight)
        return torch.mm(weight, weight).requires_grad


class Autocast:
    """The autocast state of an emulation, and its kernels."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.switches = Switches()
        self.library: torch.library.Library | None = None
        self.owner = [self]  # empty when the kernels are out: PyTorch keeps them for good, and they keep no emulation
        self.registering = threading.Lock()  # threads of nn.DataParallel meet autocast at the same time
        self.cache: dict[int, Kept] = {}
        self.with_history = keeps_casts_with_history()
        self.stock_set = torch.set_autocast_enabled
        self.stock_is = torch.is_autocast_enabled

    def is_on(self) -> bool:
        """Whether autocast looks at the operators that this thread calls now."""
        switches = self.switches
        return (switches.cuda or switches.cpu) and not switches.inside

    @contextmanager
    def without(self) -> Iterator[None]:
        """Operators below autocast: it does not look at what they call."""
        self.switches.inside += 1
        try:
            with C._ExcludeDispatchKeyGuard(KEYS):
                yield
        finally:
            self.switches.inside -= 1

    def register(self) -> None:
        """Put our kernels in, once; a thread that comes meanwhile waits until all are there."""
        if self.library is None:
            with self.registering:
                if self.library is None:
                    self.library = self._registered()

    def _registered(self) -> torch.library.Library:
        names = [name for name in C._dispatch_get_all_op_names() if name.startswith("aten::")]
        on_cuda = {name for name in names if _has(name, CUDA_KEY)} | OURS
        of_cpu = [name for name in names if _has(name, KEY) and name not in on_cuda]
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, rule in stating("autocast").items():
                self._register(library, name.removeprefix("aten::"), RULES[rule], on_cuda)
            for name in of_cpu:
                func = overload_of(name)
                library.impl(name.removeprefix("aten::"), self._kernel(func, _rule_on_cpu(func), False), KEY)
        return library

    def _register(self, library: torch.library.Library, name: str, rule: Rule, on_cuda: Collection[str]) -> None:
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            return
        for overload in packet.overloads():
            func = getattr(packet, overload)
            if "out" in overload or any(a.alias_info is not None for a in func._schema.returns):
                continue
            if func.name() not in on_cuda:
                continue
            full = name if overload == "default" else f"{name}.{overload}"
            library.impl(full, self._kernel(func, rule), KEY)

    def _kernel(self, func: OpOverload, rule: Rule, of_cuda: bool = True) -> Callable[..., object]:
        """`of_cuda`: the operator is on CUDA's lists; else on a device it is as if autocast had not looked."""
        owner, switches = self.owner, self.switches
        apart = not of_cuda and _has(func.name(), "CompositeImplicitAutograd")
        below = C.DispatchKeySet(C.DispatchKey.AutogradCPU)

        def kernel(*args: object, **kwargs: object) -> object:
            found = [t for t in tensors_in((*args, *kwargs.values())) if t.is_floating_point()]
            on_device = any(device_of(t) >= 0 for t in found)
            if on_device and apart:
                return func.redispatch(below, *args, **kwargs)  # autocast goes on in its parts
            enabled = of_cuda and switches.cuda if on_device else switches.cpu
            with owner[0].without():
                if not enabled or not found:
                    return func(*args, **kwargs)
                dtype = torch.get_autocast_dtype("cuda" if on_device else "cpu")
                return rule(owner[0].cast, func, args, kwargs, dtype)

        return kernel

    def cast(self, value: object, dtype: torch.dtype) -> object:
        """A floating tensor (not float64) as `dtype`; leaves that need gradients are cast once a region."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.cast(item, dtype) for item in value)
        if (
            not isinstance(value, torch.Tensor)
            or not value.is_floating_point()
            or value.dtype in (dtype, torch.float64)
        ):
            return value
        keeps = (
            value.requires_grad
            and value.is_leaf
            and value.dtype == torch.float32
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
            and not is_cached(value)  # of a CUDA graph tree, whose memory is used again
            and dtype != torch.float32
            and not (self.with_history and torch.is_inference_mode_enabled())
        )
        if not keeps:
            return value.to(dtype)
        kept = self.cache.get(id(value))
        if kept is not None:
            self._compare(kept)
            return kept.cast
        with torch.set_grad_enabled(self.with_history or torch.is_grad_enabled()):
            made = value.to(dtype)
        kept = Kept(value, made, _last_writes(value))
        self.cache[id(value)] = kept
        self.state.history.mark_tensor(kept.cast, "autocast")
        return kept.cast

    def _compare(self, kept: Kept) -> None:
        """Note once a region that a weight has changed since it was cast."""
        weight = kept.weight
        if kept.told or type(weight) not in ORDINARY or device_of(weight) < 0:
            return
        newer = {agent: epoch for agent, epoch in _last_writes(weight).items() if epoch > kept.writes.get(agent, 0)}
        if not newer:
            return
        kept.writes |= newer
        if not self.state.no_data:
            with C._DisableTorchDispatch(), disable_torch_function(), torch.no_grad():
                if torch.equal(weight.to(kept.cast.dtype), kept.cast):
                    return
        kept.told = True
        region = self.switches.region
        used = self.state.site()
        where = self.state.machine.trace.sites[used]
        self.state.notes.note(
            "stale-autocast", used if region is None else region, used=str(where), shape=str(list(weight.shape)),
            device=device_of(weight),
        )  # fmt: skip

    def ends(self) -> None:
        """The outermost region has ended, or the program drops what it has kept."""
        self.cache.clear()
        self.switches.region = None

    def unregister(self) -> None:
        """Take our kernels out again."""
        self.cache.clear()
        if self.library is not None:
            self.library._destroy()
            self.library = None
        self.owner.clear()


def _lower(cast: Cast, func: OpOverload, args: Arguments, kwargs: Keywords, dtype: torch.dtype) -> object:
    kwargs = {name: cast(value, dtype) for name, value in kwargs.items()}
    return func(*[cast(value, dtype) for value in args], **kwargs)


def _float32(cast: Cast, func: OpOverload, args: Arguments, kwargs: Keywords, dtype: torch.dtype) -> object:
    return _lower(cast, func, args, kwargs, torch.float32)


def _result(cast: Cast, func: OpOverload, args: Arguments, kwargs: Keywords, dtype: torch.dtype) -> object:
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    low = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors_in(args))
    if low and "dtype" in names and given.get("dtype") is None:
        given["dtype"] = torch.float32
        positional = {a.name for a in func._schema.arguments if not a.kwarg_only}
        ordered = [given.pop(name) for name in names if name in positional and name in given and name != "dtype"]
        return func(*ordered, **given)
    return func(*args, **kwargs)


def _appended(cast: Cast, func: OpOverload, args: Arguments, kwargs: Keywords, dtype: torch.dtype) -> object:
    other = APPENDED.get(f"{func._opname}.{func._overloadname}")
    if other is None or args[0].dtype == torch.float64:
        return func(*args, **kwargs)
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    whole = [given.get(a.name, a.default_value) for a in func._schema.arguments]
    return getattr(func.overloadpacket, other)(*whole, dtype=torch.float32)


def _promote(cast: Cast, func: OpOverload, args: Arguments, kwargs: Keywords, dtype: torch.dtype) -> object:
    wide = any(t.dtype == torch.float32 for t in tensors_in((*args, *kwargs.values())))
    return _lower(cast, func, args, kwargs, torch.float32 if wide else dtype)


def _ban(cast: Cast, func: OpOverload, args: Arguments, kwargs: Keywords, dtype: torch.dtype) -> object:
    raise RuntimeError(BANNED_TEXT)


def _rule_on_cpu(func: OpOverload) -> Rule:
    """The rule of an operator that only the CPU's lists have."""
    return RULES.get(card(func.name()).autocast_cpu, _float32)


RULES: dict[str, Rule] = {
    "lower": _lower,
    "float32": _float32,
    "result": _result,
    "append": _appended,
    "promote": _promote,
    "ban": _ban,
    "recurrent": recurrent.autocast_rule,
}
"""What the cards of operators name: on CUDA `autocast`, on the CPU `autocast_cpu`."""


def patches(state: State) -> list[Patch]:
    """The switches of autocast."""
    autocast = state.autocast = Autocast(state)
    switches = autocast.switches
    stock_clear = torch.clear_autocast_cache

    def set_enabled(*args: Any) -> None:
        device, enabled = args if len(args) == 2 else ("cuda", args[0])
        if device not in ("cuda", "cpu"):
            autocast.stock_set(device, enabled)
            return
        if device == "cuda" and enabled:
            autocast.register()
            if switches.region is None:
                switches.region = state.site()
        setattr(switches, device, bool(enabled))
        if device == "cuda":
            autocast.stock_set("cuda", enabled)
        autocast.stock_set("cpu", switches.cpu or switches.cuda)
        if state.no_data:  # meta tensors have no autocast key of their own
            C._dispatch_tls_set_dispatch_key_included(KEY, switches.cuda)

    def is_enabled(device_type: str = "cuda") -> bool:
        if device_type in ("cuda", "cpu"):
            return bool(getattr(switches, device_type))
        return autocast.stock_is(device_type)

    def clear_cache() -> None:
        autocast.ends()
        stock_clear()

    return [
        Patch(torch, "set_autocast_enabled", set_enabled),
        Patch(torch, "is_autocast_enabled", is_enabled),
        Patch(torch, "is_autocast_cpu_enabled", lambda: switches.cpu),
        Patch(torch, "set_autocast_cpu_enabled", lambda enabled: set_enabled("cpu", enabled)),
        Patch(torch, "clear_autocast_cache", clear_cache),
        Patch(torch, "is_autocast_available", lambda device: True if device == "cuda" else _available(device)),
    ]


def _last_writes(weight: torch.Tensor) -> dict[object, int]:
    """By the stream that wrote: its last work known to have written a weight's memory, also through `.data`."""
    tag = tag_of(weight)
    found: dict[object, int] = {}
    for one in tag.accesses.writes if tag.accesses is not None else ():
        found[one.agent] = max(one.epoch, found.get(one.agent, 0))
    if tag.epoch and tag.stream is not None:
        found[tag.stream.agent] = max(tag.epoch, found.get(tag.stream.agent, 0))
    return found


_has: Callable[[str, str], bool] = C._dispatch_has_kernel_for_dispatch_key


_available = torch.amp.is_autocast_available
