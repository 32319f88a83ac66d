"""Triton kernels on emulated GPUs; without Triton nothing here is collected, and a warning says so."""

import warnings
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]
if collect_ignore_glob:
    warnings.warn("tests/on_triton is left out, for want of triton: `make test-compile` runs it", stacklevel=1)
