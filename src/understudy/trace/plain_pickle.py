"""Pickles of plain data: numbers, strings, lists, tuples and dictionaries. Reading a foreign file runs nothing."""

from __future__ import annotations

import io
import pickle
from typing import NoReturn

from understudy.errors import FileFormatError

DAMAGED = (
    pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError,
    RecursionError, ImportError,
)  # fmt: skip
"""What an unpickler raises for bytes that are no pickle."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain data, and refuses everything else."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Refuse: plain data holds no objects."""
        raise FileFormatError(
            f"The pickle asks for {module_name}.{global_name}, but a memory snapshot holds plain data only. "
            "Make one with torch.cuda.memory._dump_snapshot."
        )

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse: plain data refers to nothing outside itself."""
        raise FileFormatError("The pickle refers to data outside itself; a memory snapshot does not.")


def loads(data: bytes, path: str) -> object:
    """The data of a pickle; raises FileFormatError, which names `path`, when it holds anything but plain data."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except FileFormatError:
        raise
    except DAMAGED as error:
        raise FileFormatError(
            f"{path} is not a pickle of plain data ({error}). Make one with torch.cuda.memory._dump_snapshot."
        ) from None
