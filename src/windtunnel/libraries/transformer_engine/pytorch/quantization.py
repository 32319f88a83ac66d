"""`transformer_engine.pytorch.quantization`: where products are in 8 bits, by which recipe, and on which GPUs."""

from __future__ import annotations

import dataclasses
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn
from weakref import ref

import torch

from windtunnel.libraries import refuse, unanswered

from ..common.recipe import LIBRARY, DelayedScaling, Format, MXFP8BlockScaling, Recipe
from ._scales import renew

if TYPE_CHECKING:
    from ._scales import Scales

Support = tuple[bool, str]
Group = object
"""A group of ranks: PyTorch may have been built without `torch.distributed`."""


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.quantization", name)


def check_fp8_support() -> Support:
    """Whether this GPU multiplies in 8 bits, and why not."""
    if torch.cuda.get_device_capability() >= (8, 9):
        return True, ""
    return False, "Device compute capability 8.9 or higher required for FP8 execution."


def check_mxfp8_support() -> Support:
    """Whether it scales each 32 numbers, and why not."""
    capability = torch.cuda.get_device_capability()
    if capability >= (12, 0):
        return False, "MXFP8 (for all gemm layouts) is not supported on 12.0+ architectures yet."
    if capability >= (10, 0):
        return True, ""
    return False, "Device compute capability 10.0 or higher required for MXFP8 execution."


def check_nvfp4_support() -> Support:
    """Whether it multiplies in 4 bits, and why not."""
    if torch.cuda.get_device_capability() >= (10, 0):
        return True, ""
    return False, "Device compute capability 10.0 or higher required for NVFP4 execution."


def is_fp8_available(return_reason: bool = False) -> bool | Support:
    """Whether this GPU multiplies in 8 bits."""
    return check_fp8_support() if return_reason else check_fp8_support()[0]


def is_mxfp8_available(return_reason: bool = False) -> bool | Support:
    """Whether it scales each 32 numbers."""
    return check_mxfp8_support() if return_reason else check_mxfp8_support()[0]


def is_nvfp4_available(return_reason: bool = False) -> bool | Support:
    """Whether it multiplies in 4 bits."""
    return check_nvfp4_support() if return_reason else check_nvfp4_support()[0]


def get_default_recipe() -> Recipe:
    """The recipe where none is given."""
    return MXFP8BlockScaling() if check_mxfp8_support()[0] else DelayedScaling()


get_default_fp8_recipe = get_default_recipe


@dataclasses.dataclass
class _Now:
    """What holds inside the innermost block; `first` until a layer has run in the outermost one."""

    enabled: bool = False
    recipe: Recipe | None = None
    group: Group | None = None
    depth: int = 0
    first: bool = False
    known: list[ref[Scales]] = dataclasses.field(default_factory=list)


NOW = _Now()


class FP8GlobalStateManager:
    """What programs ask of the library's state."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Whether products are in 8 bits here."""
        return NOW.enabled

    @staticmethod
    def get_fp8_recipe() -> Recipe:
        """The recipe here."""
        return NOW.recipe or get_default_recipe()

    @staticmethod
    def is_fp8_available() -> Support:
        """Whether this GPU multiplies in 8 bits."""
        return check_fp8_support()

    @staticmethod
    def reset() -> None:
        """Forget all layers."""
        NOW.known.clear()
        NOW.enabled, NOW.recipe, NOW.group, NOW.depth = False, None, None, 0


class autocast:  # noqa: N801  # the library's name
    """Inside it, products of this library's layers are in 8 bits."""

    def __init__(
        self,
        enabled: bool = True,
        calibrating: bool = False,
        recipe: Recipe | None = None,
        amax_reduction_group: Group | None = None,
        _graph: bool = False,
    ) -> None:
        if calibrating:
            unanswered(LIBRARY, "autocast with calibrating")
        if recipe is not None and (recipe.fp8_dpa or recipe.fp8_mha):
            unanswered(LIBRARY, "a recipe with fp8_dpa or fp8_mha", "leave attention in 16 bits")
        self._given = enabled, recipe, amax_reduction_group
        self._before: tuple[bool, Recipe | None, Group | None] | None = None

    def __enter__(self) -> autocast:
        if self._before is not None:
            raise RuntimeError("autocast context manager cannot be entered more than once concurrently")
        enabled, recipe, group = self._given
        if enabled:
            recipe = recipe or get_default_recipe()
            able, reason = check_mxfp8_support() if recipe.mxfp8() else check_fp8_support()
            if not able:
                raise RuntimeError(reason)
        self._before = NOW.enabled, NOW.recipe, NOW.group
        NOW.enabled, NOW.recipe, NOW.group = enabled, recipe, group
        NOW.depth += 1
        if NOW.depth == 1:
            NOW.first = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._before is not None
        enabled = NOW.enabled
        NOW.enabled, NOW.recipe, NOW.group = self._before
        self._before = None
        NOW.depth -= 1
        if enabled and NOW.depth == 0 and torch.is_grad_enabled():
            renew_all(forward=True)


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Group | None = None,
    _graph: bool = False,
) -> autocast:
    """`autocast` by its former name."""
    warnings.warn(
        "fp8_autocast is deprecated and will be removed in a future release. "
        "Use autocast(enabled=..., calibrating=..., recipe=..., group=..., _graph=...) instead.",
        category=DeprecationWarning,
        stacklevel=2,
    )
    return autocast(enabled, calibrating, fp8_recipe, fp8_group, _graph)


def fp8_model_init(enabled: bool = True, *args: object, **kwargs: object) -> autocast:
    """A block without weights in 8 bits."""
    if enabled:
        unanswered(LIBRARY, "weights that are kept in 8 bits (fp8_model_init)", "keep them in 16 bits")
    return autocast(enabled=False)


quantized_model_init = fp8_model_init


def renew_all(forward: bool) -> None:
    """New scales of all layers that keep amaxes, of the forward or of the backward pass."""
    scales = [one for one in (known() for known in NOW.known) if one is not None]
    NOW.known[:] = [ref(one) for one in scales]
    alike: dict[tuple[str, int], list[Scales]] = {}
    for one in scales:
        alike.setdefault((repr(one.recipe), id(one.group)), []).append(one)
    for several in alike.values():
        renew(several, forward)


def formats(recipe: Recipe) -> tuple[torch.dtype, torch.dtype]:
    """The types of the forward and the backward pass."""
    return torch.float8_e4m3fn, torch.float8_e5m2 if recipe.fp8_format is Format.HYBRID else torch.float8_e4m3fn
