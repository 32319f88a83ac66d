"""pytest plugin: tests that need GPUs run on emulated GPUs, or on real ones if there are any.

`pytest --gpus 2xV100` gives the whole run emulated GPUs, as a machine that has them would: from the moment at which
torch is imported, in worker processes and in Python processes that tests start. Without it, a test that uses the
marker `gpus` or a fixture gets new GPUs of its own. Torch is not imported unless a test imports it or asks for a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from windtunnel.errors import ON_WINDOWS, UsageError, torch_is_missing

if sys.platform == "win32":
    raise pytest.UsageError(f"windtunnel: {ON_WINDOWS}")

from windtunnel import described, faults, launch, libraries, pytest_findings, pytest_tracebacks, settings
from windtunnel.import_hook import FRAMEWORKS, hook
from windtunnel.measure.present import real_gpus
from windtunnel.pytest_findings import Watch
from windtunnel.seam.host_memory import parse_size
from windtunnel.trace.operation import Kind
from windtunnel.trace.units import plural
from windtunnel.variables import FOLDER, OPTIONS, USED, changed

if TYPE_CHECKING:
    import argparse

    from windtunnel.checks._gates import Gate
    from windtunnel.session import Session
    from windtunnel.trace.trace import Trace

Backend = Literal["emulated", "real"]

MARKERS = (
    "gpus(n=1, model=None): the test needs n GPUs; emulated ones are of that model and fresh for the test",
    'fault(name, **where): inject a fault, as in fault("nan", step=2); the test gets emulated GPUs',
    "max_syncs(n): the test fails when the host waits for an emulated GPU more than n times",
)
FIXTURES = ("gpus", "cuda_device", "gpu_trace", "assert_no_findings")
RAN, LACKED = "ran", "lacked"
SPEED = "speed"
LINES = 15  # of a summary


@dataclass
class Gpus:
    """What this pytest process decided about GPUs.

    `spec` is what the whole run emulates, None when only single tests do. `real` is the number of real GPUs. `gates`
    are the findings on which a test fails. `options` are further fields of `options.Options`, for every emulation.
    `used` is a folder in which the processes that tests start say that they used a GPU.
    """

    backend: Backend
    spec: str | None
    real: int
    gates: tuple[Gate, ...] = ()
    options: tuple[tuple[str, object], ...] = ()
    used: str = ""

    def processes(self) -> set[str]:
        """The numbers of the processes that tests started and that used an emulated GPU."""
        return set(os.listdir(self.used)) - {str(os.getpid())} if self.used else set()

    def emulation(self, spec: str) -> dict[str, object]:
        """The fields of `options.Options` for these GPUs."""
        return {"gpus": spec, **dict(self.options)}

    def header(self) -> str:
        """The line at the top of pytest's output."""
        if self.backend == "real":
            return f"windtunnel: {self.real} real GPU{'s' if self.real != 1 else ''}"
        if self.spec is None:
            return "windtunnel: emulated GPUs for the tests that ask for them"
        return f"windtunnel: EMULATED GPUs for all tests (--gpus {self.spec})"


