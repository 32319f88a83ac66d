"""Fit every constant of the cost model on the published figures, cross-validate, and write `src/windtunnel/cost/data/`.

    python tools/calibration/calibrate.py    # make calibrate

Nothing of what the files held is used, so that the same tables give the same files, byte for byte. The order: kernels
that were timed one by one (products, memory-bound kernels, attention, transforms, decompositions), what is known
from whole models (curves and shares of Lambda's and NVIDIA's programs, then those of timm's, eager and compiled, then
the former again on these), bands, collectives, and last what real GPUs took beside all that (`calibrate_neighbours`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration")]

import calibrate_attention  # noqa: E402
import calibrate_bands  # noqa: E402
import calibrate_collectives  # noqa: E402
import calibrate_compiled  # noqa: E402
import calibrate_cost  # noqa: E402
import calibrate_images  # noqa: E402
import calibrate_neighbours  # noqa: E402
import calibrate_products  # noqa: E402
import calibrate_published  # noqa: E402
import calibrate_streams  # noqa: E402

from windtunnel.cost import operators  # noqa: E402

HEAD = "GPU              distance           n  median     p90    bias  inside"


def begin() -> None:
    """Data files with nothing fitted in them."""
    calibrate_neighbours.forget()
    calibrate_streams.begin()
    calibrate_cost.Fit([], {}).write()
    calibrate_products.write(
        "bands", calibrate_products.BANDS_HEAD, [(kind, {"share": 1.0}) for kind in calibrate_products.SINGLE]
    )
    calibrate_products.write("convolutions", calibrate_images.CONVOLUTIONS_HEAD, [])
    calibrate_products.write("generated", calibrate_images.GENERATED_HEAD, [])
    forget()
    calibrate_images.begin()


def forget() -> None:
    """Let the cost model read its data anew."""
    operators.read.cache_clear()
    calibrate_images.clear()
    for cached in calibrate_images.OTHER_CACHES:
        cached.cache_clear()


def main() -> None:
    started = time.monotonic()
    found: list[calibrate_images.Found] = []
    stages: dict[str, Callable[[], None]] = {
        "nothing fitted": begin,
        "matrix products": calibrate_products.calibrate_all,
        "memory-bound kernels": calibrate_streams.calibrate,
        "attention": calibrate_attention.calibrate,
        "Fourier transforms and linear algebra": calibrate_published.calibrate,
        "curves and shares of whole models": calibrate_cost.calibrate,
        "shares of image models": lambda: found.append(calibrate_images.calibrate()),
        "curves and shares of whole models again": calibrate_cost.calibrate,
        "memory-bound kernels, left out": calibrate_streams.validate,
        "compiled image models": lambda: calibrate_compiled.show_left_out(found[0]),
        "bands": lambda: calibrate_bands.calibrate(found[0]),
        "collectives": calibrate_collectives.calibrate,
        "measured kernels, each left out": calibrate_neighbours.calibrate,
    }
    for name, stage in stages.items():
        print(f"\n== {name}, {time.monotonic() - started:.0f} s\n{HEAD}", flush=True)
        stage()
        forget()
    print(f"\ndone in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
