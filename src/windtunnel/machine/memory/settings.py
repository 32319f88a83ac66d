"""Settings of PyTorch's allocators: what `PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF` may say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

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


VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables that hold the settings; the first that is set counts (PyTorch 2.13, asked of its binary)."""


def text_of(environment: Mapping[str, str]) -> str:
    """The text of the settings in an environment; empty when no variable is set."""
    return next((environment[name] for name in VARIABLES if name in environment), "")


def parse(text: str, base: Settings | None = None) -> Settings:
    """Settings from the text of `PYTORCH_CUDA_ALLOC_CONF` or `PYTORCH_ALLOC_CONF`, as PyTorch 2.9 and later read it.

    `base` are the settings so far: what the text does not name keeps its value, except that the split limit, the
    rounding and the garbage collection start from their defaults each time. Raises what PyTorch raises, with its text:
    ValueError for a bad value, IndexError for one out of range, RuntimeError where the text ends too early.
    """
    return _Parser(text, base or Settings()).settings()


class _Parser:
    """One pass over the tokens; keys may come in any order, but the large segment size counts first."""

    def __init__(self, text: str, base: Settings) -> None:
        self.text = text
        self.base = base
        self.tokens = _tokens(text)
        self.large_segment_mb = base.large_segment_size // MIB
        self.values: dict[str, object] = {
            "max_split_size": UNLIMITED,
            "roundup_power2_divisions": (0,) * DIVISION_CLASSES,
            "garbage_collection_threshold": 0.0,
        }

    def settings(self) -> Settings:
        for position, token in enumerate(self.tokens):
            if token == "large_segment_size_mb":
                self.large_segment_mb = self._number(position + 2)
                self._check(self.large_segment_mb > 10, "CachingAllocator option large_segment_size_mb must be > 10 MB")
        self.values["large_segment_size"] = self.large_segment_mb * MIB
        self.values["max_non_split_rounding_size"] = self.large_segment_mb * MIB
        position = 0
        while position < len(self.tokens):
            position = self._option(position) + 1
            if position < len(self.tokens):
                self._token(position, ",")
                position += 1
        return replace(self.base, **self.values, text=self.text)  # type: ignore[arg-type]

    def _option(self, position: int) -> int:
        """Read the option at `position`; the position of its last token."""
        key = self.tokens[position]
        if key == "roundup_power2_divisions":
            self._token(position + 1, ":")
            return self._divisions(position + 2)
        if key not in _OPTIONS:
            raise ValueError(f"Unrecognized key '{key}' in Accelerator allocator config.")
        self._token(position + 1, ":")
        getattr(self, f"_{_OPTIONS[key]}")(_FIELDS.get(key, key), position + 2)
        return position + 2

    def _split_mb(self, field: str, position: int) -> None:
        value = self._number(position)
        option = self.tokens[position - 2]
        smallest = self.large_segment_mb
        self._check(value >= smallest, f"CachingAllocator option {option} too small, must be >= {smallest}")
        self.values[field] = min(value, UNLIMITED // MIB) * MIB

    def _mb(self, field: str, position: int) -> None:
        self.values[field] = min(self._number(position), UNLIMITED // MIB) * MIB

    def _segment_mb(self, field: str, position: int) -> None:
        """`large_segment_size_mb` was read before the other options."""

    def _threshold(self, field: str, position: int) -> None:
        value = self._decimal(position)
        self._check(0.0 < value < 1.0, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
        self.values[field] = value

    def _fraction(self, field: str, position: int) -> None:
        value = self._decimal(position)
        self._check(0.0 <= value <= 1.0, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
        self.values[field] = value

    def _boolean(self, field: str, position: int) -> None:
        word = self._token(position)
        self._check(
            word in ("True", "False"),
            f"Expected 'True' or 'False' at index {position} in ConfigTokenizer but got '{word}'",
        )
        self.values[field] = word == "True"

    def _threads(self, field: str, position: int) -> None:
        value = self._number(position)
        self._check(_is_power(value), f"Number of register threads has to be power of 2, got {value}")
        self._check(value <= 128, f"Number of register threads should be less than or equal to 128, got {value}")
        self.values[field] = value

    def _reserve_mb(self, field: str, position: int) -> None:
        value = self._number(position)
        self._check(value > 0, "Pinned reserve segment size has to be greater than 0")
        self.values[field] = value

    def _backend(self, field: str, position: int) -> None:
        word = self._token(position)
        self._check(
            word in ("native", "cudaMallocAsync"),
            "Unknown allocator backend, options are native and cudaMallocAsync",
        )
        self.values[field] = word

    def _divisions(self, position: int) -> int:
        """One number for all sizes, or a list of `size in MiB:divisions` with `>` for all larger sizes."""
        divisions = [0] * DIVISION_CLASSES
        if self._token(position) != "[":
            value = self._number(position)
            self._check(_is_power(value), "For roundups, the divisions has to be power of 2 ")
            self.values["roundup_power2_divisions"] = (value,) * DIVISION_CLASSES
            return position
        position += 1
        last: int | None = None
        while self._token(position) != "]":
            boundary, value = self._token(position), self._number(position + 2)
            self._check(
                value == 0 or _is_power(value),
                "For roundups, the divisions has to be power of 2 or 0 to disable roundup ",
            )
            if boundary == ">":
                first = (0 if last is None else last) + 1
                divisions[first:] = [value] * (DIVISION_CLASSES - first)
            else:
                size = self._number(position)
                self._check(_is_power(size), "For roundups, the intervals have to be power of 2 ")
                index = min(size.bit_length() - 1, DIVISION_CLASSES - 1)
                if last is None:
                    divisions[:index] = [value] * index
                divisions[index] = value
                last = index
            position += 3
            if self._token(position) != "]":
                self._token(position, ",")
                position += 1
        self.values["roundup_power2_divisions"] = tuple(divisions)
        return position

    def _token(self, position: int, expected: str = "") -> str:
        """The token at a position. PyTorch looks at the delimiters that it expects, but does not insist on them."""
        if position >= len(self.tokens):
            raise RuntimeError("Index out of bounds in ConfigTokenizer")
        return self.tokens[position]

    def _number(self, position: int) -> int:
        """A whole number as `std::stoull` reads it: leading digits count, a minus wraps around."""
        word = self._token(position)
        found = re.match(r"([+-]?)(\d+)", word)
        if found is None:
            raise ValueError("stoull")
        value = int(found[2])
        if value > UNLIMITED:
            raise IndexError("stoull")
        return -value % (1 << 64) if found[1] == "-" else value

    def _decimal(self, position: int) -> float:
        """A number as `std::stod` reads it: what looks like one at the beginning counts."""
        found = re.match(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", self._token(position))
        if found is None:
            raise ValueError("stod")
        return float(found[0])

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            raise ValueError(text)


_OPTIONS = {
    "large_segment_size_mb": "segment_mb",
    "max_split_size_mb": "split_mb",
    "max_non_split_rounding_mb": "split_mb",
    "garbage_collection_threshold": "threshold",
    "expandable_segments": "boolean",
    "backend": "backend",
    "release_lock_on_cudamalloc": "boolean",
    "graph_capture_record_stream_reuse": "boolean",
    "per_process_memory_fraction": "fraction",
    "throw_on_cudamalloc_oom": "boolean",
    "pinned_use_cuda_host_register": "boolean",
    "pinned_num_register_threads": "threads",
    "pinned_use_background_threads": "boolean",
    "pinned_reserve_segment_size_mb": "reserve_mb",
    "pinned_free_catch_all": "boolean",
    "pinned_max_round_threshold_mb": "mb",
    "pinned_max_cached_size_mb": "mb",
}
"""What may stand before a colon, and the parser of what stands behind it."""

_FIELDS = {
    "max_split_size_mb": "max_split_size",
    "max_non_split_rounding_mb": "max_non_split_rounding_size",
    "pinned_max_round_threshold_mb": "pinned_max_round_threshold",
    "pinned_max_cached_size_mb": "pinned_max_cached_size",
}


def _tokens(text: str) -> list[str]:
    """Words and the delimiters `,:[]`; white space is ignored, also inside words."""
    compact = re.sub(r"\s", "", text)
    return re.findall(r"[,:\[\]]|[^,:\[\]]+", compact)


def _is_power(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
