"""An emulation as one object: it composes machine, seam and checks, for `windtunnel run`, pytest and programs."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from windtunnel import described, faults, gpus, hosts, libraries, live, networks, reports, variables
from windtunnel.analysis import memory_remedies, remedies
from windtunnel.checks.fragmentation import fragmented
from windtunnel.cost import measured
from windtunnel.cost.model import CostModel
from windtunnel.departure import ExitHandler
from windtunnel.errors import UsageError, torch_is_missing
from windtunnel.gpus import variation, versions
from windtunnel.gpus.gpu import Gpu
from windtunnel.import_hook import FRAMEWORKS
from windtunnel.judgement import judge
from windtunnel.machine.clock import HostThread
from windtunnel.machine.device import Device
from windtunnel.machine.events import MachineEvents
from windtunnel.machine.exclusive import Turns
from windtunnel.machine.launches import network_band
from windtunnel.machine.machine import Machine
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.host_allocator import HostAllocator
from windtunnel.machine.memory.settings import Settings, parse, text_of
from windtunnel.machine.order import merged
from windtunnel.machine.plan_cache import PlanCache
from windtunnel.options import CHOICES, Options
from windtunnel.ranks.fold import EVERY, Fold
from windtunnel.reports import cell, memory_snapshot, smi
from windtunnel.reports.parts.smi_data import SmiHost, SmiProcess
from windtunnel.seam import foreign_kernels
from windtunnel.seam.host_memory import parse_size
from windtunnel.seam.patching import Patch, Patches, uninterrupted
from windtunnel.seam.seeding import seed_all
from windtunnel.seam.sites import Sites
from windtunnel.trace.finding import Finding
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.version import __version__

if TYPE_CHECKING:
    from windtunnel.seam.signals import Handlers
    from windtunnel.seam.torch.state.history import History
    from windtunnel.seam.torch.state.host_work import HostWork
    from windtunnel.seam.torch.state.leaks import Leaks


class Installed(Protocol):
    """One framework's part of an emulation."""

    def uninstall(self) -> None:
        """Put everything back."""

    def stop_threads(self) -> None:
        """At the end of the process, before that: let no other thread go on."""


