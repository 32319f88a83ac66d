"""Checkpoints on disk: a folder of safetensors and JSON files that exists completely or not at all.

A folder is written under a temporary name, all its files and the folder itself are fsynced, and then it is renamed.
`state.json` holds the SHA-256 of every file and of itself, so a damaged checkpoint is refused and the previous one
used.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import warnings
from collections.abc import Callable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from windtunnel import torch as wt
from windtunnel.errors import FileFormatError, InternalError, UsageError

FORMAT = "windtunnel-checkpoint-1"
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DEEPEST = 100
"""How deeply a checkpoint's lists and dicts may be nested; much deeper ones could not be read as JSON."""
UNKEPT_TENSORS: dict[str, Callable[[torch.Tensor], bool]] = {
    "tensor without data": lambda tensor: tensor.is_meta,
    "nested tensor": lambda tensor: tensor.is_nested,
    "quantized tensor": lambda tensor: tensor.is_quantized,
    "sparse tensor": lambda tensor: tensor.layout != torch.strided,
}
STATE, MODEL, REST = "state.json", "model.safetensors", "training.safetensors"


class Encoder:
    """Turns nested data into JSON. Tensors are stored apart, under their path; one that occurs twice is stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    def encode(self, value: object, path: str, depth: int = 0) -> object:
        """`value` as JSON. Raises UsageError if it contains something that only pickle could store."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value, path)
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if depth == DEEPEST:
            raise UsageError(
                f"a checkpoint cannot hold {path[:80]}...: it is nested {DEEPEST} levels deep, or holds itself."
            )
        deeper = depth + 1
        if isinstance(value, Mapping):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: self.encode(item, f"{path}.{key}", deeper) for key, item in value.items()}
            pairs = [
                [self.encode(key, path, deeper), self.encode(item, f"{path}.{key}", deeper)]
                for key, item in value.items()
            ]
            return {"$dict": pairs}
        if isinstance(value, list | tuple):
            items = [self.encode(item, f"{path}.{index}", deeper) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy number; a longdouble is its own item
            return self.encode(value.item(), path, deeper)
        raise _unkept(path, type(value).__name__)

    def _encode_tensor(self, value: torch.Tensor, path: str) -> object:
        kind = next((kind for kind, meets in UNKEPT_TENSORS.items() if meets(value)), None)
        if kind is not None:
            raise _unkept(path, kind)
        if value.dtype == torch.complex128:  # safetensors has none
            return {"$complex": self._put_aside(torch.view_as_real(value.detach().resolve_conj()), path)}
        return {"$tensor": self._put_aside(value, path)}

    def _put_aside(self, tensor: torch.Tensor, path: str) -> str:
        """The name of a tensor: its path, numbered if another has the same path, as in {"a.b": x, "a": {"b": y}}."""
        name = self._names.get(id(tensor))
        if name is None:
            path = path.encode("utf-8", "backslashreplace").decode()  # safetensors keeps nothing else
            numbered = (f"{path}#{number}" for number in count(2))
            name = self._names[id(tensor)] = next(n for n in chain([path], numbered) if n not in self.tensors)
            self.tensors[name] = tensor
        return name


def _unkept(path: str, kind: str) -> UsageError:
    return UsageError(
        f"a checkpoint cannot hold {path}, a {kind}: it keeps numbers, strings, lists, dicts and dense tensors."
    )


def decode(value: object, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The inverse of `Encoder.encode`."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, item),) = value.items()
        if key == "$tensor":
            return tensors[item]
        if key == "$complex":
            return torch.view_as_complex(tensors[item])
        if key == "$tuple":
            return tuple(decode(part, tensors) for part in item)
        if key == "$dict":
            return {decode(name, tensors): decode(part, tensors) for name, part in item}
        if key == "$float":
            return float(item)
        if key == "$bytes":
            return base64.b64decode(item)
    return {key: decode(item, tensors) for key, item in value.items()}


def bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor's elements, read as integers of their size, modulo 2**64: a scalar on the tensor's device."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


class Snapshot:
    """The current state: every tensor is copied to host memory, from GPUs without making the host wait.

    The `bit_sum` of a tensor is computed on its device, in order with the step that produced the tensor. `wait`
    compares the sums of tensors on GPUs with the copies, and reading the checkpoint compares all sums with the file's
    content.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        model, rest = Encoder(), Encoder()
        self.json = {
            "model": model.encode(dict(state["model"]), "model"),
            "rest": rest.encode({key: value for key, value in state.items() if key != "model"}, "rest"),
        }
        self._events: dict[torch.device, torch.Event] = {}
        self._arriving: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._arrived: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._sums: dict[int, int] = {}  # by the identity of the copy
        self.model = {name.removeprefix("model."): self._to_host(tensor) for name, tensor in model.tensors.items()}
        self.rest = {name: self._to_host(tensor) for name, tensor in rest.tensors.items()}
        for device, pairs in self._arriving.items():
            sums = torch.stack([there for _, there in pairs])
            self._arrived += zip((host for host, _ in pairs), self._pinned(sums), strict=True)
            self._events[device] = wt.recorded_event(device)
        self._arriving.clear()

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if tensor.device.type != "cuda":
            host = tensor.contiguous().clone()
            self._sums[id(host)] = int(bit_sum(tensor))
            return host
        host = self._pinned(tensor)
        self._arriving.setdefault(tensor.device, []).append((host, bit_sum(tensor)))
        return host

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in page-locked memory, on its way; a rehearsal without data replaces this."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def synchronize(self) -> None:
        """Wait for the copies."""
        for event in self._events.values():
            event.synchronize()

    def wait(self) -> None:
        """Wait for the copies. Raises InternalError if one differs from what the GPU held."""
        self.synchronize()
        for host, there in self._arrived:
            if int(bit_sum(host)) != int(there):
                names = [name for name, tensor in (self.model | self.rest).items() if tensor is host]
                raise InternalError(
                    f"nothing was saved: the copy of {names[0]} in host memory is not what the GPU held."
                )
            self._sums[id(host)] = int(there)
        self._arrived.clear()

    def sums(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """The `bit_sum` of each tensor of `model` or `rest` by name, as the step left it; valid after `wait`."""
        return {name: self._sums[id(tensor)] for name, tensor in tensors.items()}


def write_checkpoint(folder: Path, snapshot: Snapshot, metrics: Mapping[str, float] | None = None) -> None:
    """Write `snapshot` to `folder`, atomically, with the `metrics` of its epoch. An existing folder is replaced."""
    snapshot.wait()
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".draft-{folder.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir()
        save_file(snapshot.model, draft / MODEL)
        save_file(snapshot.rest, draft / REST)
        digests = {name: _digest(draft / name) for name in (MODEL, REST)}
        content: dict[str, object] = {"format": FORMAT, "files": digests}
        content["sums"] = {MODEL: snapshot.sums(snapshot.model), REST: snapshot.sums(snapshot.rest)}
        content["metrics"] = {name: value for name, value in (metrics or {}).items() if math.isfinite(value)}
        content["state"] = snapshot.json
        content["sha256"] = _sha256(_canonical(content))
        (draft / STATE).write_bytes(_canonical(content))
        for path in (draft / MODEL, draft / REST, draft / STATE, draft):
            _sync(path)
        remove_folder(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # where there was an error, such as a full disk
    _sync(folder.parent)


def read_checkpoint(folder: str | Path) -> dict[str, Any]:
    """The state saved in `folder`, with all tensors on the CPU. Raises FileFormatError if it is damaged."""
    folder = Path(folder)
    content = read_state(folder)
    try:
        for name, digest in content["files"].items():
            if _digest(folder / name) != digest:
                raise FileFormatError(f"the checkpoint {folder} is damaged: {name} is not what was written.")
        files = {name: load_file(folder / name) for name in (MODEL, REST)}
    except (OSError, SafetensorError) as error:
        raise FileFormatError(f"the checkpoint {folder} is damaged or incomplete: {error}.") from error
    for name, sums in content.get("sums", {}).items():  # older checkpoints have none
        for key, tensor in files[name].items():
            if int(bit_sum(tensor)) != sums.get(key):
                raise FileFormatError(f"the checkpoint {folder} is damaged: {key} in {name} is not what was trained.")
    state, rest = content["state"], files[REST]
    model = {f"model.{name}": tensor for name, tensor in files[MODEL].items()}
    return {"model": decode(state["model"], model)} | dict(decode(state["rest"], rest))


def read_state(folder: Path) -> dict[str, Any]:
    """The content of `state.json`: a checkpoint without its tensors. Raises FileFormatError if it is damaged."""
    try:
        content = json.loads(read_regular(folder / STATE))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else content
            raise FileFormatError(f"{folder} is not a checkpoint of this version: its format is {found!r:.80}.")
        claimed = content.pop("sha256", None)
        if claimed != _sha256(_canonical(content)):
            raise FileFormatError(f"the checkpoint {folder} is damaged: {STATE} is not what was written.")
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"the checkpoint {folder} is damaged or incomplete: {error}.") from error
    return content


def _canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=False, separators=(",", ":"), allow_nan=False).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_regular(path: Path) -> bytes:
    """The content of a file. Raises OSError if it cannot be read, or is a pipe or a device, which may never end."""
    _require_regular(path)
    return path.read_bytes()


def _require_regular(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def _digest(path: Path) -> dict[str, object]:
    _require_regular(path)
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size_bytes": path.stat().st_size}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_small(path: Path, content: object) -> None:
    """Replace a small JSON file atomically."""
    draft = path.with_name(f".draft-{path.name}-{os.getpid()}")
    try:
        draft.write_bytes(_canonical(content))
        _sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


def remove_folder(folder: Path) -> None:
    """Delete a checkpoint so that no part of it can be mistaken for a complete one."""
    if not folder.exists():
        return
    trash = folder.with_name(f".trash-{folder.name}-{os.getpid()}")
    shutil.rmtree(trash, ignore_errors=True)
    folder.rename(trash)
    shutil.rmtree(trash)


def save_parameters(model: torch.nn.Module, path: str | Path) -> None:
    """Write the parameters and buffers of `model`, on whatever device, to one safetensors file, atomically.

    Raises UsageError if one cannot be stored or the file cannot be written.
    """
    path = Path(path)
    snapshot = Snapshot({"model": model.state_dict(keep_vars=True)})
    snapshot.wait()
    draft = path.with_name(f".draft-{path.name}-{os.getpid()}")
    try:
        save_file(snapshot.model, draft, metadata={"names": json.dumps(snapshot.json["model"])})
        _sync(draft)
        draft.replace(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} could not be written: {error}.") from error
    finally:
        draft.unlink(missing_ok=True)


def load_parameters(model: torch.nn.Module, path: str | Path) -> torch.nn.Module:
    """Load a safetensors file, or the newest checkpoint in a folder, into `model`, on whatever device it is.

    Raises FileFormatError if the file is damaged, UsageError if its names or shapes are not the model's.
    """
    path = Path(path)
    if path.is_dir():
        return fill(model, newest(path)["model"], path)
    try:
        from safetensors import safe_open

        tensors = load_file(path)
        with safe_open(path, framework="pt") as file:
            names = (file.metadata() or {}).get("names")
    except (OSError, SafetensorError) as error:
        raise FileFormatError(f"{path} cannot be read as safetensors: {error}.") from error
    if names is not None:
        tensors = decode(json.loads(names), {f"model.{name}": tensor for name, tensor in tensors.items()})
    return fill(model, tensors, path)


def fill(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], origin: object) -> torch.nn.Module:
    """Copy `tensors` into `model`, by name."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise UsageError(f"{origin} is of a different model: {error}") from error
    return model


def newest(directory: str | Path) -> dict[str, Any]:
    """The newest complete checkpoint in `directory` (or `directory` itself, if it is one).

    A damaged one causes a warning, and the one before it is used. Raises FileFormatError if none is complete.
    """
    return newest_whole(Path(directory))[1]


def newest_whole(directory: Path) -> tuple[Path, dict[str, Any]]:
    """The folder and the state of the checkpoint that `newest` finds."""
    if (directory / STATE).exists():
        return directory, read_checkpoint(directory)
    for folder in reversed(folders(directory)):
        try:
            return folder, read_checkpoint(folder)
        except FileFormatError as error:
            warnings.warn(f"{error} The checkpoint before it is used.", stacklevel=2)
    raise FileFormatError(f"{directory} has no complete checkpoint.")


def folder_name(step: int, epoch_ended: bool) -> str:
    """The name of the checkpoint after `step` updates; one at an epoch's end sorts after another of the same step."""
    return f"step-{step:010d}{'-end' if epoch_ended else ''}"


def folders(directory: Path) -> list[Path]:
    """The checkpoints of `directory`, oldest first."""
    return sorted((path for path in directory.glob("step-*") if _NAME.fullmatch(path.name)), key=age)


def age(folder: Path) -> tuple[int, str]:
    """The sort key of checkpoints: their updates, and whether the epoch had ended."""
    found = _NAME.fullmatch(folder.name)
    return (int(found[1]), found[2]) if found else (-1, "")


_NAME = re.compile(r"step-(\d+)((?:-end)?)")
