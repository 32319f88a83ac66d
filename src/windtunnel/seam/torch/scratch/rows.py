"""The rows of kernel tables, found by an operator's name."""

from __future__ import annotations

from collections.abc import Iterable

from windtunnel.seam.torch.scratch.need import Row


def by_name(rows: Iterable[Row]) -> dict[str, Row]:
    """The rows by operators' names without namespace."""
    return {name: row for row in rows for name in row.operators}
