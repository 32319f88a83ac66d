"""The private hooks of the installed PyTorch that the seam stands on, checked one by one for `understudy doctor`."""

from __future__ import annotations

import pkgutil
from typing import NamedTuple

import torch

TESTED = ("2.6.0", "2.13.0", "2.14.1")
"""Versions of PyTorch that the seam's tests ran on."""

OLDEST = (2, 6)


class Hook(NamedTuple):
    """One private name: whether it is there, and what needs it."""

    name: str
    ok: bool
    note: str


NEEDED = (
    ("torch._C.TensorBase.untyped_storage", "tags on storages"),
    ("torch._C._current_autograd_node", "the stream of a backward operator"),
    ("torch._C._autograd._get_sequence_nr", "the stream of a backward operator"),
    ("torch._C._DisableTorchDispatch", "late copies"),
    ("torch._C.DisableTorchFunctionSubclass", "moves of tensor subclasses"),
    ("torch._C._ExcludeDispatchKeyGuard", "autocast"),
    ("torch._C._nn._parse_to", "Tensor.to"),
    ("torch.utils._python_dispatch.TorchDispatchMode", "every operator"),
    ("torch.utils._device._device_constructors", "factory functions"),
    ("torch.utils.flop_counter.flop_registry", "floating point operations"),
    ("torch.cuda._lazy_init", "CUDA's first use"),
    ("torch.cuda._queued_calls", "CUDA's first use"),
    ("torch.nn.parameter.UninitializedTensorMixin._allowed_methods", "lazy modules"),
    ("threading.Thread._bootstrap_inner", "threads"),
    ("torch._C._profiler._RecordFunctionFast", "torch.profiler"),
    ("torch.autograd.profiler._enable_profiler", "torch.profiler"),
    ("torch.autograd.profiler._disable_profiler", "torch.profiler"),
    ("torch._C._to_dlpack", "CUDA graphs"),
    ("torch._C._from_dlpack", "CUDA graphs"),
    ("torch._C._DisableAutocast", "CUDA graphs"),
    ("torch.UntypedStorage._new_with_weak_ptr", "CUDA graphs"),
    ("torch.multiprocessing.reductions.StorageWeakRef", "CUDA graphs"),
    ("torch.utils._python_dispatch._get_current_dispatch_mode_stack", "CUDA graphs"),
)


def check() -> list[Hook]:
    """Every hook, in the order in which the seam uses them; nothing is changed."""
    found = [Hook(name, _exists(name), use) for name, use in NEEDED]
    storage = torch.empty(1).untyped_storage()
    storage._us_probe = True  # type: ignore[attr-defined]
    again = torch.empty(0, dtype=torch.float32).set_(storage).untyped_storage()
    kept = getattr(again, "_us_probe", False)
    found.append(Hook("attributes of UntypedStorage are kept", bool(kept), "tags on storages"))
    return found


def missing() -> list[str]:
    """The hooks that the installed PyTorch lacks."""
    return [hook.name for hook in check() if not hook.ok]


def _exists(path: str) -> bool:
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True