KEY = pytest.StashKey[Gpus]()
SESSION = pytest.StashKey["Session"]()
END = pytest.StashKey[contextlib.ExitStack]()
WATCH = pytest.StashKey[Watch]()
LIBRARIES = pytest.StashKey[list[str]]()
CHILDREN = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("windtunnel", "GPUs, emulated or real")
    group.addoption("--gpus", metavar="SPEC", help="emulate these GPUs for the whole run: 2, 2xV100, V100,A100")
    group.addoption(
        "--gpu-backend",
        choices=("auto", "emulated", "real"),
        help="real GPUs, emulated ones, or (auto, the default) real ones where there are any",
    )
    group.addoption(
        "--gpu-fail-on",
        metavar="CODE[=N],...",
        action="append",
        help="fail each test that has such a finding, or one of a severity (error, warning), more than N times",
    )
    group.addoption(
        "--gpu-findings",
        choices=("correctness", "speed"),
        default="correctness",
        help="show findings of what is wrong (the default), or also of what only costs time or memory",
    )
    group.addoption(
        "--gpu-report",
        metavar="PATH",
        action="append",
        help="write the findings that --gpu-findings shows: .sarif, .json, .md or .txt; may be given several times",
    )
    group.addoption(
        "--host-memory-limit",
        metavar="SIZE",
        help="how much of this machine's memory emulated tensors may take: 8GiB; a test that needs more fails",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Decide, and set up the emulation, before any conftest or test module can look for GPUs."""
    try:
        gpus = _decide(early_config.known_args_namespace)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    early_config.stash[KEY] = gpus
    early_config.stash[LIBRARIES] = []
    if gpus.backend == "emulated" and gpus.spec is not None and OPTIONS not in os.environ:
        os.environ.update(launch.environment(gpus.emulation(gpus.spec), None, os.environ))
        gpus.used = os.environ[USED] = tempfile.mkdtemp(prefix="windtunnel-pytest-")
        hook({name: functools.partial(_install, name) for name in FRAMEWORKS})
        libraries.offer(lambda library: early_config.stash[LIBRARIES].append(str(library)))


def _decide(arguments: argparse.Namespace) -> Gpus:
    defaults = settings.read()
    pytest_findings.require(arguments.gpu_report or ())
    gates = tuple(pytest_findings.gates_of(arguments.gpu_fail_on or _setting("fail-on", defaults)))
    limit = arguments.host_memory_limit or _setting("host-memory-limit", defaults)
    options: tuple[tuple[str, object], ...] = () if limit is None else (("host_memory_limit", parse_size(limit)),)
    if kernels := _setting("kernels", defaults):
        options += (("kernels", described.require(kernels if isinstance(kernels, list) else [kernels])),)
    spec = arguments.gpus or os.environ.get("WINDTUNNEL_GPUS") or defaults.get("gpus")
    backend = arguments.gpu_backend or os.environ.get("WINDTUNNEL_GPU_BACKEND") or defaults.get("gpu-backend", "auto")
    if backend not in ("auto", "emulated", "real"):
        raise UsageError(f"the GPU backend is auto, emulated or real, not {backend!r}")
    if spec is not None:
        from windtunnel.gpus import absolute, parse

        spec = absolute(str(spec))
        parse(spec)
    if OPTIONS in os.environ:  # pytest itself runs under `windtunnel run`, or is a worker of one that emulates
        return Gpus("emulated", spec or "of windtunnel run", 0, gates, options)
    real = 0 if backend == "emulated" else real_gpus()
    if backend == "auto":
        backend = "real" if real else "emulated"
    return Gpus("real" if backend == "real" else "emulated", spec, real, gates, options)


def _setting(name: str, defaults: dict[str, object]) -> Any:
    return os.environ.get(settings.variable(name)) or defaults.get(name)


def _install(framework: str) -> None:
    from windtunnel.session import install_from_environment

    install_from_environment(framework)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash.setdefault(KEY, Gpus("emulated", None, 0))  # when no early hook ran: `-p` after the start


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder of the processes that tests started."""
    if KEY in config.stash and config.stash[KEY].used:
        shutil.rmtree(config.stash[KEY].used, ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str:
    """Say what GPUs there are."""
    return config.stash[KEY].header()


def _wanted(item: pytest.Item) -> tuple[int, str | None] | None:
    """How many GPUs of which model a test asks for; None when it does not ask."""
    marker = item.get_closest_marker("gpus")
    if marker is None:
        asks = _our_fixtures(item) or item.get_closest_marker("max_syncs") or item.get_closest_marker("fault")
        return (1, None) if asks else None

    n, model = _arguments(marker, {"n": 1, "model": None})
    if type(n) is not int or n < 0 or not isinstance(model, str | None):
        pytest.fail(f'{_written(marker)} is not of the form gpus(2, model="V100")', pytrace=False)
    return n, model


def _arguments(marker: pytest.Mark, defaults: dict[str, object]) -> list[object]:
    """A marker's arguments by position or name; the test fails where they do not fit."""
    names = list(defaults)
    given = {**dict(zip(names, marker.args, strict=False)), **marker.kwargs}
    if len(marker.args) > len(names) or len(given) < len(marker.args) + len(marker.kwargs) or given.keys() - defaults:
        pytest.fail(f"{_written(marker)} takes {' and '.join(names)}", pytrace=False)
    return list({**defaults, **given}.values())


def _written(marker: pytest.Mark) -> str:
    """A marker as it stands in the source."""
    arguments = [repr(value) for value in marker.args] + [f"{name}={value!r}" for name, value in marker.kwargs.items()]
    return f"@pytest.mark.{marker.name}({', '.join(arguments)})"


def _our_fixtures(item: pytest.Item) -> list[str]:
    """Which of our fixtures a test uses: not a parameter or a fixture of the suite's own that has the same name."""
    found = getattr(item, "_fixtureinfo", None)
    definitions = getattr(found, "name2fixturedefs", {})
    return [name for name in FIXTURES if name in definitions and definitions[name][-1].func.__module__ == __name__]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more real GPUs than there are; give the others their emulated ones."""
    wanted = _wanted(item)
    gpus = item.config.stash[KEY]
    if wanted is None:
        item.stash[CHILDREN] = gpus.processes()
        _watch(item, _running())
        return
    count, model = wanted
    if gpus.backend == "real":
        if item.get_closest_marker("fault"):
            item.user_properties.append(("gpus", LACKED))
            pytest.skip("a fault on purpose needs emulated GPUs; --gpu-backend emulated runs it")
        if gpus.real < count:
            item.user_properties.append(("gpus", LACKED))
            pytest.skip(f"needs {count} GPUs, there are {gpus.real} real ones; --gpu-backend emulated runs it")
        return
    item.user_properties.append(("gpus", RAN))
    stack = contextlib.ExitStack()
    item.stash[END] = stack
    refusal = ""
    try:
        spec = f"{count}x{model}" if model else str(count)
        item.stash[SESSION] = stack.enter_context(_fresh(gpus.emulation(spec) | _faults(item)))
    except UsageError as error:
        refusal = str(error)
    if refusal:
        pytest.fail(f"this test's GPUs cannot be emulated: {refusal}", pytrace=False)
    _watch(item, item.stash[SESSION])


def _faults(item: pytest.Item) -> dict[str, object]:
    """The faults to inject into a test, by its markers: the nearest comes last."""
    found = []
    for marker in reversed(list(item.iter_markers("fault"))):
        if not marker.args or not isinstance(marker.args[0], str) or len(marker.args) > 1:
            pytest.fail(f'{_written(marker)} is not of the form fault("nan", step=2)', pytrace=False)
        found.append(faults.described({"name": marker.args[0], **marker.kwargs}))
    return {"faults": tuple(found)} if found else {}


def _watch(item: pytest.Item, session: Session | None) -> None:
    if session is not None:
        session.settle()
    speed = item.config.getoption("gpu_findings") == SPEED
    item.stash[WATCH] = Watch(session, 0 if session is None else len(session.trace), speed=speed)


def _running() -> Session | None:
    """The session of the whole run, once torch has been imported; nothing is imported to find out."""
    session = sys.modules.get("windtunnel.session")
    return None if session is None else session.running()


@contextlib.contextmanager
def _fresh(options: dict[str, object]) -> Iterator[Session]:
    """GPUs of a test's own, in this process and in the Pythons that it starts; those of the whole run step aside."""
    from windtunnel.session import emulate, running

    try:
        importlib.import_module("torch")  # with --gpus, this begins the emulation of the whole run
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise torch_is_missing() from None
    outer = running()
    if outer is not None:
        outer.end()
    variables = launch.environment(options, None, os.environ)
    try:
        with changed({**variables, FOLDER: None}), emulate(**options) as session:  # type: ignore[arg-type]
            yield session
    finally:
        if outer is not None:
            outer.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Take the test's GPUs away once its fixtures are done with them."""
    try:
        yield
    finally:
        stack = item.stash.get(END, None)
        if stack is not None:
            stack.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keep a test's findings, and hold it to its `max_syncs` and to the gates."""
    watch = item.stash.get(WATCH, None)
    if watch is None:
        yield
        return
    try:
        with pytest_findings.shown_when_failing(item, watch, _running):
            yield
    finally:
        _count(item, watch)
    _hold_to_max_syncs(item)
    complaint = pytest_findings.complaint(item.config.stash[KEY].gates, watch.found)
    if complaint:
        pytest.fail(f"this test has findings not allowed by --gpu-fail-on\n{complaint}", pytrace=False)


def _developed(config: pytest.Config) -> bool:
    """Whether these are the tests of windtunnel's own checkout, whose developers want its frames."""
    return Path(__file__).parents[2] == config.rootpath


def _count(item: pytest.Item, watch: Watch) -> None:
    """A test that did not ask for GPUs used those of the whole run, itself or in a process that it started."""
    if item.stash.get(SESSION, None) is not None:
        return
    session = watch.session or _running()
    before: set[str] = item.stash.get(CHILDREN, set())
    children = item.config.stash[KEY].processes() - before
    if children or (session is not None and len(session.trace) > watch.first):
        item.user_properties.append(("gpus", RAN))


def _hold_to_max_syncs(item: pytest.Item) -> None:
    marker = item.get_closest_marker("max_syncs")
    session = item.stash.get(SESSION, None)
    if marker is None or session is None:
        return
    (most,) = _arguments(marker, {"n": None})
    if type(most) is not int or most < 0:
        pytest.fail(f"{_written(marker)} is not of the form max_syncs(1)", pytrace=False)
    waits = [record for record in session.trace if record.kind is Kind.SYNCHRONIZE]
    if len(waits) > most:
        counts = Counter(f"{record.site}: {record.signature.name}" for record in waits)
        lines = "\n".join(f"  {line}" + (f" ({times}×)" if times > 1 else "") for line, times in counts.items())
        pytest.fail(f"the host waited {len(waits)} times for a GPU, {most} allowed:\n{lines}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send a test's findings along with the report of its body; leave our own frames out of its traceback."""
    if call.excinfo is not None and not item.config.getoption("fulltrace") and not _developed(item.config):
        pytest_tracebacks.shorten(call.excinfo.value)
    report = yield
    watch = item.stash.get(WATCH, None)
    if call.when == "call" and watch is not None and watch.found:
        setattr(report, pytest_findings.ATTRIBUTE, pytest_findings.pack(watch.found))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many tests ran on emulated GPUs, how many were skipped because real GPUs are missing, and what was found."""
    said: dict[str, str] = {}  # by test: a test has a report for each of its phases
    collected = pytest_findings.Collected(config.getoption("gpu_findings") == SPEED)
    for reports in terminalreporter.stats.values():
        for report in reports:
            collected.add(report)
            words = [value for name, value in getattr(report, "user_properties", ()) if name == "gpus"]
            if words:
                said[report.nodeid] = words[0]
    ran, lacked = list(said.values()).count(RAN), list(said.values()).count(LACKED)
    lines = []
    if ran or lacked:
        counts = f"windtunnel: {plural(ran, 'test')} on emulated GPUs, {lacked} skipped (no real GPU)"
        lines.append(counts + collected.hidden())
    lines += [f"windtunnel: {libraries.sentence(library)}" for library in config.stash.get(LIBRARIES, [])]
    for line in [*lines, *collected.lines(LINES - len(lines))]:
        terminalreporter.write_line(line)
    collected.write(config.getoption("gpu_report") or (), {"tests": ran})


def _session(request: pytest.FixtureRequest) -> Session:
    session: Session | None = request.node.stash.get(SESSION, None)
    if session is None:
        pytest.skip("there is a trace on emulated GPUs only; --gpu-backend emulated runs this")
    return session


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> list[object]:
    """The GPUs of this test, as torch.device objects: one, or as many as the marker `gpus` asks for."""
    from windtunnel import torch as wt

    wanted = _wanted(request.node) or (1, None)
    return [*wt.require_gpus(wanted[0])]


@pytest.fixture
def cuda_device(gpus: list[object]) -> object:
    """The first GPU of this test, as a torch.device."""
    return gpus[0]


@pytest.fixture
def gpu_trace(request: pytest.FixtureRequest) -> Trace:
    """What happened on this test's emulated GPUs so far: a `windtunnel.trace.Trace` that grows as the test runs."""
    return _session(request).trace


@pytest.fixture
def assert_no_findings(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that fails the test when the checks have found something in it so far: `assert_no_findings()`.

    Its arguments are gates as of `--fail-on`: "unsynchronized-access", "host-sync=3", "warning". Without any, no error
    and no warning is allowed. On real GPUs nothing is recorded while a test runs, so it passes, with a warning.
    """
    watch: Watch | None = request.node.stash.get(WATCH, None)

    def check(*codes: str) -> None:
        __tracebackhide__ = True
        if watch is None:
            warnings.warn("on real GPUs a test's work is not recorded, so nothing was checked", stacklevel=2)
            return
        complaint = pytest_findings.complaint(
            pytest_findings.gates_of(codes or pytest_findings.GRAVE), watch.findings(None)
        )
        if complaint:
            pytest.fail(complaint)

    return check
