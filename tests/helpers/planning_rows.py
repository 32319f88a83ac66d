"""Rows of plans, made by hand."""

from windtunnel.planning.rows import Row, Span

GIB = 1 << 30


def row(gpu: str, step_s: float | None, price: float | None, status: str = "fits", batch: int = 8) -> Row:
    """A row of one GPU with 16 GiB, whose step takes so long, and 1,000 of them cost what that gives."""
    step = None if step_s is None else Span(step_s * 1e9, step_s * 0.9e9, step_s * 1.1e9)
    hours = None if step is None else step.times(1000 / 3.6e12)
    headroom = -2 * GIB if status == "does not fit" else 4 * GIB
    return Row(
        gpus=gpu, gpu_count=1, choices={"--batch": str(batch)}, status=status, why="", how="rehearsed",
        memory_bytes=16 * GIB, peak_bytes=16 * GIB - headroom, peak_band=0.05, reserved_bytes=13 * GIB,
        headroom_bytes=headroom, headroom_low_bytes=headroom - GIB, retries=0, step_ns=step,
        samples_per_step=float(batch), samples_per_s=step.inverse(batch * 1e9) if step else None, tokens_per_s=None,
        mfu=0.4, limit="compute", causes={"compute": 0.9}, unit="step", units_per_step=1.0, work_ns=step,
        price_per_hour=price, hours=hours,
        cost=hours.times(price) if hours and price else None, largest=False, next_larger="", edge=None,
        command=f"python train.py --batch={batch}",
    )  # fmt: skip
