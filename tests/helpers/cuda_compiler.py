"""What tests of CUDA C++ do where there is no compiler: they are left out, and a warning says so."""

import warnings
from importlib.util import find_spec


def left_out(folder: str) -> list[str]:
    """The files of a folder that pytest must not collect, for its `collect_ignore_glob`."""
    if find_spec("ziglang") and find_spec("llvmlite"):
        return []
    warnings.warn(f"{folder} is left out, for want of clang and llvmlite: `make test-cuda` runs it", stacklevel=2)
    return ["test_*.py"]
