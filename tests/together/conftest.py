"""Several frameworks in one process; without them nothing here is collected, and a warning says so."""

import warnings
from importlib.util import find_spec

FRAMEWORKS = ("torch", "jax", "tensorflow")
MISSING = [name for name in FRAMEWORKS if (found := find_spec(name)) is None or not found.origin]
collect_ignore_glob = ["test_*.py"] if MISSING else []
if MISSING:
    missing = ", ".join(MISSING)
    warnings.warn(f"tests/together is left out, for want of {missing}: `make test-together` runs it", stacklevel=1)