class Session:
    """A running (or ended) emulation: its `trace`, its `machine`, and reports and findings made from them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.models: tuple[Gpu, ...] = gpus.parse(options.gpus)
        wanted = options.cuda_version
        given = versions.parse_version(wanted) if wanted else None
        self.cuda_version = given or versions.runtime_cuda(self.models, versions.installed_torch())
        self.driver_cuda = given or versions.driver_cuda(self.models, versions.installed_torch())
        self.trace = Trace()
        self.trace.folder = os.getcwd()
        self.settings = _alloc_settings()
        self.host = hosts.find(options.host or hosts.DEFAULT)
        own = None if options.curves is None else measured.load(options.curves)
        named = options.network
        self.network = None if named is None else networks.find(named, self._key)
        self.machine = build_machine(
            self.models, self.cuda_version, self.trace, self.settings, own, self.host, self.network, self._paces()
        )
        self._devices = list(self.machine.devices)
        for device in self._devices:
            device.driver.overcommitted = options.overcommit
        self.machine.blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
        self._installations: list[Installed] = []
        self._history: History | None = None
        self._leaks: Leaks | None = None
        self._work: HostWork | None = None
        self._patches = Patches()
        self._modules = frozenset(sys.modules)
        self._forgets: list[Callable[[Collection[str]], None]] = [self._patches.forget]
        self._began_outside = False
        self._handlers: Handlers | None = None
        self._host: Callable[[], HostThread] = lambda: self.machine.host
        self._write_facts()

    # ------------------------------------------------------------------ begin and end

    def begin(self) -> None:
        """Install the emulation into PyTorch and NVML.

        Raises:
            InstallError: PyTorch is missing, has already used CUDA, or is already emulated.
        """
        try:
            import_module("torch")  # before the seam: under `windtunnel run` this begins the run's own emulation
            import_module("windtunnel.seam.torch.requirements").require()
            from windtunnel.seam.torch.dispatch.faults import Strikes
            from windtunnel.seam.torch.install import Installation
            from windtunnel.seam.torch.state.state import State
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise torch_is_missing() from None

        self._count_framework("torch")
        sites = Sites(self.trace.sites, self.options.stacks)
        state = State(
            self.machine,
            HostAllocator(self.settings, MachineEvents(self.machine, None)),
            sites,
            self.cuda_version,
            self.options,
        )
        if self.options.faults:
            state.strikes = Strikes(state, faults.parse(self.options.faults, self.options.seed))
        installation = Installation(state)
        self._forgets.append(installation.forget)
        installation.install()
        self._history, self._leaks, self._work = state.history, state.leaks, state.work
        if self.options.memory_history:
            state.history.keep()
        self._installations.append(installation)
        if trial := os.environ.get(variables.TRIAL):
            import_module("windtunnel.seam.torch.trials").begin(trial, self.replace)
        for path in self.options.kernels:
            described.read(path)
        seed_all(self.options.seed)
        self._begin_outside(state.host, sites)

    def attach(self, framework: str) -> None:
        """Install the emulation into "torch", or into "jax", "tensorflow" or "mxnet", which must be imported already.

        Raises:
            InstallError: the framework has already started, or already has GPUs of its own.
        """
        if framework == "torch":
            self.begin()
            return
        self._count_framework(framework)
        self._installations.append(import_module(f"windtunnel.seam.{framework}.install").install(self))
        self._begin_outside(lambda: self.machine.host, Sites(self.trace.sites, self.options.stacks))

    def _count_framework(self, name: str) -> None:
        known = self.trace.facts.setdefault("frameworks", [])
        if name not in known:
            known.append(name)

    def _begin_outside(self, host: Callable[[], HostThread], sites: Sites) -> None:
        """What no framework owns, once: the answers of NVML and CUDA's driver, and the program's clock."""
        if self._began_outside:
            return
        self._began_outside = True
        self._host = host
        from windtunnel.seam import clock, cuda_driver, nvml, signals

        library = nvml.Nvml(self.smi_host)
        self._patches.apply(Patch(*patch) for patch in nvml.patches(library))
        self._patches.apply(cuda_driver.patches(self.machine, self.driver_cuda, library.function))
        if self.options.clock == "virtual":
            self._patches.apply(clock.patches(self.machine, host, sites))
        self._handlers = signals.Handlers()
        self._handlers.begin()
        self._patches.apply(self._handlers.patches())

    def replace(self, patches: Iterable[Patch]) -> None:
        """Replace names of other packages until the end."""
        self._patches.apply(patches)

    def end(self) -> None:
        """Put everything back and complete the trace; what failed on its way is completed by another call."""
        self.uninstall()
        self.complete()

    def uninstall(self) -> None:
        """Put everything back."""
        self._patches.restore()
        if self._handlers is not None:
            self._handlers.end()
            self._handlers = None
        self._began_outside = False
        while self._installations:
            self._installations[-1].uninstall()
            self._installations.pop()

    def stop_threads(self) -> None:
        """The process ends: its other threads, which are daemons, go no further with their GPUs.

        Python stops daemon threads where they next need its lock. Beneath an operator that is inside C++, which ends
        the process then, so they wait for ever at a place of ours. In their last moment they are not to see a machine
        without GPUs either: names stay replaced.
        """
        self.machine.turns.lock.__enter__()
        self._patches = Patches()
        for installation in self._installations:
            installation.stop_threads()

    def forget(self) -> None:
        """After the end, where the process goes on: let nothing keep this emulation alive but who asked for it."""
        modules = sys.modules.keys() - self._modules
        for forget in self._forgets:
            forget(modules)
        self._forgets.clear()

    def complete(self) -> None:
        """Write the totals of the devices into the trace."""
        if self._history is not None:
            self._history.write()
        self.trace.facts.pop("leaks", None)  # what an earlier look found may be free by now
        if self._leaks is not None and (leaks := self._leaks.found()):
            self.trace.facts["leaks"] = leaks
        for device in self.machine.devices:
            while device.frees:
                device.allocator.free(device.frees.popleft())
        self.write_totals()
        self._replay_history()
        self.write_band()
        if self._work is not None:
            self._work.end()
            self.trace.facts["host_work"] = self._work.facts(self._pace())

    @property
    def _key(self) -> str:
        """That of the first GPU, by which its usual network is known."""
        return self.models[0].key if self.models else ""

    def _paces(self) -> list[float]:
        """What multiplies the times of each GPU's kernels, where GPUs of one model differ; empty where they do not."""
        seed, count, given = self.options.jitter, len(self.models), os.environ
        if seed is None:
            return []
        if "RANK" in given and variables.FOLD in given:
            fold = Fold.from_json(given[variables.FOLD])
        else:
            world, per_node = (int(given.get(name) or count or 1) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
            fold = Fold(world, per_node, EVERY)
        return [variation.pace(seed, numbers) for numbers in fold.gpus_of(int(given.get("RANK") or 0), count)]

    def _pace(self) -> float:
        """By what the host that is emulated is slower in plain Python than this machine; 1 where none was named."""
        return 1.0 if self.options.host is None else self.host.python_ns / hosts.python_ns_here()

    @property
    def is_idle(self) -> bool:
        """Whether the process used no GPU: no records of work, and no memory, which alone makes none."""
        taken = (device.allocator.statistics.whole_run().peak_allocated_bytes for device in self.machine.devices)
        own = (device.driver.most_own.asked for device in self.machine.devices)
        return self.trace.is_idle and not any(taken) and not any(own)

    def write_totals(self) -> None:
        """Write the devices' totals as they are at this moment."""
        self.trace.facts["devices"] = [_totals(device) for device in self.machine.devices]
        self.trace.facts["gpus"] = [gpus.describe(device.gpu) for device in self.machine.devices]
        if self.options.jitter is not None:
            self.trace.facts["jitter"] = self.options.jitter
            self.trace.facts["paces"] = [device.cost.pace for device in self.machine.devices]
        streams = [(device.index, stream) for device in self.machine.devices for stream in device.streams]
        self.trace.facts["priorities"] = [[at, one.index, one.priority] for at, one in streams if one.priority]

    def write_band(self) -> None:
        """Write the error band of the kernels so far, all of which it looks at."""
        facts, band = self.trace.facts, self.machine.band()
        facts["band"] = None if band is None else round(band, 3)
        if int(facts.get("nodes", 1)) > 1:
            network = self.network or networks.default_for(self._key)
            facts["network"] = network.describe()
            facts["network_assumed"] = self.network is None
            facts["network_band"] = network_band(self.trace, [device.cost for device in self.machine.devices])

    def settle(self) -> None:
        """Wait for all devices, so that what comes next has nothing to do with what was: between two tests."""
        for device in self.machine.devices:
            if self.machine.concurrent and all(stream.capture is None for stream in device.streams):
                self.machine.synchronize_device(self._host(), device)

    def _replay_history(self) -> None:
        """Where memory was fragmented or ran out and its history was kept: what would have helped."""
        facts = self.trace.facts
        limits = {}
        for index, (device, own) in enumerate(zip(facts["devices"], self.machine.devices, strict=True)):
            if fragmented(device) or device["out_of_memory"]:
                allowed = round(own.allocator.memory_fraction * own.driver.total_bytes)
                limits[index] = min(device["memory_bytes"] - device["context_bytes"], allowed)
        if limits and facts.get("memory_from_start"):
            facts["replays"] = remedies.replays(memory_snapshot.as_dict(self.trace), limits)
            failed = [index for index in limits if facts["devices"][index]["out_of_memory"]]
            found = [memory_remedies.cures(self.trace, index, self.settings, limits[index]) for index in failed]
            facts["cures"] = [cure for cures in found for cure in cures]

    # ------------------------------------------------------------------ what can be said of it

    def findings(self) -> list[Finding]:
        """What the checks find in the trace so far, most severe first."""
        self.complete()
        return judge([self.trace.canonical()])

    def report(self, path: str | Path) -> None:
        """Write a report; the suffix of `path` chooses the format.

        Raises:
            UsageError: no report format has this suffix.
        """
        self.complete()
        trace = self.trace.canonical()
        reports.write(Path(path), trace, judge([trace]))

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        findings = self.findings()
        return cell.render(self.trace.canonical(), findings)

    def smi_host(self) -> SmiHost:
        """The emulated GPUs as nvidia-smi sees them now, this process's memory in use."""
        driver = versions.driver_version(self.driver_cuda)
        devices = []
        for device in self._devices:
            used = device.driver.occupied_bytes + device.driver.reserved_bytes
            shown = used + versions.process_gap_bytes() if used else 0
            made = smi.device_of(device.gpu, device.physical, device.uuid, driver, shown, devices=len(self._devices))
            process = SmiProcess(os.getpid(), sys.executable, used >> 20)
            devices.append(replace(made, processes=(process,) if used else (), xid=device.driver.xid))
        return SmiHost(tuple(devices), driver, ".".join(map(str, self.driver_cuda)))

    def _write_facts(self) -> None:
        facts = self.trace.facts
        facts["options"] = asdict(self.options)
        facts["gpus"] = [gpus.describe(gpu) for gpu in self.models]
        facts["devices"] = []
        facts["cuda_version"] = list(self.cuda_version)
        facts["program"] = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
        facts["host"] = self.host.describe()
        facts["rank"] = int(os.environ.get("RANK", "0") or 0)
        facts["versions"] = _versions()


def refuse_kernels(library: ModuleType) -> None:
    """Let a library that compiles CUDA itself, CuPy or `numba.cuda`, refuse to, until the process ends."""
    Patches().apply(foreign_kernels.MODULES[library.__name__](library))


def build_machine(
    models: tuple[Gpu, ...],
    cuda_version: tuple[int, int],
    trace: Trace,
    settings: Settings,
    own: measured.MeasuredFile | None = None,
    host: hosts.Host | None = None,
    network: networks.Network | None = None,
    paces: Sequence[float] = (),
) -> Machine:
    """A machine of these GPUs, with allocators that follow PYTORCH_CUDA_ALLOC_CONF and curves measured by its owner."""
    machine = Machine(trace, [], turns=Turns(threading.RLock))
    host = host or hosts.find("reference")
    machine.backward_ns, machine.parameter_ns, machine.event_ns = (
        round(1000 * us) for us in (host.backward_us, host.parameter_us, host.event_us)
    )
    agents = iter(range(1, 1 << 62))
    for index, gpu in enumerate(models):
        driver = live.device_memory(index, len(models), gpu.memory_bytes, os.environ.get(variables.FOLDER))
        join = partial(merged, machine.host_order)
        allocator = CachingAllocator(index, driver, settings, MachineEvents(machine, index), join_accesses=join)
        plan_cache = PlanCache(cuda_version)
        cost = CostModel(gpu, cuda_version, own, host.issue, network, paces[index] if paces else 1.0)
        context = versions.context_bytes(gpu, cuda_version)
        device = Device(index, gpu, cost, allocator, driver, plan_cache, lambda: next(agents), context)
        machine.turns.guard(device, allocator, plan_cache)
        machine.devices.append(device)
    return machine


def _alloc_settings() -> Settings:
    """The allocator's settings in the environment; PyTorch says what is wrong with bad ones at CUDA's first use."""
    try:
        return parse(text_of(os.environ))
    except (ValueError, IndexError, RuntimeError):
        return Settings()


@contextmanager
def emulate(gpus: str | int = "2", **options: object) -> Iterator[Session]:
    """Emulate GPUs for the code inside the `with` block, and in the Python processes that it starts.

    Args:
        gpus: a spec such as "2xV100", "V100:2", "A100,H100" or "2".
        options: further fields of `Options`.

    Raises:
        UsageError: an option or a GPU does not exist.
        InstallError: this process has already used CUDA, or an emulation is active.
    """
    session = Session(options_of({"gpus": str(gpus), **options}))
    if session.options.stop_after is not None:
        raise UsageError(
            "stop_after ends the process, so emulate() does not take it: use `windtunnel run --stop-after`"
        )
    with ExitStack() as stack:
        stack.callback(_leave, session)
        atexit.register(stack.close)  # who never leaves it, in a notebook for example
        stack.callback(atexit.unregister, stack.close)
        with uninterrupted():
            for framework in [name for name in FRAMEWORKS if name in sys.modules] or ["torch"]:
                session.attach(framework)
        stack.enter_context(_inherited(session.options))
        yield session


def _leave(session: Session) -> None:
    with uninterrupted():
        session.end()
        session.forget()


def _inherited(options: Options) -> AbstractContextManager[None]:
    """Let child processes that are not forked emulate the same GPUs: `torch.multiprocessing.spawn` and the like."""
    folder = str(Path(__file__).parent / "shim" / "python")
    path = os.environ.get("PYTHONPATH")
    return variables.changed(
        {
            variables.OPTIONS: json.dumps(asdict(options), sort_keys=True),
            "PYTHONPATH": folder if not path else os.pathsep.join([folder, path]),
        }
    )


def options_of(values: Json) -> Options:
    known = {field.name for field in fields(Options)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise UsageError(f"there is no option {unknown[0]!r}: there are {', '.join(sorted(known))}")
    if values.get("no_data") and values.get("host_time") == "measured":
        raise UsageError(
            "no_data and host_time='measured' exclude each other: without data the host skips part of its work"
        )
    factor = values.get("host_factor", 1.0)
    if not 0 < factor < float("inf"):
        raise UsageError(
            f"host_factor cannot be {factor}: it must be a positive number, by which measured host time is multiplied"
        )
    if values.get("stuck_after", 1.0) <= 0:
        raise UsageError(
            f"stuck_after cannot be {values['stuck_after']}: it must be a positive number of seconds, or inf"
        )
    if factor != 1.0 and values.get("host_time") != "measured":
        raise UsageError("host_factor multiplies measured host time: give host_time='measured' with it")
    if values.get("stop_after") is not None and values["stop_after"] < 1:
        raise UsageError(
            f"stop_after cannot be {values['stop_after']}: it must be a number of optimizer steps, 1 or more"
        )
    for name, allowed in CHOICES.items():
        if values.get(name, allowed[0]) not in allowed:
            raise UsageError(f"{name} cannot be {values[name]!r}: it is {' or '.join(map(repr, allowed))}")
    if values.get("host_memory_limit") is not None:
        values["host_memory_limit"] = parse_size(values["host_memory_limit"])
    values["without"] = libraries.require(values.get("without", ()))
    values["kernels"] = described.require(values.get("kernels", ()))
    values["faults"] = tuple(values.get("faults", ()))
    faults.parse(values["faults"])
    return Options(**{**values, "gpus": gpus.absolute(values.get("gpus", Options.gpus))})


def install_from_environment(framework: str = "torch") -> Session | None:
    """Begin what WINDTUNNEL_RUN describes, one session a process, in a framework; None where it describes nothing."""
    text = os.environ.get(variables.OPTIONS)
    if not text:
        return None
    if _RUNNING:
        _RUNNING[0].attach(framework)
        return _RUNNING[0]
    session = Session(options_of(json.loads(text)))
    session.machine.warm = False  # a whole program pays for its CUDA context; a block under `emulate` does not
    session.attach(framework)
    _RUNNING.append(session)
    folder = os.environ.get(variables.FOLDER)
    if folder:
        ExitHandler(session, folder).arrange()
    elif used := os.environ.get(variables.USED):
        session.trace.sink = lambda: _note_use(session.trace, used)
    return session


def _note_use(trace: Trace, folder: str) -> None:
    trace.sink = None
    with suppress(OSError):
        Path(folder, str(os.getpid())).touch()


def running() -> Session | None:
    """The session that `install_from_environment` began in this process."""
    return _RUNNING[0] if _RUNNING else None


_RUNNING: list[Session] = []


def _totals(device: Device) -> dict[str, object]:
    device.drain()
    run = device.allocator.statistics.whole_run()
    upper_bytes, upper_name = device.peak_upper_bound()
    own, most = device.driver.own, device.driver.most_own  # in most runs there is only this or only the allocator's
    return {
        "memory_bytes": device.gpu.memory_bytes,
        "physical": device.physical,
        "peak_allocated_bytes": run.peak_allocated_bytes + most.asked,
        "peak_reserved_bytes": run.peak_reserved_bytes + most.reserved,
        "peak_at_most_bytes": max(upper_bytes, run.peak_allocated_bytes) + most.asked,
        "peak_unsure": upper_name if upper_bytes > run.peak_allocated_bytes else "",
        "peak_band": device.peak_band,
        "allocated_bytes": device.allocator.memory_allocated() + own.asked,
        "reserved_bytes": device.allocator.memory_reserved() + own.reserved,
        "context_bytes": device.context_bytes if device.context else 0,
        "retries": run.retries,
        "out_of_memory": run.out_of_memory,
        "asked": sorted(device.asked),
    }


def _versions() -> dict[str, str]:
    found = {"windtunnel": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return found
