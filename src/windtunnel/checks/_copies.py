"""What the checks on copies share: directions, the numbers that a copy row carries, and where small begins."""

from __future__ import annotations

from windtunnel.trace.trace import Record

# CUDA's documentation ("API synchronization behavior"): a copy from pageable memory of at most 64 KiB may return
# before it is done, because the driver takes the bytes along with the command.
SMALL_BYTES = 64 << 10


def detail(record: Record, key: str) -> int | None:
    """A number that the seam wrote beside a copy's name; None where it wrote none."""
    for name, value in record.signature.detail:
        if name == key:
            return int(value)
    return None


def to_device(record: Record) -> bool:
    """Whether the copy goes from the host to a device."""
    return "HtoD" in record.signature.name


def to_host(record: Record) -> bool:
    """Whether the copy goes from a device to the host."""
    return "DtoH" in record.signature.name


def pageable(record: Record) -> bool:
    """Whether the copy's host side is ordinary, pageable memory."""
    return "Pageable" in record.signature.name


def non_blocking(record: Record) -> bool:
    """Whether the program asked not to wait for the copy."""
    return detail(record, "non_blocking") == 1
