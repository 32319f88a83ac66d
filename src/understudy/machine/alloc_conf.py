"""Settings of PyTorch's allocators: what `PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF` may say."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
UNLIMITED = (1 << 64) - 1
"""`std::numeric_limits<size_t>::max()`: no limit."""

DIVISION_CLASSES = 16
"""Size classes of `roundup_power2_divisions`: 1 MiB, 2 MiB ... 32 GiB and more."""


@dataclass(frozen=True)
class Settings:
    """Values of the allocator settings; sizes in bytes. Source: c10/core/AllocatorConfig.h of PyTorch."""

    max_split_size: int = UNLIMITED
    max_non_split_rounding_size: int = 20 * MIB
    large_segment_size: int = 20 * MIB
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = (0,) * DIVISION_CLASSES
    expandable_segments: bool = False
    backend: str = "native"
    release_lock_on_cudamalloc: bool = False
    graph_capture_record_stream_reuse: bool = False
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    pinned_use_cuda_host_register: bool = False
    pinned_num_register_threads: int = 1
    pinned_use_background_threads: bool = False
    pinned_reserve_segment_size_mb: int = 0
    pinned_free_catch_all: bool = False
    pinned_max_round_threshold: int = UNLIMITED
    pinned_max_cached_size: int = UNLIMITED
    text: str = ""

    def divisions(self, size: int) -> int:
        """Divisions between two powers of two for a request of `size` bytes (0 or 1: none)."""
        index = size.bit_length() - 21
        return self.roundup_power2_divisions[min(max(index, 0), DIVISION_CLASSES - 1)]
