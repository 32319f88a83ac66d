"""Checkpoints in a rehearsal without data: there are no values to write, and a file that is there stays as it is.

`torch.save` writes placeholders, which are noted. safetensors to a path and a checkpoint of the Trainer are left out.
The ranks plan a distributed checkpoint, and write none of it. A storage that is saved alone, as by pickle, and bytes of
safetensors are refused.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Set
from functools import wraps
from types import ModuleType
from typing import Protocol

import torch
import torch.distributed as dist

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.moves import transfer
from windtunnel.seam.torch.rehearsal.untouched import LARGE
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import Tag
from windtunnel.seam.torch.tensor import placeholders
from windtunnel.seam.torch.tensor.placeholders import Placeholders, Target

Tensor = torch.Tensor
physical_device: Callable[[object], torch.device] = torch._C.StorageBase.device.__get__  # type: ignore[attr-defined]
REFUSED = (
    "{name} would write tensors of a device, and a rehearsal without data has no values for them: leave the checkpoint "
    "out, end the rehearsal before it with --stop-after STEPS, or run with data"
)


class Copied(Protocol):
    """The Trainer's copy of its state."""

    taken_at: int
    """At which line, where a GPU's tensors are in it."""

    def synchronize(self) -> None:
        """Wait for the copies."""


def patches(state: State) -> list[Patch]:
    """What a rehearsal without data replaces."""
    if not state.no_data:
        return []

    def save(obj: object, f: Target, *args: object, **kwargs: object) -> None:
        alone = isinstance(obj, (torch.TypedStorage, torch.UntypedStorage))  # pickle does so in memory
        if not lacks_values(obj, to_file=not alone):
            stock(obj, f, *args, **kwargs)
        elif alone:
            raise UnsupportedError(REFUSED.format(name="torch.save"))
        else:
            path = f if isinstance(f, (str, os.PathLike)) else str(getattr(f, "name", "a buffer"))
            _noted(state, "save", path)
            files.save(stock, obj, f)

    stock: Callable[..., None] = torch.save
    files = Placeholders(state)
    return [Patch(torch, "save", save), *placeholders.following(files)]


def _noted(state: State, what: str, path: str | os.PathLike[str]) -> None:
    """Note that a file has no values ("save"), or was not written ("not written")."""
    state.notes.note("assumed-value", state.site(), what=what, value=os.path.basename(os.fspath(path)))


class _Finder(pickle.Pickler):
    """Goes through all that a checkpoint holds; a tensor ends the way, one that has no values the search.

    So does a storage, which pickle saves by `torch.save` itself.
    """

    def __init__(self, most: int) -> None:
        super().__init__(io.BytesIO())
        self.most = most  # bytes of a host tensor with values that were made up

    def persistent_id(self, obj: object) -> str | None:
        if isinstance(obj, Tensor):
            lacking = any(placeholders.lacks_values(part, self.most) for part in _own_parts(obj))
        elif isinstance(obj, (torch.TypedStorage, torch.UntypedStorage)):
            storage = obj._untyped_storage if isinstance(obj, torch.TypedStorage) else obj
            tag: Tag = storage._wt  # type: ignore[attr-defined]  # the seam's
            absent = physical_device(storage).type == "meta" and tag.device >= 0
            lacking = absent or (getattr(storage, "_wt_made_up", False) and storage.nbytes() > self.most)
        else:
            return None
        if lacking:
            raise _FoundError
        return "tensor"


def _own_parts(tensor: Tensor) -> list[Tensor]:
    """This rank's part of a DTensor, its shards of a ShardedTensor (FSDP's `SHARDED_STATE_DICT`), or the tensor."""
    if callable(shards := getattr(tensor, "local_shards", None)):
        return [shard.tensor for shard in shards()]
    return [getattr(tensor, "_local_tensor", tensor)]


class _FoundError(Exception):
    pass


def lacks_values(obj: object, *, to_file: bool = True) -> bool:
    """Whether something that shall be saved has a device's tensor without values, or a copy of one.

    In memory, where pickle takes objects to other processes, only a large copy counts.
    """
    try:
        _Finder(0 if to_file else LARGE).dump(obj)
    except _FoundError:
        return True
    except (pickle.PicklingError, TypeError, AttributeError):
        return False  # what cannot be pickled is for the function that saves it to say
    return False


def _copied(state: State) -> Callable[[ModuleType], list[Patch]]:
    """The Trainer's state is copied to the host, which takes its time, without values."""

    def pinned(snapshot: Copied, tensor: Tensor) -> Tensor:
        snapshot.taken_at = state.site()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        transfer(state, tensor, host, non_blocking=True, late=False)
        return host

    return lambda module: [Patch(module.Snapshot, "_pinned", pinned)]


