"""Which GPUs of the machine a process sees: CUDA_VISIBLE_DEVICES, as CUDA's driver reads it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from windtunnel.machine.device import Device


def visible(devices: Sequence[Device]) -> list[int]:
    """Numbers of the machine's devices that this process sees, in its own order: up to the first that is not there."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(len(devices)))
    found: list[int] = []
    for word in text.split(","):
        number = _number(word.strip(), devices)
        if number is None or number >= len(devices):
            break
        if number in found:
            return []
        found.append(number)
    return found


def _number(word: str, devices: Sequence[Device]) -> int | None:
    if word.isdigit():
        return int(word)
    if word.startswith("GPU-"):
        matching = [device.physical for device in devices if device.uuid.startswith(word)]
        return matching[0] if len(matching) == 1 else None
    return None
