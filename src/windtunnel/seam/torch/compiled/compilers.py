"""The compilers of one emulation: from `begin` to `end` Dynamo and Inductor compile for its devices.

Without Triton, which writes Inductor's kernels, `torch.compile` runs programs eagerly (`tensor.compiling`).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from types import ModuleType

import torch

from windtunnel.folders import private_folder, user_cache
from windtunnel.seam.patching import Patch, Patches
from windtunnel.seam.torch.compiled import answers, autotuning, diagnosis, guards, inductor, replays
from windtunnel.seam.torch.compiled.kernels import Schedule
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.tags import VERSION

OLDEST = (2, 11)
"""The oldest PyTorch whose compilers this was tried on."""
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def available() -> bool:
    """Whether PyTorch's compilers can work for emulated devices here."""
    return VERSION >= OLDEST and find_spec("triton") is not None


class Compilers:
    """What an emulation changes of the compilers, beyond the names that it replaces at once."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        self.schedule = Schedule()
        self._cache: str | None = None
        self._stack = ExitStack()

    def begin(self) -> None:
        """Let nothing that was compiled before, for other devices, be taken for these."""
        self._cache = os.environ.get(CACHE)
        os.environ[CACHE] = folder(self._cache, self._stack)
        _forget()

    def end(self) -> None:
        """Let nothing that was compiled for these devices be taken for others."""
        self._stack.close()
        if self._cache is None:
            os.environ.pop(CACHE, None)
        else:
            os.environ[CACHE] = self._cache
        _forget()

    def patches(self) -> list[Patch]:
        """What is replaced at once."""
        return inductor.modes_patches(self.dispatch, self.schedule)

    def modules(self) -> dict[str, Callable[[ModuleType], list[Patch]]]:
        """What is replaced when the program imports a compiler, or has."""
        state, schedule = self.dispatch.state, self.schedule
        return {
            "torch._inductor.config": self._configured,
            "torch._functorch.config": self._uncached,
            "torch._dynamo.guards": guards.guards_patches,
            "torch._dynamo.variables.script_object": guards.generators_patches,
            "torch._dynamo.eval_frame": partial(diagnosis.compiled_modules, state),
            "torch._dynamo.callback": partial(diagnosis.compile_time, state),
            "torch._dynamo.symbolic_convert": partial(diagnosis.graph_breaks, state),
            "torch._dynamo.convert_frame": lambda module: [
                *inductor.convert_frame_patches(self.dispatch, module),
                *diagnosis.recompilations(state, module),
            ],
            "torch._inductor.output_code": partial(diagnosis.skipped_graphs, state),
            "torch.fx.experimental.proxy_tensor": partial(inductor.proxy_patches, self.dispatch),
            "torch._inductor.compile_fx": partial(inductor.compile_fx_patches, self.dispatch, schedule),
            "torch._inductor.cudagraph_trees": partial(replays.trees_patches, state),
            "torch._inductor.async_compile": partial(inductor.async_compile_patches, state, schedule),
            "torch._higher_order_ops.utils": partial(inductor.higher_order_patches, self.dispatch),
            "torch._inductor.codegen.wrapper": answers.wrapper_patches,
            "torch._inductor.codegen.triton": partial(inductor.triton_patches, schedule),
            "torch._inductor.runtime.benchmarking": autotuning.benchmarking_patches,
            "torch._inductor.fx_passes.pad_mm": partial(autotuning.padding_patches, self.dispatch),
            "torch._inductor.select_algorithm": partial(autotuning.selection_patches, self.dispatch),
        }

    def _configured(self, module: ModuleType) -> list[Patch]:
        self._stack.enter_context(module.patch(inductor.IN_PROCESS))
        return []

    def _uncached(self, module: ModuleType) -> list[Patch]:
        self._stack.enter_context(module.patch(enable_autograd_cache=False))
        return []


def folder(named: str | None, until: ExitStack) -> str:
    """Where generated code lies: in the program's own folder for it or the user's cache, apart from PyTorch's.

    A real GPU must not find there what was generated for an emulated one, and nobody else's code may lie there, since
    it is run. Where no such folder can be made, a temporary one is removed by `until`.
    """
    wanted = os.path.join(named, "windtunnel") if named is not None else user_cache("inductor")
    if wanted is not None:
        try:
            return private_folder(wanted)
        except OSError:
            pass
    temporary = tempfile.mkdtemp(prefix="windtunnel_inductor_")
    until.callback(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def _forget() -> None:
    """Empty what the compilers keep of devices, and the programs that they have compiled."""
    for name in KEEPERS:
        module, _, keeper = name.partition(":")
        found = sys.modules.get(module)
        found = getattr(found, keeper, None) if keeper else found
        for kept in [getattr(found, own) for own in vars(found)] if found is not None else ():
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()
    interfaces = sys.modules.get("torch._dynamo.device_interface")
    for table in TABLES:
        getattr(interfaces, table, {}).clear()
    if sys.modules.keys() >= {"torch._dynamo", "torch._dynamo.eval_frame"}:  # an import that failed leaves one alone
        _reset_dynamo()


def _reset_dynamo() -> None:
    """`torch._dynamo.reset`, which imports Inductor's graph trees to empty them: a process that ends cannot import."""
    patches = Patches()
    try:
        if "torch._inductor.cudagraph_trees" not in sys.modules:
            # PyTorch 2.13 asks for the first, 2.14 for the second.
            patches.apply([Patch(torch.cuda, name, lambda: False) for name in ("is_available", "is_initialized")])
        sys.modules["torch._dynamo"].reset()
    finally:
        patches.restore()


KEEPERS = (
    "torch._inductor.utils",
    "torch._inductor.runtime.hints:DeviceProperties",
    "torch._inductor.codecache:CacheBase",
    "torch.utils._triton",
)
"""Whose functions keep what they were told of a device; which of them do changes from version to version."""
TABLES = ("caching_worker_device_properties", "caching_worker_current_devices")
"""Dynamo's tables of the same."""
