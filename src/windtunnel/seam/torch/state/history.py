"""The allocators' history: what `torch.cuda.memory._record_memory_history` keeps, and memory snapshots.

The history lies in the trace, as rows with the program's lines. A run that asked for a report of its memory keeps it
from the start; `_record_memory_history` decides only what PyTorch's own snapshots show of it. Each allocation gets a
category. Some are told (a cuBLAS workspace, what a module holds, what an optimizer steps); the others follow from when
a block was taken and given back: in the forward pass, in a backward pass or in `Optimizer.step`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from windtunnel.machine.device import Device
from windtunnel.machine.memory.blocks import DEFAULT_POOL, Block
from windtunnel.machine.memory.heap import Action
from windtunnel.seam.living import living
from windtunnel.seam.sites import Sites
from windtunnel.seam.torch.state.core import Core
from windtunnel.seam.torch.state.module_paths import ModulePaths, common, sharding, tensors_of
from windtunnel.seam.torch.state.observers import Observers
from windtunnel.seam.torch.state.stacks import ALL, FREES, LEVELS, Frames, Stack, Stacks
from windtunnel.seam.torch.tags import VERSION, parts_of, storage_of
from windtunnel.trace.operation import NO_ROLE, Role, Site
from windtunnel.trace.trace import MEMORY_ACTIONS, MEMORY_CATEGORIES, MOST_ROLES, Held, origin

ACTIONS = {name: number for number, name in enumerate(MEMORY_ACTIONS)}
CATEGORIES = {name: number for number, name in enumerate(MEMORY_CATEGORIES)}
HELD_COLUMN = 7
SITE_COLUMN = 6
WRITES_POOLS = VERSION >= (2, 12)
"""Whether PyTorch's events name their memory pool (pytorch#177717)."""


class Shown:
    """What PyTorch's snapshots show: the arguments of `_record_memory_history`."""

    def __init__(self) -> None:
        self.events = False
        self.entries = sys.maxsize
        self.first = 0
        self.skipped: frozenset[str] = frozenset()


