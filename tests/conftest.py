"""What holds for every test."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

# Tests run in several processes, which share the cores already; threads of one that wait for the other's spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests start thousands of Pythons, each of which would compile windtunnel anew, and PyTorch where nothing compiled it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what it runs in the background with Ctrl-C ignored, and `nohup` with hang-ups, which children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Collecting makes a million objects, all of which stay: looks for garbage among them took a sixth of it.
gc.disable()

FIRST = (
    "test_first_screen", "test_folding", "test_programs", "test_cluster_command", "test_pages", "test_nodata_ranks",
    "test_determinism", "test_emulated_run", "test_recovery", "test_many_machines", "test_plan_clusters",
)  # fmt: skip
"""Files of minutes: begun last, each would leave the other processors idle at the end."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, each takes a file after the other, those of most work first."""
    if hasattr(config, "workerinput"):
        sizes, places = Counter(item.path for item in items), {name: place for place, name in enumerate(FIRST)}
        items.sort(key=lambda item: (places.get(item.path.stem, len(FIRST)), -sizes[item.path], item.path))


@pytest.fixture(autouse=True)
def _restored_environment() -> Iterator[None]:
    """What a test sets is no other test's: CUBLAS_WORKSPACE_CONFIG, for one, is the size of a workspace."""
    before = dict(os.environ)
    yield
    for name in [name for name, value in os.environ.items() if before.get(name) != value]:
        del os.environ[name]
    os.environ.update(before)


MODULES = 300
"""So many modules that tests have imported are set apart, too."""
_apart = 0


def pytest_collection_finish() -> None:
    """Set modules and tests apart, through which every collection and every look for living objects went.

    An emulation makes thousands of objects that last as long as it does, which is what a collection every 700 of them
    looks at: a sixth of a test's time.
    """
    _set_apart()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """Set apart what tests import: PyTorch's compiler alone makes each look three times as long."""
    if len(sys.modules) > _apart + MODULES:
        _set_apart()


def _set_apart() -> None:
    global _apart
    _apart = len(sys.modules)
    gc.collect()
    gc.freeze()
