"""Which setting of the allocator would have helped a run: its own history, replayed under each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from windtunnel.analysis.snapshot_file import from_dict
from windtunnel.analysis.what_if import outcome
from windtunnel.machine.memory.settings import Settings, parse
from windtunnel.trace.plain import Json

SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
)
"""What PyTorch's note "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF" offers against fragmentation."""


def replays(
    snapshot: Mapping[str, object], memory_bytes: Mapping[int, int], settings: Iterable[str] = SETTINGS
) -> list[Json]:
    """The history of a memory snapshot under its own settings, and under each of `settings` that is not on already.

    Args:
        snapshot: a snapshot that was kept from the start, as `torch.cuda.memory._snapshot()` returns it.
        memory_bytes: how much the allocator may take, for each device to look at; the others are left out.
        settings: texts of PYTORCH_CUDA_ALLOC_CONF.

    Returns:
        One dict a device and setting: `device`, `setting` (what the run had comes first), `peak_reserved_bytes`,
        `out_of_memory` (requests that did not fit).
    """
    found = []
    for one in from_dict(snapshot):
        if one.device not in memory_bytes:
            continue
        own = one.settings
        others = [parse(text) for text in settings if not _is_on(text, own)]
        for setting in (own, *others):
            row = outcome(one, setting, memory_bytes[one.device])
            found.append(
                {
                    "device": one.device,
                    "setting": setting.text,
                    "peak_reserved_bytes": row.peak_reserved_bytes,
                    "out_of_memory": row.out_of_memory,
                }
            )
    return found


def _is_on(text: str, own: Settings) -> bool:
    """Whether a run had these settings, whatever it had besides."""
    return replace(parse(text, base=own), text=own.text) == own
