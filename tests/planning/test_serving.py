"""examples/serve.py: the bytes of its cache by arithmetic, and the largest number of sequences that a plan finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
PROGRAM = Path(__file__).parents[2] / "examples" / "serve.py"
LAYERS, KV_HEADS, WIDTH, TOKENS = 2, 8, 128, 65536
SMALL = f"--layers {LAYERS} --hidden 1024 --heads 8 --kv-heads {KV_HEADS} --inner 512 --vocabulary 512 --prompt 64"
A_TOKEN = 2 * LAYERS * KV_HEADS * WIDTH * 2


def windtunnel(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", *command, *SMALL.split()], capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_its_cache_takes_what_its_tokens_take() -> None:
    out = windtunnel("run", "-q", "--gpus", "T4", str(PROGRAM), "--num-seqs", "2", "--max-tokens", "128")
    assert f"cache {2 * 128 * A_TOKEN} bytes" in out
    assert f"cache per token {A_TOKEN} bytes" in out


def test_a_plan_finds_how_many_sequences_fit() -> None:
    searched = "--largest=--num-seqs=1..256"
    plan = json.loads(
        windtunnel("plan", str(PROGRAM), "--gpus", "T4", searched, "--to-the-end", "--json", "--", "--max-tokens",
                   str(TOKENS), "--new-tokens", "2", "--prompts", "1")
    )  # fmt: skip
    (row,) = plan["rows"]
    number = int(row["choices"]["--num-seqs"])
    cache = number * TOKENS * A_TOKEN
    room = row["memory_bytes"] / (1 + row["peak_band"]) - (row["peak_bytes"] - cache)
    assert room - TOKENS * A_TOKEN < cache <= room
    assert row["peak_bytes"] - cache < 0.05 * row["memory_bytes"]  # the weights, the context, a prompt
