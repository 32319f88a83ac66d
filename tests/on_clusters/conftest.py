"""Plans on clusters; without Dask and Ray nothing here is collected, and a warning says so."""

import warnings
from importlib.util import find_spec

MISSING = [name for name in ("joblib", "distributed", "ray") if find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []
if MISSING:
    warnings.warn(
        f"tests/on_clusters is left out, for want of {', '.join(MISSING)}: `make test-plan-backends` runs it",
        stacklevel=1,
    )