def _not_written(state: State) -> Callable[[ModuleType], list[Patch]]:
    """The Trainer's checkpoints of what a GPU holds are waited for, and not written."""

    def replaced(module: ModuleType) -> list[Patch]:
        stock = module.Checkpoints._write

        def write(checkpoints: object, folder: os.PathLike[str], snapshot: Copied, metrics: object) -> None:
            if not hasattr(snapshot, "taken_at"):  # all of it is on the host
                stock(checkpoints, folder, snapshot, metrics)
                return
            snapshot.synchronize()
            state.notes.note("assumed-value", snapshot.taken_at, what="not written", value=os.path.basename(folder))

        return [Patch(module.Checkpoints, "_write", write)]

    return replaced


def _planned(state: State, planned: set[str]) -> Callable[[ModuleType], list[Patch]]:
    """A distributed checkpoint, which the ranks plan together, if all are there, and then do not write."""

    def replaced(module: ModuleType) -> list[Patch]:
        stock: Callable[..., object] = module._save_state_dict

        @wraps(stock)
        def save(
            state_dict: object,
            storage_writer: object,
            process_group: dist.ProcessGroup | None = None,
            *args: object,
            **kwargs: object,
        ) -> object:
            if lacks_values(state_dict):
                path = str(getattr(storage_writer, "path", "a distributed checkpoint"))
                _noted(state, "not written", path)
                planned.add(os.path.abspath(path))
                storage_writer = PlannedOnly()
                fold = state.groups.fold
                if fold is not None and not fold.is_whole and not kwargs.get("no_dist"):
                    dist.barrier(process_group)  # in place of what absent ranks have planned
                    kwargs["no_dist"] = True
            return stock(state_dict, storage_writer, process_group, *args, **kwargs)

        return [Patch(module, "_save_state_dict", save)]

    return replaced


def _loaded(state: State, planned: Set[str]) -> Callable[[ModuleType], list[Patch]]:
    """A distributed checkpoint that was only planned is loaded as made-up values, which tensors have already."""

    def replaced(module: ModuleType) -> list[Patch]:
        stock: Callable[..., None] = module._load_state_dict

        @wraps(stock)
        def load(state_dict: object, storage_reader: object, *args: object, **kwargs: object) -> None:
            path = os.path.abspath(str(getattr(storage_reader, "path", "")))
            if path not in planned or os.path.exists(os.path.join(path, ".metadata")):
                stock(state_dict, storage_reader, *args, **kwargs)
            else:
                state.assumptions.note("load", value=os.path.basename(path))

        return [Patch(module, "_load_state_dict", load)]

    return replaced


class PlannedOnly:
    """A writer of distributed checkpoints (torch/distributed/checkpoint/storage.py) that writes nothing."""

    def storage_meta(self) -> None:
        """There is nothing to know of where it writes."""

    def set_up_storage_writer(self, *_: object, **__: object) -> None:
        """It needs no folder."""

    def prepare_local_plan(self, plan: object) -> object:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: object) -> object:
        """As they are."""
        return plans

    def write_data(self, plan: object, planner: object) -> torch.futures.Future[list[object]]:
        """Done at once."""
        del plan, planner
        written: torch.futures.Future[list[object]] = torch.futures.Future()
        written.set_result([])
        return written

    def finish(self, metadata: object, results: object) -> None:
        """Without the file that names the others."""


def _safetensors(state: State) -> Callable[[ModuleType], list[Patch]]:
    """safetensors' functions that write a file, as `torch.save`; the one that gives bytes is refused."""

    def to_a_path(stock: Callable[..., None]) -> Callable[..., None]:
        @wraps(stock)
        def save(what: object, filename: str | os.PathLike[str], *args: object, **kwargs: object) -> None:
            if lacks_values(_held(what)):
                _noted(state, "not written", filename)
            else:
                stock(what, filename, *args, **kwargs)

        return save

    def replaced(module: ModuleType) -> list[Patch]:
        paths = [Patch(module, name, to_a_path(getattr(module, name))) for name in ("save_file", "save_model")]
        return [*_refusing("save")(module), *paths]

    return replaced


def _refusing(*names: str) -> Callable[[ModuleType], list[Patch]]:
    def replaced(module: ModuleType) -> list[Patch]:
        return [Patch(module, name, _checked(f"{module.__name__}.{name}", getattr(module, name))) for name in names]

    return replaced


def _checked(name: str, stock: Callable[..., object]) -> Callable[..., object]:
    @wraps(stock)
    def save(*args: object, **kwargs: object) -> object:
        what = args[0] if args else next(iter(kwargs.values()), None)
        if lacks_values(_held(what), to_file=False):
            raise UnsupportedError(REFUSED.format(name=name))
        return stock(*args, **kwargs)

    return save


def _held(what: object) -> object:
    return what.state_dict() if isinstance(what, torch.nn.Module) else what


def modules(state: State) -> dict[str, Callable[[ModuleType], list[Patch]]]:
    """The same in modules that the program may import later, by their names."""
    if not state.no_data:
        return {}
    planned: set[str] = set()
    return {
        "windtunnel.train.checkpoint": _copied(state),
        "windtunnel.train.checkpoints": _not_written(state),
        "safetensors.torch": _safetensors(state),
        "torch.distributed.checkpoint.state_dict_saver": _planned(state, planned),
        "torch.distributed.checkpoint.state_dict_loader": _loaded(state, planned),
    }
