"""Fit every constant of the cost model on the published figures, cross-validate, and write `src/windtunnel/cost/data/`.

    python -m tools.calibration                       # make calibrate
    python -m tools.calibration --check [NAME ...]    # fits nothing: the errors of the constants as they are
    python -m tools.calibration products --only bf16  # a part alone, and of it one table (neighbours: kinds, checked)

Nothing of what the files held is used but the bands that only the exam tells of (`make exam ARGS=--bands`), so that the
same tables give the same files, byte for byte. The order: kernels that were timed one by one (products, memory-bound
kernels, attention, FP32 convolutions of 3 x 3, transforms, decompositions), what is known from whole models (curves and
shares of Lambda's and NVIDIA's programs, then those of timm's, eager and compiled; both once more beside measured
kernels, which tell a GPU without any what multiprocessors bound; then the former again), bands, collectives in a node
and between nodes, and last what real GPUs took beside all that (`calibrate_neighbours`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from types import ModuleType

from tools.calibration import (
    calibrate_attention,
    calibrate_bands,
    calibrate_cache,
    calibrate_collectives,
    calibrate_compiled,
    calibrate_cost,
    calibrate_images,
    calibrate_iterated,
    calibrate_neighbours,
    calibrate_network,
    calibrate_products,
    calibrate_published,
    calibrate_streams,
    calibrate_sustained,
    calibrate_winograd,
)
from tools.fitting import HEAD, begin_bands, forget, write

PARTS: dict[str, ModuleType] = {
    "cache": calibrate_cache,
    "products": calibrate_products,
    "streams": calibrate_streams,
    "attention": calibrate_attention,
    "winograd": calibrate_winograd,
    "published": calibrate_published,
    "cost": calibrate_cost,
    "images": calibrate_images,
    "compiled": calibrate_compiled,
    "bands": calibrate_bands,
    "collectives": calibrate_collectives,
    "network": calibrate_network,
    "neighbours": calibrate_neighbours,
    "iterated": calibrate_iterated,
    "sustained": calibrate_sustained,
}
"""Each fits with `calibrate`, but for those that need what the images' fit has found, and has a `check`."""


def begin() -> None:
    """Data files with nothing fitted in them."""
    calibrate_neighbours.remove()
    calibrate_sustained.remove()
    calibrate_streams.begin()
    calibrate_cost.Fit([], {}).write()
    begin_bands()
    write("convolutions", calibrate_images.CONVOLUTIONS_HEAD, [])
    write("generated", calibrate_images.GENERATED_HEAD, [])
    forget()
    calibrate_images.begin()


def calibrate() -> None:
    """Everything, in order."""
    started = time.monotonic()
    found: list[calibrate_images.Found] = []
    stages: dict[str, Callable[[], None]] = {
        "nothing fitted": begin,
        "what L2 holds": calibrate_cache.calibrate,
        "matrix products": calibrate_products.calibrate,
        "memory-bound kernels": calibrate_streams.calibrate,
        "attention": calibrate_attention.calibrate,
        "FP32 convolutions of 3 x 3": calibrate_winograd.calibrate,
        "Fourier transforms and linear algebra": calibrate_published.calibrate,
        "curves and shares of whole models": calibrate_cost.calibrate,
        "shares of image models": lambda: found.append(calibrate_images.calibrate()),
        "measured kernels": calibrate_neighbours.calibrate,
        "curves and shares of whole models beside measured kernels": calibrate_cost.calibrate,
        "shares of image models beside measured kernels": lambda: found.append(calibrate_images.calibrate()),
        "curves and shares of whole models again": calibrate_cost.calibrate,
        "memory-bound kernels, left out": calibrate_streams.validate,
        "compiled image models": lambda: calibrate_compiled.show_left_out(found[-1]),
        "bands": lambda: calibrate_bands.calibrate(found[-1]),
        "collectives": calibrate_collectives.calibrate,
        "collectives between nodes": calibrate_network.calibrate,
        "measured kernels, each left out": calibrate_neighbours.calibrate,
        "element-wise kernels that work out places, left out": calibrate_iterated.calibrate,
        "trainings that hold their load": calibrate_sustained.calibrate,
    }
    for name, stage in stages.items():
        print(f"\n== {name}, {time.monotonic() - started:.0f} s\n{HEAD}", flush=True)
        stage()
        forget()
    print(f"\ndone in {time.monotonic() - started:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--check", action="store_true", help="fit nothing: print the errors of the constants as they are"
    )
    parser.add_argument("--only", default="", help="products' precision, or how the kinds of neighbours begin")
    options = parser.parse_args()
    words = (options.only,) if options.only else ()
    if not options.check and not options.names:
        calibrate()
        return
    for name in options.names or PARTS:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; there are {', '.join(PARTS)}")
        verb = getattr(PARTS[name], "check" if options.check else "calibrate", None)
        if verb is None or (name == "bands" and not options.check):
            parser.error(f"{name} is fitted with all the others only")
        print(HEAD)
        verb(*words)
        forget()
        if name == "streams" and not options.check:
            calibrate_streams.validate()


if __name__ == "__main__":
    main()
