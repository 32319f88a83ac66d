"""Warnings name the program's line: a warning of PyTorch's C++ names the innermost Python frame, which is ours here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.sites import OURS
from windtunnel.seam.torch.state.state import State

OPERATORS = torch._ops.__file__
"""Where an operator that `Dispatch` hands on is called from."""


def patches(state: State) -> list[Patch]:
    """The function that `warnings` calls with what shall be shown, whether it is printed or recorded."""
    stock: Callable[[warnings.WarningMessage], None] = warnings._showwarnmsg  # type: ignore[attr-defined]

    def show(msg: warnings.WarningMessage) -> None:
        if msg.filename == OPERATORS or msg.filename.startswith(OURS):
            _relocate(msg, sys._getframe(1))
        stock(msg)

    return [Patch(warnings, "_showwarnmsg", show)]


def _relocate(message: warnings.WarningMessage, frame: FrameType | None) -> None:
    """Put a warning where it would be without emulation: in the frame that called ours."""
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (message.filename, message.lineno):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename == OPERATORS:
        frame = frame.f_back
        if frame is None or not frame.f_code.co_filename.startswith(OURS):
            return  # the program calls torch.ops itself
    while frame is not None and frame.f_code.co_filename.startswith((OURS, OPERATORS)):
        frame = frame.f_back
    if frame is not None:
        message.filename, message.lineno, message.line = frame.f_code.co_filename, frame.f_lineno, None
