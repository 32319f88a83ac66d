"""What is right of the seam works without any framework, and importing windtunnel is cheap."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "jax", "tensorflow", "mxnet")
BLOCK = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise AssertionError(f"{{name}} is imported")
        return None

sys.meta_path.insert(0, Blocked())
"""
IMPORT_ALL = """
import importlib, pkgutil
package = importlib.import_module("windtunnel.{layer}")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("layer", ["machine", "checks", "reports", "cost", "gpus", "trace", "analysis", "cli"])
def test_a_layer_needs_no_framework(layer: str) -> None:
    done = python(BLOCK.format(blocked=FRAMEWORKS) + IMPORT_ALL.format(layer=layer))
    assert done.returncode == 0, done.stderr


def test_importing_windtunnel_takes_little_time_and_no_framework() -> None:
    code = "import sys, time; t = time.process_time(); import windtunnel; print(time.process_time() - t, *sys.modules)"
    fastest = 9.0
    for _ in range(5):
        seconds, *modules = python(code).stdout.split()
        assert not {"torch", "jax", "tensorflow", "mxnet", "numpy"} & set(modules)
        fastest = min(fastest, float(seconds))
    assert fastest < 0.15
