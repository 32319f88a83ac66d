"""How many operators a second are emulated, and that their predicted time grows linearly with their number.

    python -m benchmarks.bench_operators              # 10^4, 10^5 and 10^6 operators; --record writes the figures
    python -m benchmarks.bench_operators 1000 5000    # other numbers

The program adds a number to a small tensor again and again; `machine` is the same work given to the machine alone.
"""

from __future__ import annotations

import argparse
import time

import torch
from tools.docs import figures

from windtunnel import emulate, gpus
from windtunnel.machine.memory.settings import Settings
from windtunnel.session import build_machine
from windtunnel.trace.operation import Signature
from windtunnel.trace.trace import Trace

FIGURES = {10_000: "thousands", 100_000: "hundred-thousand", 1_000_000: "million"}
GPU = "V100"


def program(operators: int, no_data: bool = False) -> tuple[float, int]:
    """(operators a second of this machine, predicted ns an operator) of a PyTorch program, with data or without."""
    with emulate(GPU, clock="real", no_data=no_data) as session:
        x = torch.zeros(256, device="cuda")
        begin_ns, begin = session.trace.end_ns(), time.monotonic()
        for _ in range(operators):
            x.add_(1.0)
        taken = time.monotonic() - begin
        return operators / taken, (session.trace.end_ns() - begin_ns) // operators


def machine(operators: int) -> tuple[float, int]:
    """The same of the machine alone, without a framework."""
    made = build_machine(gpus.parse(GPU), (11, 2), Trace(), Settings())
    device = made.devices[0]
    cost = made.price(device, Signature("aten::add_", ((256,),), ("float32",), 1, 0, 1024, 1024))
    begin = time.monotonic()
    for _ in range(operators):
        made.launch(made.host, device.default_stream, cost)
    taken = time.monotonic() - begin
    return operators / taken, made.trace.end_ns() // operators


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, default=list(FIGURES))
    parser.add_argument("--record", action="store_true", help="write docs/figures/operators.json")
    options, rows = parser.parse_args(), {}
    torch.set_num_threads(1)
    program(1000)
    columns = ("operators", 10), ("program, a second", 18), ("without data", 14), ("machine, a second", 18)
    print(*(f"{name:>{width}}" for name, width in (*columns, ("predicted, an operator", 24))))
    for operators in options.numbers:
        (per_s, ns), (dataless_per_s, _) = program(operators), program(operators, no_data=True)
        alone_per_s, _ = machine(operators)
        print(
            f"{operators:>10,} {per_s:>18,.0f} {dataless_per_s:>14,.0f} {alone_per_s:>18,.0f} {ns:>21,} ns", flush=True
        )
        if operators in FIGURES:
            speeds = {"with": per_s, "without": dataless_per_s, "alone": alone_per_s}
            rows[FIGURES[operators]] = {name: round(speed) for name, speed in speeds.items()}
    if options.record:
        figures.record("operators", rows)


if __name__ == "__main__":
    main()
