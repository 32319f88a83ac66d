"""Which module works at the moment, by its path in the model, and what parameters are called.

Modules are followed by PyTorch's global hooks, only while the allocators' history is kept. A backward pass has no
modules: its nodes are those of the module whose forward pass made them, which their sequence numbers tell.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import takewhile
from types import FrameType
from typing import NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from windtunnel.trace.operation import NO_ROLE, Role

MOST_BOUNDARIES = 1 << 16
"""How many times a module began or ended that a backward pass may go back to."""
WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)(?:\.|$)")
"""Names that wrappers of modules put into a path."""
WRAPPING = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule")
"""Classes of modules that hold the program's own as their only child."""

BUCKET = Role("DistributedDataParallel", tensor="bucket of gradients")
"""What the reducer of DistributedDataParallel keeps gradients in, where they are not views of it."""

UNSHARDED, REDUCED = "unsharded parameters", "gradients to be reduced"
SHARDING = {
    "foreach_all_gather": UNSHARDED,
    "init_all_gather_outputs": UNSHARDED,
    "alloc_all_gather_outputs": UNSHARDED,
    "_alloc_padded_unsharded_flat_param": UNSHARDED,
    "foreach_reduce": REDUCED,
    "_reduce_grad": REDUCED,
}
"""What functions of FSDP allocate for: those of `fully_shard`, then those of `FullyShardedDataParallel`."""
SHARDS = os.sep + os.path.join("torch", "distributed", "fsdp") + os.sep
DEPTH = 24

sequence_number = torch._C._autograd._get_sequence_nr
current_node = torch._C._current_autograd_node


class Running(NamedTuple):
    """A module whose forward pass runs; `callers` tells apart the backward pass in which it does."""

    module: torch.nn.Module
    path: str
    callers: object


class Thread(threading.local):
    """The modules that run in a thread, and where in its sequence of nodes each began and ended."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self.numbers: list[int] = []
        self.paths: list[str] = []


class ModulePaths:
    """The paths of modules and the names of their parameters, as far as they have been seen."""

    def __init__(self) -> None:
        self.on_module: Callable[[torch.nn.Module, str], None] = lambda module, path: None
        self.callers: Callable[[], object] = lambda: None
        self._thread = Thread()
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._tensors = WeakIdKeyDictionary()  # parameter or buffer -> its role

    def follow(self) -> list[RemovableHandle]:
        """Begin to follow modules; the handles end it."""
        return [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def learn(self, root: torch.nn.Module) -> None:
        """Name a model's modules and their parameters; those that have names keep them."""
        inner, name = root, type(root).__name__
        while name in WRAPPING and len(children := list(inner.children())) == 1:
            inner = children[0]
            name = type(inner).__name__
        name = name.removeprefix("FSDP") if len(name) > len("FSDP") and hasattr(inner, "unshard") else name
        inside = {id(module) for module in inner.modules()}
        for path, module in root.named_modules():
            if module in self._paths:
                continue
            below = _below(inner, module, path, inside, root)
            found = self._paths[module] = f"{name}.{below}" if below else name
            for own, tensor in tensors_of(module):
                self._tensors.setdefault(tensor, Role(found, tensor=own))
            self.on_module(module, found)

    def tensors(self) -> list[tuple[torch.Tensor, Role]]:
        """All parameters and buffers of modules that have names, as they are now."""
        return [
            (tensor, Role(path, tensor=name))
            for module, path in self._paths.items()
            for name, tensor in tensors_of(module)
        ]

    def role_of(self, tensor: torch.Tensor) -> Role:
        """The module and the name of a parameter; none where nobody is known to have it."""
        found: Role = self._tensors.get(tensor, NO_ROLE)
        return found

    def current(self) -> str:
        """The path of the module that works in this thread; empty outside of all."""
        running, callers = self._thread.running, self.callers()
        if running and (callers is None or running[-1].callers is callers):
            return running[-1].path
        return "" if callers is None else self._of_node()

    def _of_node(self) -> str:
        """The module whose forward pass made the node that runs."""
        node: torch.autograd.graph.Node | None = current_node()
        if node is None:
            return ""
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self.role_of(variable).module
        thread = self._thread
        at = bisect_right(thread.numbers, node._sequence_nr())
        return thread.paths[at - 1] if at else ""

    def _enter(self, module: torch.nn.Module, inputs: object) -> None:
        running = self._thread.running
        path = self._paths.get(module)
        if path is None:
            if running and self.callers() is running[-1].callers:
                path = self._learn_below(running[-1], module)
            else:
                self.learn(module)
                path = self._paths.get(module, "")
        running.append(Running(module, path, self.callers()))
        self._note(path)

    def _learn_below(self, parent: Running, module: torch.nn.Module) -> str:
        """Name a module that came to its parent after that was named, or that it made for this call."""
        known = (name for name, one in parent.module.named_modules() if one is module)
        path = self._paths[module] = f"{parent.path}.{next(known, type(module).__name__)}"
        for own, tensor in tensors_of(module):
            self._tensors.setdefault(tensor, Role(path, tensor=own))
        self.on_module(module, path)
        return path

    def _leave(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        running = self._thread.running
        while running:  # a hook before ours may have raised: then its module never began for us
            if running.pop().module is module:
                break
        self._note(running[-1].path if running else "")

    def _note(self, path: str) -> None:
        """From the next node on, nodes are those of the module with this path."""
        thread = self._thread
        number = sequence_number()
        if thread.numbers and thread.numbers[-1] >= number:
            thread.paths[-1] = path
            return
        if len(thread.numbers) >= MOST_BOUNDARIES:
            del thread.numbers[: MOST_BOUNDARIES // 2], thread.paths[: MOST_BOUNDARIES // 2]
        thread.numbers.append(number)
        thread.paths.append(path)


def _below(inner: torch.nn.Module, module: torch.nn.Module, path: str, inside: set[int], root: torch.nn.Module) -> str:
    """A module's path below the program's own model, without the names that wrappers put there."""
    if id(module) not in inside or module is inner:
        return ""
    path = WRAPPERS.sub("", path)
    return path.removeprefix("module.").strip(".") if inner is not root else path.strip(".")


def tensors_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's own parameters and buffers, by their names."""
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield name, tensor


def sharding() -> str | None:
    """What FSDP allocates for at the moment; None where it does not."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DEPTH):
        if frame is None:
            break
        code = frame.f_code
        if code.co_name in SHARDING and SHARDS in code.co_filename:
            return SHARDING[code.co_name]
        frame = frame.f_back
    return None


def common(roles: list[Role], category: str) -> Role:
    """The role of a block that tensors share: the module that has all of theirs."""
    if len(roles) == 1:
        return roles[0]
    paths = [role.module.split(".") for role in roles]
    shared = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    tensor = roles[0].tensor if len(set(roles)) == 1 else f"{len(roles)} {category}s"
    return Role(".".join(names[0] for names in shared), tensor=tensor)
