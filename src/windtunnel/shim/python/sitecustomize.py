"""Python imports this at its start when the folder is on PYTHONPATH: it prepares the emulation, then makes room.

It removes its folder from `sys.path`, so that the program sees the path it would have had, and runs the
`sitecustomize` that it stood in front of.
"""

import os
import sys


def prepare() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    parent = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if sys.version_info < (3, 11):  # noqa: UP036  any Python can be started under `windtunnel run`
        return
    # This very windtunnel, also where the program's Python has another one or none.
    sys.path.insert(0, parent)
    try:
        import windtunnel.shim
    finally:
        sys.path.remove(parent)
    windtunnel.shim.begin()


def make_room() -> None:
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


prepare()
make_room()
