"""Calls of CUDA's libraries in host code, which the pass over device code need not know: clang reads past them."""

from __future__ import annotations

import re

LIBRARIES = r"(?:cublas|cudnn|cufft|cusparse|cusolver|curand|nccl|nvml|nvtx)"
UNDECLARED = re.compile(rf"error: use of undeclared identifier '({LIBRARIES}\w+)'", re.IGNORECASE)
ANYTHING = "struct windtunnel_anything { template <typename T> operator T() const; };\n"


def declarations(errors: str) -> dict[str, str]:
    """What clang misses of the libraries, by name: functions of any arguments, and constants."""
    return {
        name: f"extern windtunnel_anything {name};\n"
        if name.isupper()
        else f"template <typename... T> windtunnel_anything {name}(T &&...);\n"
        for name in UNDECLARED.findall(errors)
    }
