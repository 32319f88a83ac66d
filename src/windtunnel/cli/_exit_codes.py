"""What windtunnel's own exit codes mean; docs/command-line.md says it at length."""

from __future__ import annotations

EXIT_CODES = {
    0: "success",
    1: "a command on files found a difference, or no candidate of a plan fits",
    2: "wrong usage",
    64: "a finding of --fail-on, or an error between ranks",
    65: "it does not fit into the GPUs' memory",
    66: "it needs what the emulation must refuse",
    67: "records are missing that a gate or a report needs",
    130: "Ctrl-C",
}


def table() -> list[tuple[str, str]]:
    """The codes and their meanings, as `--help` prints them."""
    return [*((str(code), words) for code, words in EXIT_CODES.items()), ("other", "of `run`: the program's own")]
