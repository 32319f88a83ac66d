"""pytest plugin: tests that need GPUs run on emulated ones, or on real ones where there are some.

`pytest --gpus 2xV100` gives the whole run emulated GPUs, as a machine that has them would: from the moment at which
torch is imported, in worker processes and in the Pythons that tests start. Without it, a test that asks by the marker
`gpus` or by a fixture gets fresh GPUs of its own. Torch is not imported unless a test does it or asks for a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

from understudy import launch, settings, shim
from understudy.errors import UsageError
from understudy.trace.operation import Kind

if TYPE_CHECKING:
    from understudy.session import Session
    from understudy.trace.trace import Trace

Backend = Literal["emulated", "real"]

MARKERS = (
    "gpus(n=1, model=None): the test needs n GPUs; emulated ones are of that model and fresh for the test",
    "max_syncs(n): the test fails when the host waits for an emulated GPU more than n times",
)
FIXTURES = ("gpus", "cuda_device", "gpu_trace")
RAN, LACKED = "ran", "lacked"


@dataclass
class Gpus:
    """What this pytest process decided about GPUs.

    `spec` is what the whole run emulates, None when only single tests do. `real` is the number of real GPUs.
    """

    backend: Backend
    spec: str | None
    real: int

    def header(self) -> str:
        """The line at the top of pytest's output."""
        if self.backend == "real":
            return f"understudy: {self.real} real GPU{'s' if self.real != 1 else ''}"
        if self.spec is None:
            return "understudy: emulated GPUs for the tests that ask for them"
        return f"understudy: EMULATED GPUs for all tests (--gpus {self.spec})"


