"""What is said where a library's own binary for GPUs ends a program."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from windtunnel import libraries

NVJPEG = "decode_jpegs_cuda: torchvision not compiled with nvJPEG support"
NO_LIBRARY = "Could not load this library: libtorchcodec_image.so"
ERRORS = [
    ("kernels/load.py", "ImportError('libcublas.so.13: cannot open shared object file')", "binary for a GPU"),
    ("kernels/load.py", "ValueError('could not verify publisher trust status')", "neither downloads nor runs: use"),
    ("torchvision/_meta.py", "RuntimeError('operator torchvision::nms does not exist')", "build for the CPU"),
    ("torchvision/io/image.py", f"RuntimeError({NVJPEG!r})", "decode on the CPU and copy the images"),
    ("torchcodec/_core/ops.py", f"OSError({NO_LIBRARY!r})", "build for the CPU"),
    ("torchcodec/_core/ops.py", "RuntimeError('Unsupported device: cuda')", "decode on the CPU and copy the frames"),
    ("torchvision/io/image.py", "RuntimeError('no such file')", ""),
    ("kernels/layer/layer.py", "RuntimeError('sizes do not match')", ""),
    ("mine/load.py", "ImportError('libcublas.so.13')", ""),
]  # fmt: skip


@pytest.mark.parametrize("way", ["alone", "as a cause", "beside another"])
@pytest.mark.parametrize(("file", "error", "said"), ERRORS)
def test_an_error_of_a_binary_has_a_sentence(tmp_path: Path, file: str, error: str, said: str, way: str) -> None:
    place = tmp_path / "site-packages" / file
    place.parent.mkdir(parents=True)
    place.write_text(f"def load():\n    raise {error}\n")
    spec = importlib.util.spec_from_file_location("loaded_for_a_test", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    caught: BaseException | None = None
    try:
        try:
            module.load()
        except (ImportError, OSError, RuntimeError, ValueError) as inner:
            if way == "alone":
                raise
            raise ModuleNotFoundError("Could not import module") from (inner if way == "as a cause" else None)
    except (ImportError, OSError, RuntimeError, ValueError) as outer:
        caught = outer
    assert caught is not None
    found = libraries.explained(caught)
    assert said in found
    assert bool(found) == bool(said)
    assert "loaded_for_a_test" not in sys.modules
