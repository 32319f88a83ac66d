"""Long work shows a bar on a terminal, and writes nothing where stderr is a file."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from windtunnel.cli._progress import progress_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_a_bar_is_for_terminals_alone(monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO]) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    written = kind()
    monkeypatch.setattr(sys, "stderr", written)
    before = threading.active_count()
    with progress_of("replaying", 2) as tell:
        tell("the recording")
        assert threading.active_count() == before  # one more would be a thread of the emulated program
    assert ("replaying: the recording" in written.getvalue()) == (kind is Terminal)
    assert kind is Terminal or not written.getvalue()
