"""`torch.cuda.tunable`: its switches keep what they are set to, and there is nothing to tune on an emulated GPU.

Defaults are those of aten/src/ATen/cuda/tunable/Tunable.h.
"""

from __future__ import annotations

from pathlib import Path

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State

VALIDATORS = (("PT_VERSION", torch.__version__.partition("+")[0]),)
DEFAULTS: dict[str, bool | int | str] = {
    "enabled": False,
    "tuning": True,
    "record_untuned": False,
    "max_tuning_duration": 30,
    "max_tuning_iterations": 100,
    "filename": "tunableop_results.csv",
    "rotating_buffer_size": 0,
}


def patches(state: State) -> list[Patch]:
    """What `torch/cuda/tunable.py` calls."""
    values = dict(DEFAULTS)

    def setting(name: str) -> object:
        def put(value: bool | int | str) -> None:
            values[name] = value

        return put

    def set_filename(filename: str, insert_device_ordinal: bool = False) -> None:
        stem, dot, ending = filename.rpartition(".")
        number = str(state.local.device) if insert_device_ordinal else ""
        values["filename"] = f"{stem}{number}{dot}{ending}" if dot else f"{filename}{number}"

    def write_file(filename: str = "") -> bool:
        lines = [f"Validator,{name},{value}\n" for name, value in VALIDATORS]
        Path(filename or str(values["filename"])).write_text("".join(lines))
        return True

    functions: dict[str, object] = {
        "enable": setting("enabled"),
        "is_enabled": lambda: values["enabled"],
        "tuning_enable": setting("tuning"),
        "tuning_is_enabled": lambda: values["tuning"],
        "record_untuned_enable": setting("record_untuned"),
        "record_untuned_is_enabled": lambda: values["record_untuned"],
        "set_filename": set_filename,
        "get_results": lambda: (),
        "get_validators": lambda: VALIDATORS,
        "read_file": lambda filename: False,
        "write_file": write_file,
        "write_file_on_exit": setting("written_at_exit"),
        "set_numerical_check_tolerances": lambda enable, atol, rtol: None,
    }
    for name in ("max_tuning_duration", "max_tuning_iterations", "rotating_buffer_size"):
        functions[f"set_{name}"] = setting(name)
    for name in ("filename", "max_tuning_duration", "max_tuning_iterations", "rotating_buffer_size"):
        functions[f"get_{name}"] = lambda name=name: values[name]
    return [Patch(torch._C, f"_cuda_tunableop_{name}", function) for name, function in functions.items()]
