"""The page of a plan in headless Chromium: it draws time against cost, fits a phone, and stays quiet in the console."""

from __future__ import annotations

import pytest
from chromium import FAINT, UNNAMED, Browser

from helpers.planning_rows import row
from windtunnel.planning import formats
from windtunnel.planning.result import Plan
from windtunnel.planning.rows import Work, parse_prices

WORK = Work(steps=1000, prices=parse_prices(["L4=1", "A100=3"]))
ROWS = [row("L4", 0.5, 1.0), row("A100", 0.1, 10.0), row("T4", 0.9, 2.0), row("V100", None, None, "does not fit")]
CHART = "document.getElementById('frontier-chart')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.mark.parametrize("width", [1280, 390])
def test_a_plan_is_drawn_and_fits(browser, tmp_path, width) -> None:
    page = tmp_path / "plan.html"
    formats.write(page, Plan(ROWS, WORK, "train.py"))
    browser.events.clear()
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    browser.open(page)
    browser.settle()
    assert browser.problems() == []
    assert browser.requests() == []
    assert browser.run(f"{CHART}.data.filter((one) => one.labels).map((one) => one.labels)") == [
        ["T4 with --batch=8"], ["A100 with --batch=8", "L4 with --batch=8"],
    ]  # fmt: skip
    words = browser.run(f"[...{CHART}.querySelectorAll('text')].map((one) => one.textContent)")
    assert {"0.05", "0.1", "hours of the whole run", "cost of the whole run"} <= set(words)
    assert ("A100 with --batch=8" in words) == (width > 390)  # a phone shows it on touch
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(UNNAMED) == []
    for scheme in ("dark", "light"):
        browser.prefer(scheme)
        assert browser.run(FAINT) == []
    assert page.stat().st_size < 100_000
