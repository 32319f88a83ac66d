"""Says which frameworks' tests were left out, and how to run them."""

from importlib.util import find_spec

FRAMEWORKS = ("jax", "tensorflow", "mxnet")


def is_installed(name):
    """Whether a package is there; the folder of its tests, in which Python sees a package without files, is none."""
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


def pytest_terminal_summary(terminalreporter):
    missing = [name for name in FRAMEWORKS if not is_installed(name)]
    if missing:
        commands = ", ".join(f"make test-{name}" for name in missing)
        terminalreporter.write_line(f"Not installed here, so their tests were not collected: {commands}")
