"""The page of an experiment in headless Chromium: each kind of plot is drawn, named, and fits a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import FAINT, UNNAMED, Browser

from windtunnel.experiments import _html
from windtunnel.experiments._result import Axis, Bar, Column, Fact, Plot, Result, Series, Table, Timeline

XS = (16.0, 128.0, 1024.0)
NAMES = ("the defaults", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
RESULT = Result(
    name="made",
    devices={"cpu": "a CPU", "gpu": "a GPU"},
    tables=(Table("Times", (Column("n"), Column("GPU", "s", ("gpu",))), ((16, 1e-5), (1024, 2e-3))),),
    plots=(
        Plot(
            "Time of one product",
            Axis("n", log=True),
            Axis("time", "s", log=True),
            (
                Series("the claim", XS, (1e-6, 1e-5, 1e-4)),
                Series("CPU float32", XS, (2e-6, 4e-5, 3e-3), ("cpu",), "float32"),
                Series("GPU float32", XS, (1e-5, None, 4e-5), ("gpu",), "float32"),
            ),
        ),
        Plot(
            "Unused", Axis("setting"), Axis("unused", "share"), (Series("case", NAMES, (0.7, 0.0), ("gpu",)),), "bars"
        ),
        Timeline("Feeding", (Bar("host", "copy", 0.0, 1e-3), Bar("GPU", "compute", 1e-3, 2e-3))),
    ),
    facts={"n": Fact(1024)},
    conclusion=("It wins at n = 1,024.",),
    sources={"cpu": "measured", "gpu": "modelled, ±20 %"},
)
TEXTS = "[...document.querySelectorAll('[data-figure=\"%d\"] text')].map((one) => one.textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    with Browser(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.mark.parametrize("width", [1280, 390])
def test_every_plot_is_drawn_and_fits(browser: Browser, tmp_path: Path, width: int) -> None:
    page = tmp_path / "experiment.html"
    page.write_text(_html.render(RESULT, "Is it faster?\n\nIt may be."), "utf-8")
    assert page.stat().st_size < 100_000
    browser.events.clear()
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    browser.open(page)
    browser.settle()
    assert (browser.problems(), browser.requests()) == ([], [])
    lines, bars, timeline = (browser.run(TEXTS % number) for number in range(3))
    assert {"n", "time", "16", "1.00 ms"} <= set(lines)
    assert {*NAMES, "unused", "70 %", "0 %"} <= set(bars)
    assert {"host", "GPU", "time since the first operation", "0 ns"} <= set(timeline)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(UNNAMED) == []
    for scheme in ("dark", "light"):
        browser.prefer(scheme)
        assert browser.run(FAINT) == []


def test_a_colour_is_a_type_and_a_dash_the_device(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "experiment.html"
    page.write_text(_html.render(RESULT, "Is it faster?\n\nIt may be."), "utf-8")
    browser.events.clear()
    browser.open(page)
    browser.settle()
    strokes = browser.run(
        "[...document.querySelectorAll('[data-figure=\"0\"] path')]"
        ".map((one) => [one.getAttribute('stroke'), one.getAttribute('stroke-dasharray')])"
    )
    (claim, dotted), (cpu, dashed), (gpu, solid) = strokes
    assert cpu == gpu != claim
    assert len({dotted, dashed, solid}) == 3
    assert solid == "none"
