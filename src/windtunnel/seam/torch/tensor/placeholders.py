"""Checkpoints of a rehearsal without data: files in which tensors have a shape and a place, and no values.

The program finds its file again, may rename it, and loads it: it gets tensors whose values are made up. The files are
removed when the emulation ends, and one that is left cannot be loaded without windtunnel.
"""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import IO

import torch
import torch.serialization

from windtunnel.errors import FileFormatError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.moves import transfer
from windtunnel.seam.torch.rehearsal import untouched
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import is_physically_meta, tag_of

Tensor = torch.Tensor
Restore = Callable[[torch.UntypedStorage, str], torch.UntypedStorage]
Target = str | os.PathLike[str] | IO[bytes]
NAME = b"windtunnel.seam.torch.tensor.placeholders"
"""What such a file names as the maker of its tensors."""
_loading: list[tuple[State, str, Restore]] = []
"""The emulation that loads a file, the file's name, and where its tensors go."""


def lacks_values(tensor: Tensor, most: int = 0) -> bool:
    """Whether a tensor has no values, or more than so many bytes of copies of such values."""
    if is_physically_meta(tensor) and tag_of(tensor).device >= 0:
        return True
    return untouched.is_made_up(tensor) and tensor.untyped_storage().nbytes() > most


def tensor(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], location: str) -> Tensor:
    """A tensor of a file that is loaded, with made-up values.

    Raises:
        FileFormatError: there is no rehearsal without data.
    """
    if not _loading:
        raise FileFormatError(
            "this file was written in a rehearsal without data and has no values: remove it, and save again with data"
        )
    state, name, restore = _loading[-1]
    size = sum((length - 1) * step for length, step in zip(shape, stride, strict=True)) + 1 if 0 not in shape else 0
    host = untouched.zeros(torch.Size([size]), dtype) if size else torch.empty(0, dtype=dtype)
    host = untouched.mark(host).as_strided(shape, stride)
    device = restore(torch.UntypedStorage(0), location).device
    state.assumptions.note("load", value=name)
    if device.type != "cuda":
        return host
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    transfer(state, host, made, False, late=False)
    return made


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: object) -> tuple[Callable[..., Tensor], tuple[object, ...]]:
        if type(obj) is not Tensor or obj.layout is not torch.strided or not lacks_values(obj):
            return NotImplemented  # type: ignore[no-any-return]  # pickle's word for the usual way
        return tensor, (obj.dtype, tuple(obj.shape), obj.stride(), str(obj.device))


_PICKLE = ModuleType("pickle")
_PICKLE.__dict__.update(vars(pickle), Pickler=_Pickler)


class Placeholders:
    """The files that this process has written."""

    def __init__(self, state: State) -> None:
        self.paths: set[str] = set()
        self.folders: set[str] = set()
        """Those that the program has made."""
        state.notes.at_end.append(self.remove)

    def save(self, stock: Callable[..., None], obj: object, target: Target) -> None:
        """Write what has no values, unless that would take the place of a file with values."""
        path = os.path.abspath(target if isinstance(target, (str, os.PathLike)) else str(getattr(target, "name", "")))
        if not isinstance(target, (str, os.PathLike)) or not os.path.exists(path) or is_one(path):
            stock(obj, target, pickle_module=_PICKLE)
            self.paths.add(path)

    def remove(self) -> None:
        """Remove them, at the end, with the folders made for them, by which a program would resume."""
        for path in self.paths:
            with suppress(OSError):
                if is_one(path):
                    os.remove(path)
                    while (path := os.path.dirname(path)) in self.folders:
                        os.rmdir(path)  # unless something else is in it
        self.paths.clear()

    def making(self, stock: Callable[..., None]) -> Callable[..., None]:
        """`os.mkdir`, by which a program makes a folder for a checkpoint."""

        @functools.wraps(stock)
        def mkdir(path: str | os.PathLike[str], mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            stock(path, mode, dir_fd=dir_fd)
            if dir_fd is None:
                self.folders.add(os.path.abspath(os.fsdecode(path)))

        return mkdir

    def moving(self, stock: Callable[..., None]) -> Callable[..., None]:
        """`os.rename` and `os.replace`, by which a program puts a file that is complete in its place."""

        @functools.wraps(stock)
        def move(src: object, dst: object, *args: object, **kwargs: object) -> None:
            stock(src, dst, *args, **kwargs)
            if isinstance(src, (str, os.PathLike)) and isinstance(dst, (str, os.PathLike)):
                before, after = os.path.abspath(os.fspath(src)), os.path.abspath(os.fspath(dst))
                for path in [path for path in self.paths if path == before or path.startswith(before + os.sep)]:
                    self.paths.add(after + path[len(before) :])

        return move


def is_one(path: str) -> bool:
    """Whether a file has no values."""
    with open(path, "rb") as file:
        return NAME in file.read(untouched.LARGE)


def following(files: Placeholders) -> list[Patch]:
    """What follows such files."""
    moves = [Patch(os, name, files.moving(getattr(os, name))) for name in ("rename", "replace")]
    return [*moves, Patch(os, "mkdir", files.making(os.mkdir))]


@contextmanager
def loading(state: State, file: object, map_location: object) -> Iterator[None]:
    """While a file is loaded, tensors without values get made-up ones."""
    if not state.no_data:
        yield
        return
    name = os.path.basename(os.fspath(file)) if isinstance(file, (str, os.PathLike)) else "a file"
    _loading.append((state, name, torch.serialization._get_restore_location(map_location)))
    try:
        with torch.serialization.safe_globals([tensor]):
            yield
    finally:
        _loading.pop()
