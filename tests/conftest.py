"""What holds for every test."""

import gc
import os
import signal

# Tests run in several processes, which share the cores already; threads of one that wait for the other's spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests start thousands of Pythons, each of which would compile windtunnel anew, and PyTorch where nothing compiled it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what it runs in the background with Ctrl-C ignored, and `nohup` with hang-ups, which children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Set modules and tests apart, through which every collection and every look for living objects went.

    An emulation makes thousands of objects that last as long as it does, which is what a collection every 700 of them
    looks at: a sixth of a test's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