class History:
    """Whether the allocators' actions are kept, and what is known of each allocation."""

    def __init__(self, core: Core, observers: Observers) -> None:
        self.core = core
        self.observers = observers
        self.metadata = ""
        self.enabled = False
        self.from_start = False
        self.shown = Shown()
        self._sites = Sites(core.machine.trace.sites, stacks=True)
        self._notes: dict[int, str] = {}  # row -> the metadata in force
        self._pools: dict[int, tuple[int, int]] = {}  # row -> its memory pool, where that is not the default one
        self.stacks = Stacks()
        self._taken: dict[int, int] = {}  # row of a live allocation -> backward passes begun before it
        # id of a block -> where and when its storage died
        self._given: dict[int, tuple[int, bool, int, Stack | None]] = {}
        self._backward_passes = 0
        self._failed: set[int] = set()  # backward passes that ran out of memory
        self._pass: object = None
        self._stepping: torch.optim.Optimizer | None = None
        self.modules = ModulePaths()
        self.modules.on_module = self._mark_module
        self.modules.callers = lambda: core.local.callers
        self._handles: list[RemovableHandle] = []
        self._module_handles: list[RemovableHandle] = []
        self._compiled = False
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ begin and end

    def set_metadata(self, text: str) -> None:
        """`torch.cuda.memory._set_memory_metadata`: goes with all actions from now on."""
        self.metadata = text

    def keep(self) -> None:
        """Keep the history from the start to the end, for the run's own reports."""
        self.from_start = True
        self._enable()

    def start(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        compile_context: bool = False,
        annotations: bool = False,
        skip_actions: Iterable[str] = (),
        *host: object,
    ) -> None:
        """`torch._C._cuda_record_memory_history`: None ends it, "state" keeps one event.

        Source: torch/csrc/cuda/memory_snapshot.cpp.
        """
        del compile_context, annotations, host
        _check(enabled, ("state", "all"), "expected state to be 'state', 'all', or None")
        _check(context, ("state", "alloc", "all"), "expected context to be 'state', 'alloc', 'all', or None")
        _check(stacks, ("python", "all"), "expected stacks to be 'python', or 'all'")
        for device in self.core.machine.devices:
            self.core.drain(device)  # what died until now was freed before
        shown = self.shown
        rows = len(self.core.machine.trace.memory)
        shown.events = enabled is not None
        self.stacks.operators = stacks == "all"
        self.stacks.level = 0 if enabled is None else LEVELS[context or ""]
        shown.entries = max_entries if enabled == "all" else 1
        shown.skipped = frozenset(skip_actions)
        if enabled is None or clear_history or not self.enabled:
            shown.first = rows
        if enabled is not None:
            self._enable()
        elif not self.from_start:
            self.disable()

    def start_legacy(
        self,
        enabled: bool,
        record_context: bool = True,
        max_entries: int = 1,
        alloc_context: bool = False,
        *others: object,
    ) -> None:
        """The older signature of the same."""
        context = "all" if alloc_context else "state" if record_context else None
        self.start("all" if enabled else None, context, "python", max_entries, bool(others[1:2] and others[1]))

    def _enable(self) -> None:
        if self.enabled:
            return
        self.enabled = True
        for device in self.core.machine.devices:
            device.allocator.on_action = self._hook(device)
        self.observers.join(died=self._died)
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        if not self._compiled:
            self._module_handles = self.modules.follow()

    def compiling(self) -> None:
        """Hook into no module any more: Dynamo would follow the hook, and end its graph there.

        The modules that there are now are looked at once; parameters of later ones are found by their optimizers.
        """
        while self._module_handles:
            self._module_handles.pop().remove()
        self._compiled = True
        if self.enabled:
            self._learn_all()

    def disable(self) -> None:
        """Keep no more history; what was kept stays in the trace."""
        if not self.enabled:
            return
        self.enabled = False
        for handles in (self._handles, self._module_handles):
            while handles:
                handles.pop().remove()
        for device in self.core.machine.devices:
            self.core.drain(device)  # what died until now belongs to the history
            device.allocator.on_action = None
        self.observers.leave(died=self._died)

    def forked(self, goes_on: bool) -> None:
        """In a forked child, whose rows are new: what was allocated before has none there."""
        self._lock = threading.RLock()
        if not goes_on:
            self.enabled = False
            for device in self.core.machine.devices:
                device.allocator.on_action = None

    # ------------------------------------------------------------------ actions

    def _hook(self, device: Device) -> Action:
        core = self.core

        def act(action: str, address: int, size: int, stream: int, block: Block | None) -> None:
            with self._lock:
                rows = core.machine.trace.memory
                row = len(rows)
                held = Held(0, 0, 0)
                given: Stack | None = None
                if block is not None and action == "alloc":
                    site = self._sites.number()
                    role = Role(self.modules.current(), self.stacks.operator())
                    if role.module and not self._backward():
                        self._stepping = None  # also after a step that failed
                    category = self._phase()
                    if (gathered := sharding()) is not None:
                        category, role = CATEGORIES["communication"], role._replace(tensor=gathered)
                    held = Held(category, block.size - size, self._role(role))
                    block.context = row
                    self._taken[row] = self._backward_passes
                elif block is not None and action in FREES:
                    site, given = self._free(action, block)
                else:
                    site = self._sites.number()
                    if action == "oom":
                        self._ran_out()
                    if block is not None and action in ("segment_alloc", "segment_map") and block.prev is None:
                        segment = block.segment
                        segment.context = row if segment.context is None else segment.context
                self.stacks.note(row, action, block, given)
                if self.metadata:
                    self._notes[row] = self.metadata
                if block is not None and block.pool_id != DEFAULT_POOL:
                    self._pools[row] = block.pool_id
                time = core.local.host.now_ns
                rows.append((ACTIONS[action], device.index, stream, address, size, time, site, held.packed()))

        return act

    def _died(self, device: Device, block: object) -> None:
        # The storage may die anywhere, also while the history is being written.
        self._given[id(block)] = self._now()

    def _now(self) -> tuple[int, bool, int, Stack | None]:
        """What is kept of the moment at which a storage dies."""
        return self._sites.number(2), self._backward(), self._backward_passes, self.stacks.gather(ALL)

    def _free(self, action: str, block: Block) -> tuple[int, Stack | None]:
        """The line and the stack where a block was given back; its allocation's category is settled."""
        key = id(block)
        known = self._given.get(key) or self._now()
        site, backward, passes, stack = known
        if action == "free_requested":
            self._given[key] = known
            self._settle(block.context, backward, passes)
        else:
            self._given.pop(key, None)
        return site, stack

    # ------------------------------------------------------------------ categories

    def _backward(self) -> bool:
        """Whether a backward pass runs on this thread; counts the passes. Each has its own list of streams."""
        callers = self.core.local.callers
        if not callers:
            return False
        if callers is not self._pass:
            self._pass = callers
            self._backward_passes += 1
        return True

    def _phase(self) -> int:
        """What an allocation of this moment is taken for."""
        if self._stepping:
            return CATEGORIES["optimizer"]
        return CATEGORIES["temporary" if self._backward() else "activation"]

    def _settle(self, row: object, backward: bool, passes: int) -> None:
        """An allocation ended, so what it was for is known: by the part of the step that it outlived, or did not."""
        if not isinstance(row, int):
            return
        before = self._taken.pop(row, None)
        found = self._category(row)
        if found == "optimizer" and self._stepping:
            self._set(row, "temporary")
        elif found == "temporary" and not (backward and passes == before) and before not in self._failed:
            self._set(row, "gradient")
        elif found == "activation" and not backward and before is not None and passes - before != 1:
            self._set(row, "temporary" if passes == before and self._is_computed(row) else self._outlived(row))

    def _ran_out(self) -> None:
        """A request did not fit: what is alive is for what it was taken for, though its pass does not end."""
        if self._backward():
            self._failed.add(self._backward_passes)
            return
        if self._stepping is not None:
            self._mark_states(self._stepping)
        running = [row for row, passes in self._taken.items() if passes == self._backward_passes]
        for row in running:
            if self._category(row) == "optimizer" or (self._category(row) == "activation" and self._is_computed(row)):
                del self._taken[row]

    def _outlived(self, row: int) -> str:
        """What something is that was made before two backward passes: a graph that is kept, or what began one."""
        return "retained" if self._is_computed(row) else ""

    def _is_computed(self, row: int) -> bool:
        """Whether it was made by an operator of other tensors, or in a module: the program's own tensors are not."""
        role = self.core.machine.trace.roles[self._held(row).role]
        return bool(role.module or (role.operator and role.operator not in self.stacks.factories))

    def _finish(self) -> None:
        """Settle what is alive at the end: a gradient if made in a backward pass, no activation if it outlived two."""
        if not self.enabled or self._backward():
            return
        self._learn_all()
        known = self.modules.tensors()
        self._mark_all(known, "parameter")
        self._mark_all(((one.grad, role) for one, role in known if one.grad is not None), "gradient")
        for row, before in self._taken.items():
            found = self._category(row)
            if found == "temporary" and before not in self._failed:
                self._set(row, "gradient")
            elif found == "activation" and not self._backward_passes and not known:
                self._set(row, "")
            elif found == "activation" and self._backward_passes - before > 1:
                self._set(row, self._outlived(row))

    def mark(self, block: Block | None, category: str, role: Role | None = None) -> None:
        """Say what a block is for, when that is known, and whose; only while the history is kept."""
        if self.enabled and block is not None and isinstance(block.context, int):
            self._set(block.context, category, role)

    def mark_tensor(self, tensor: torch.Tensor, category: str, role: Role | None = None) -> None:
        """`mark` for a tensor's memory, or for what it is made of."""
        for block in _blocks(tensor):
            self.mark(block, category, role)

    def _mark_all(self, named: Iterable[tuple[torch.Tensor, Role]], category: str) -> None:
        """The same for many tensors, several of which may share a block: that is of what their modules have in common.

        So DistributedDataParallel's buckets hold gradients, and FSDP's gather those of a group.
        """
        blocks: dict[int, tuple[Block, list[Role]]] = {}
        for tensor, role in named:
            for block in _blocks(tensor):
                blocks.setdefault(id(block), (block, []))[1].append(role)
        for block, roles in blocks.values():
            self.mark(block, category, common(roles, category))

    def _role(self, role: Role) -> int:
        """A role's number; that of none where there are too many to tell apart."""
        number = self.core.machine.trace.roles.number(role)
        return number if number < MOST_ROLES else 0

    def _category(self, row: int) -> str:
        return MEMORY_CATEGORIES[self._held(row).category]

    def _held(self, row: int) -> Held:
        return Held.of(self.core.machine.trace.memory.get(row, HELD_COLUMN))

    def _set(self, row: int, category: str, role: Role | None = None) -> None:
        held = self._held(row)
        if role is not None:  # what made it remains known
            before = self.core.machine.trace.roles[held.role]
            role = role._replace(operator=role.operator or before.operator, module=role.module or before.module)
            held = held._replace(role=self._role(role))
        held = held._replace(category=CATEGORIES[category])
        self.core.machine.trace.memory.put(row, HELD_COLUMN, held.packed())

    def _before_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._stepping = optimizer
        for group in optimizer.param_groups:
            named = [(one, self.modules.role_of(one)) for one in group["params"]]
            self._mark_all(named, "parameter")
            self._mark_all(((one.grad, role) for one, role in named if one.grad is not None), "gradient")

    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        for device in self.core.machine.devices:
            self.core.drain(device)
        self._stepping = None
        self._mark_states(optimizer)

    def _mark_states(self, optimizer: torch.optim.Optimizer) -> None:
        kind = type(optimizer).__name__
        for parameter, state in list(optimizer.state.items()):
            of_tensor = isinstance(parameter, torch.Tensor)
            module, _, name = self.modules.role_of(parameter) if of_tensor else NO_ROLE
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    tensor = f"{key} of {name}" if name else str(key)
                    self.mark_tensor(value, "optimizer", Role(module, kind, tensor))

    def _learn_all(self) -> None:
        """Name all modules that there are, whether their forward pass has run or not: models first, then parts."""
        modules = living(torch.nn.Module)
        parts = {id(child) for module in modules for child in module._modules.values()}
        for module in sorted(modules, key=lambda one: id(one) in parts):
            self.modules.learn(module)

    def _mark_module(self, module: torch.nn.Module, path: str) -> None:
        for name, tensor in tensors_of(module):
            self.mark_tensor(tensor, "parameter", Role(path, tensor=name))

    # ------------------------------------------------------------------ snapshots

    def frames(self, context: object) -> Frames:
        """The program's lines behind a block's context, which is the row of its allocation."""
        if not isinstance(context, int):
            return []
        trace = self.core.machine.trace
        return frames_of(trace.sites[trace.memory.get(context, SITE_COLUMN)])

    def segments(
        self, frames: Callable[[object], Frames], pool: tuple[int, int] | None = None
    ) -> tuple[list[object], dict[str, object]]:
        """The segments of all devices, and the allocators' settings."""
        segments: list[object] = []
        settings: dict[str, object] = {}
        for device in self.core.machine.devices:
            self.core.drain(device)
            found = device.allocator.snapshot(pool, frames)
            segments += found["segments"]
            settings = found["allocator_settings"]
        return segments, settings

    def write(self) -> None:
        """Leave in the trace what its rows cannot tell: the segments as they are now, and the settings."""
        rows = self.core.machine.trace.memory
        if not len(rows):
            return
        for device in self.core.machine.devices:
            self.core.drain(device)
        self._finish()
        hooks = [(device.allocator, device.allocator.on_action) for device in self.core.machine.devices]
        for allocator, _ in hooks:
            allocator.on_action = None
        segments, settings = self.segments(self.frames)
        for allocator, hook in hooks:
            allocator.on_action = hook
        facts = self.core.machine.trace.facts
        facts["memory_segments"], facts["allocator_settings"] = segments, settings
        facts["memory_from_start"] = self.from_start
        if WRITES_POOLS:
            facts["memory_pools"] = [[row, *pool] for row, pool in self._pools.items()]

    def snapshot(self, pool: Sequence[int] | None = None) -> dict[str, object]:
        """What `torch._C._cuda_memorySnapshot` returns; `pool` is (a, b) or (a, b, with events)."""
        core = self.core
        wanted = None if pool is None else (int(pool[0]), int(pool[1]))
        with_events = pool is None or len(pool) < 3 or bool(pool[2])
        traces: list[list[dict[str, object]]] = [[] for _ in core.machine.devices]
        if self.enabled and self.shown.events and with_events:
            for device in core.machine.devices:
                core.drain(device)
            self._fill(traces)
        # Its own "snapshot" action is in the next one: the trace is copied first (c10/cuda/CUDACachingAllocator.cpp).
        segments, settings = self.segments(self.stacks.of_context, wanted)
        return {
            "segments": segments,
            "device_traces": [events[-self.shown.entries :] for events in traces],
            "allocator_settings": settings,
            "external_annotations": [],
            "windtunnel": origin(core.machine.trace.facts),  # no key of PyTorch's: `windtunnel report` reads it
        }

    def _fill(self, traces: list[list[dict[str, object]]]) -> None:
        shown = self.shown
        for row, action in enumerate(self.core.machine.trace.memory_actions()):
            if row < shown.first or action.action in shown.skipped:
                continue
            pool = {"pool_id": self._pools.get(row, DEFAULT_POOL)} if WRITES_POOLS else {}
            traces[action.device].append(
                pool
                | {
                    "action": action.action,
                    "device_free" if action.action == "oom" else "addr": action.address,
                    "size": action.size_bytes,
                    "stream": action.stream,
                    "time_us": action.time_ns // 1000,
                    "compile_context": "N/A",
                    "user_metadata": self._notes.get(row, ""),
                    "frames": self.stacks.of_event(row),
                }
            )


def _blocks(tensor: torch.Tensor) -> Iterator[Block]:
    """The blocks of a tensor on a device, or of what it is made of."""
    for part in parts_of(tensor) or (tensor,):
        try:
            tag = storage_of(part)._wt
        except (NotImplementedError, RuntimeError):
            continue
        if tag.device >= 0 and isinstance(tag.block, Block):
            yield tag.block


def frames_of(site: Site) -> Frames:
    """A site as the frames of a snapshot, the innermost first."""
    lines = ((site.file, site.line, site.function), *site.stack)
    return [{"filename": file, "line": line, "name": name} for file, line, name in lines if file]


def _check(value: str | None, known: tuple[str, ...], text: str) -> None:
    if value is not None and value not in known:
        raise RuntimeError(text)