KEY = pytest.StashKey[Gpus]()
SESSION = pytest.StashKey["Session"]()
END = pytest.StashKey[contextlib.ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --gpus and --gpu-backend."""
    group = parser.getgroup("understudy", "GPUs, emulated or real")
    group.addoption("--gpus", metavar="SPEC", help="emulate these GPUs for the whole run: 2, 2xV100, V100,A100")
    group.addoption(
        "--gpu-backend",
        choices=("auto", "emulated", "real"),
        help="real GPUs, emulated ones, or (auto, the default) real ones where there are any",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Decide, and arrange the emulation, before any conftest or test module can look for GPUs."""
    try:
        gpus = _decide(early_config.known_args_namespace)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    early_config.stash[KEY] = gpus
    if gpus.backend == "emulated" and gpus.spec is not None and shim.OPTIONS not in os.environ:
        os.environ.update(launch.environment({"gpus": gpus.spec}, None, os.environ))
        shim.hook({name: functools.partial(_install, name) for name in shim.FRAMEWORKS})


def _decide(arguments: Any) -> Gpus:
    defaults = settings.read()
    spec = arguments.gpus or os.environ.get("UNDERSTUDY_GPUS") or defaults.get("gpus")
    backend = arguments.gpu_backend or os.environ.get("UNDERSTUDY_GPU_BACKEND") or defaults.get("gpu-backend", "auto")
    if backend not in ("auto", "emulated", "real"):
        raise UsageError(f"the GPU backend is auto, emulated or real, not {backend!r}")
    if spec is not None:
        from understudy.gpus import parse

        spec = str(spec)
        parse(spec)
    if shim.OPTIONS in os.environ:  # pytest itself runs under `understudy run`, or is a worker of one that emulates
        return Gpus("emulated", spec or "of understudy run", 0)
    real = 0 if backend == "emulated" else _real_gpus()
    if backend == "auto":
        backend = "real" if real else "emulated"
    return Gpus("real" if backend == "real" else "emulated", spec, real)


def _real_gpus() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def _install(framework: str) -> None:
    from understudy.session import install_from_environment

    install_from_environment(framework)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash.setdefault(KEY, Gpus("emulated", None, 0))  # when no early hook ran: `-p` after the start


def pytest_report_header(config: pytest.Config) -> str:
    """Say what GPUs there are."""
    return config.stash[KEY].header()


def _wanted(item: pytest.Item) -> tuple[int, str | None] | None:
    """How many GPUs of which model a test asks for; None when it does not ask."""
    marker = item.get_closest_marker("gpus")
    if marker is None:
        asks = set(getattr(item, "fixturenames", ())) & set(FIXTURES) or item.get_closest_marker("max_syncs")
        return (1, None) if asks else None

    def read(n: int = 1, model: str | None = None) -> tuple[int, str | None]:
        return n, model

    return read(*marker.args, **marker.kwargs)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more real GPUs than there are; give the others their emulated ones."""
    wanted = _wanted(item)
    gpus = item.config.stash[KEY]
    if wanted is None:
        return
    count, model = wanted
    if gpus.backend == "real":
        if gpus.real < count:
            item.user_properties.append(("gpus", LACKED))
            pytest.skip(f"needs {count} GPUs, there are {gpus.real} real ones; --gpu-backend emulated runs it")
        return
    item.user_properties.append(("gpus", RAN))
    stack = contextlib.ExitStack()
    item.stash[END] = stack
    item.stash[SESSION] = stack.enter_context(_fresh(f"{count}x{model}" if model else str(count)))


@contextlib.contextmanager
def _fresh(spec: str) -> Iterator[Session]:
    """GPUs of a test's own, in this process and in the Pythons that it starts; those of the whole run step aside."""
    from understudy.session import emulate, running

    importlib.import_module("torch")  # with --gpus, this begins the emulation of the whole run
    outer = running()
    if outer is not None:
        outer.end()
    variables = launch.environment({"gpus": spec}, None, os.environ)
    before = {name: os.environ.get(name) for name in variables.keys() | {shim.FOLDER}}
    os.environ.update(variables)
    os.environ.pop(shim.FOLDER, None)
    try:
        with emulate(spec) as session:
            yield session
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
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
    """Hold a test to its `max_syncs`."""
    __tracebackhide__ = True
    yield
    marker = item.get_closest_marker("max_syncs")
    session = item.stash.get(SESSION, None)
    if marker is None or session is None:
        return
    most = marker.args[0] if marker.args else marker.kwargs["n"]
    waits = [record for record in session.trace if record.kind is Kind.SYNCHRONIZE]
    if len(waits) > most:
        lines = "\n".join(f"  {record.site}: {record.signature.name}" for record in waits)
        pytest.fail(f"the host waited {len(waits)} times for a GPU, {most} allowed:\n{lines}", pytrace=False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One line: how many tests ran on emulated GPUs, how many were skipped for want of real ones."""
    said: dict[str, str] = {}  # by test: a test has a report for each of its phases
    for reports in terminalreporter.stats.values():
        for report in reports:
            words = [value for name, value in getattr(report, "user_properties", ()) if name == "gpus"]
            if words:
                said[report.nodeid] = words[0]
    ran, lacked = list(said.values()).count(RAN), list(said.values()).count(LACKED)
    if ran or lacked:
        tests = f"{ran} test{'s' if ran != 1 else ''}"
        terminalreporter.write_line(f"understudy: {tests} on emulated GPUs, {lacked} skipped for want of real ones")


def _session(request: pytest.FixtureRequest) -> Session:
    session: Session | None = request.node.stash.get(SESSION, None)
    if session is None:
        pytest.skip("there is a trace on emulated GPUs only; --gpu-backend emulated runs this")
    return session


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> list[Any]:
    """The GPUs of this test, as torch.device objects: one, or as many as the marker `gpus` asks for."""
    from understudy import torch as us

    wanted = _wanted(request.node) or (1, None)
    return us.require_gpus(wanted[0])


@pytest.fixture
def cuda_device(gpus: list[Any]) -> Any:
    """The first GPU of this test, as a torch.device."""
    return gpus[0]


@pytest.fixture
def gpu_trace(request: pytest.FixtureRequest) -> Trace:
    """What happened on this test's emulated GPUs so far: an `understudy.trace.Trace` that grows as the test runs."""
    return _session(request).trace
