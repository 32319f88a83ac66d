"""What torchrun's agent is elsewhere: it starts the ranks of a cluster that are played, and waits for them.

Run as a program: its first word is the fold as JSON, the others are the command of each rank.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from windtunnel import variables
from windtunnel.ranks.fold import Fold

START_ANEW = 75
"""The exit code of a rank that ended the attempt (EX_TEMPFAIL): more ranks must be played."""
LOOPBACK = "127.0.0.1"
POLL_S = 0.02
GRACE_S = 10.0
"""How long the others have to say what went wrong when a rank has failed, before they are ended."""


def command(fold: Fold, program: Sequence[str]) -> list[str]:
    """The command that plays a cluster's ranks, each of which is a process of `program`."""
    return [sys.executable, "-P", "-m", "windtunnel.agent", fold.to_json(), *program]


def environment(fold: Fold, rank: int, port: int, base: Mapping[str, str]) -> dict[str, str]:
    """What torchrun tells a rank, and how the ranks are played."""
    nodes, local = fold.world // fold.per_node, rank % fold.per_node
    return {
        **base,
        "RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(rank // fold.per_node),
        "ROLE_RANK": str(rank), "ROLE_NAME": "default", "ROLE_WORLD_SIZE": str(fold.world),
        "WORLD_SIZE": str(fold.world), "LOCAL_WORLD_SIZE": str(fold.per_node), "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RUN_ID": f"windtunnel-{port}", "TORCHELASTIC_ERROR_FILE": "",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        variables.FOLD: fold.to_json(),
    }  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Start the ranks that are played, and wait for them; the exit code of the first that failed."""
    fold, program = Fold.from_json(words[0]), words[1:]
    reserved = reserve()
    port = reserved.getsockname()[1]
    ranks = [subprocess.Popen(program, env=environment(fold, rank, port, os.environ)) for rank in fold.played]

    def pass_on(number: int, frame: object) -> None:
        for rank in ranks:
            with suppress(ProcessLookupError):
                rank.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, pass_on)
    first, until = 0, float("inf")
    while any(rank.poll() is None for rank in ranks):
        ended = [rank.returncode for rank in ranks if rank.returncode]
        if ended and not first:
            first = ended[0]
            until = time.monotonic() + (0.0 if first == START_ANEW else GRACE_S)
        if time.monotonic() > until:
            until = float("inf")
            _end(ranks)
        time.sleep(POLL_S)
    reserved.close()
    code = first or next((rank.returncode for rank in ranks if rank.returncode), 0)
    return code if code >= 0 else 128 - code


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the ranks that still run."""
    for call in (subprocess.Popen.terminate, subprocess.Popen.kill):
        for rank in ranks:
            if rank.poll() is None:
                call(rank)
        until = time.monotonic() + 5.0
        while time.monotonic() < until and any(rank.poll() is None for rank in ranks):
            time.sleep(POLL_S)


def reserve() -> socket.socket:
    """A port for rank 0's store: no other process is given it while the socket is open, and rank 0 may listen on it."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((LOOPBACK, 0))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
