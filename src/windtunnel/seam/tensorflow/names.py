"""Device names of TensorFlow: GPU i is shown where logical CPU i + 1 computes."""

from __future__ import annotations

import re

_GPU = re.compile(r"(?P<front>^|[/:])(?:device:)?gpu(?::(?P<index>\d+|\*))?$", re.IGNORECASE)
_CPU = re.compile(r"(?P<front>^|[/:])(?:device:)?cpu:(?P<index>[1-9]\d*)$", re.IGNORECASE)


def to_cpu(name: str) -> str:
    """The device that computes for `name`: ".../device:GPU:1" gives ".../device:CPU:2"; other names stay."""

    def replace(match: re.Match[str]) -> str:
        index = match["index"]
        number = 1 if index in (None, "*") else int(index) + 1
        return f"{match['front']}{_kind(match['front'])}CPU:{number}"

    return _GPU.sub(replace, name)


def to_gpu(name: str) -> str:
    """The name that the program sees: ".../device:CPU:2" gives ".../device:GPU:1"; CPU:0 stays."""
    return _CPU.sub(lambda match: f"{match['front']}{_kind(match['front'])}GPU:{int(match['index']) - 1}", name)


def _kind(front: str) -> str:
    return "device:" if front in ("", "/") else ""


def gpu_index(name: str) -> int:
    """The GPU behind a raw device name ("...CPU:2" is GPU 1), -1 for the host or for no name."""
    match = _CPU.search(name or "")
    return int(match["index"]) - 1 if match else -1
