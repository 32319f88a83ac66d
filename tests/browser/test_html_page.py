"""The HTML report in headless Chromium: it draws, it zooms, it asks for nothing, and it stays quiet in the console."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
from chromium import FAINT, UNNAMED, Browser

from windtunnel import checks
from windtunnel.reports import html
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind, Lane, Signature, Site

sys.path.insert(0, str(Path(__file__).parents[1] / "checks"))

from traces import HTOD, Program

HOSTILE = "<img src=x onerror='window.hacked=1'><a href='javascript:window.hacked=1'>x</a>"
CHART = "document.getElementById('timeline-chart')"


def program(steps: int) -> Program:
    made = Program(gpus=2)
    made.trace.facts["gpus"] = [
        {
            "name": "Tesla V100-SXM2-16GB",
            "memory_bytes": 16 << 30,
            "compute_capability": [7, 0],
            "peak_flops": {"fp32": 15.7e12, "fp16": 125e12},
            "memory_bandwidth_bytes_per_s": 900e9,
        }
    ] * 2
    made.row(Kind.KERNEL, Lane(0, 0), Signature(HOSTILE, flops=1 << 20), Site(HOSTILE, 1, HOSTILE), 0, 10, 1 << 16)
    for step in range(steps):
        made.copy(HTOD, 1 << 16, line=10).memory("alloc", step, 1 << 16, 10, "input")
        for kernel in range(10):
            made.kernel("aten::addmm", ns=8_000, line=12, flops=1 << 24, stream=kernel % 2)
        made.kernel("aten::relu", line=13, device=1).item(line=15).step(step)
    return made


def bars(browser: Browser) -> int:
    return browser.run(f"{CHART}.data.reduce((sum, trace) => sum + trace.x.length, 0)")


def shown(browser: Browser) -> list[float]:
    return browser.run(f"{CHART}.layout.xaxis.range.map(Number)")


def drawn(browser: Browser) -> int:
    return browser.run("document.querySelectorAll('.chart .plot-container').length")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chromium")
    with Browser(folder) as chromium:
        yield chromium


@pytest.fixture
def visit(browser, tmp_path):
    def opened(made: Program, *more: Finding) -> Browser:
        page = tmp_path / "run.html"
        page.write_text(html.render(made.trace, [*checks.run(made.trace), *more]), "utf-8")
        browser.call("Emulation.clearDeviceMetricsOverride")
        browser.prefer("light")
        browser.events.clear()
        browser.open(page)
        browser.settle()
        return browser

    return opened


def test_nothing_goes_wrong_and_nothing_is_asked_for(visit):
    page = visit(program(steps=30), Finding("host-sync", "info", HOSTILE, HOSTILE, Site(HOSTILE, 3, HOSTILE)))
    unfold(page)
    for part in ("#timeline-chart", ".memory-chart", "#roofline-chart", "footer"):
        page.show(part)
    assert page.problems() == []
    assert page.requests() == []
    assert page.run("window.hacked") is None
    assert page.run("document.querySelectorAll('main img, main a').length") == 0


def test_charts_are_drawn_when_they_come_into_view(visit):
    page = visit(program(steps=30))
    assert drawn(page) == 0  # whoever reads the findings does not wait for it
    unfold(page)
    for number, chart in enumerate(("#timeline-chart", ".memory-chart", "#roofline-chart"), 1):
        page.show(chart)
        assert drawn(page) >= number
    lanes = page.run(f"{CHART}.layout.yaxis.lanes")
    assert sorted(lanes) == ["cuda:0 stream 0", "cuda:0 stream 1", "cuda:1 stream 0", "host main thread"]


def test_a_peak_narrower_than_a_pixel_is_outlined(visit):
    page = visit(program(steps=30))
    page.show(".memory-chart")
    tops = "[...document.querySelectorAll('.memory-chart .%s')].map((one) => one.getBBox().y)"
    (outline,) = page.run(tops % "total")
    assert outline == min(page.run(tops % "area"))


def unfold(page: Browser) -> None:
    page.run("document.querySelectorAll('main > details').forEach((one) => { one.open = true; })")


def test_the_timeline_opens_at_a_steady_step(visit):
    page = visit(program(steps=300))
    page.show("#timeline-chart")
    opened = shown(page)
    page.press('[data-zoom="all"]')
    whole = shown(page)
    assert opened[1] - opened[0] < (whole[1] - whole[0]) / 50
    page.press('[data-zoom="step"]')
    assert shown(page) == pytest.approx(opened)


def test_everything_on_the_page_has_a_name_and_contrast(visit):
    page = visit(program(steps=30))
    unfold(page)
    assert page.run(UNNAMED) == []
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        assert page.run(FAINT) == []


def test_what_scrolls_takes_the_keyboard_and_the_tiles_are_terms_and_descriptions(visit):
    """Two rules of axe-core: scrollable-region-focusable and definition-list."""
    made = program(3)
    page = visit(made, Finding("code", "error", "message", "advice", Site(__file__, 20)))
    unfold(page)
    assert page.run("[...document.querySelectorAll('pre, .scroll')].map((one) => one.tabIndex)").count(0) > 4
    assert page.run("document.querySelectorAll('pre:not([tabindex]), .scroll:not([tabindex])').length") == 0
    assert page.run("document.querySelectorAll('.tiles > div > :not(dt, dd), .tiles [role]:is(dt, dd)').length") == 0


def test_a_dark_page_has_contrast_in_the_marked_line_too(visit):
    made = program(3)
    browser = visit(made, Finding("code", "error", "message", "advice", Site(__file__, 20)))
    browser.prefer("dark")
    assert browser.run("document.querySelectorAll('.marked .number').length") > 0
    assert browser.run(FAINT) == []


def test_what_is_printed_is_drawn_whole(visit):
    page = visit(program(steps=30))
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert drawn(page) == 3


def test_buttons_zoom_to_single_operations_and_back(visit):
    page = visit(program(steps=300))
    page.show("#timeline-chart")
    page.press('[data-zoom="all"]')
    whole, all_bars = shown(page), bars(page)
    assert all_bars > 500
    for _ in range(12):
        page.press('[data-zoom="0.5"]')
    close = shown(page)
    assert close[1] - close[0] < (whole[1] - whole[0]) / 1000
    assert 0 < bars(page) < 100
    assert "for " in page.run(f"{CHART}.data[0].tips[0]")
    page.press('[data-move="0.5"]')
    assert shown(page)[0] == pytest.approx((close[0] + close[1]) / 2)
    page.press('[data-zoom="all"]')
    assert shown(page) == pytest.approx(whole)


def test_dragging_over_the_timeline_zooms_to_what_was_dragged_over(visit):
    page = visit(program(steps=300))
    page.show("#timeline-chart")
    page.press('[data-zoom="all"]')
    whole = shown(page)
    page.drag("#timeline-chart .surface", 0.25, 0.5)
    width = whole[1] - whole[0]
    assert shown(page) == pytest.approx([whole[0] + width / 4, whole[0] + width / 2], abs=width / 50)
    assert bars(page) > 0


def test_a_phone_scrolls_in_one_direction_only(visit, tmp_path):
    page = visit(program(steps=5))
    page.phone()
    page.events.clear()
    page.call("Page.reload")
    page.wait_for_load()
    unfold(page)
    page.show("#timeline-chart")
    page.show("#roofline-chart")
    assert page.run("document.documentElement.scrollWidth <= window.innerWidth")
    width, height = struct.unpack(">II", page.picture(tmp_path / "phone.png")[16:24])
    assert (width, height) == (780, 1688)


def test_a_dark_screen_gets_a_dark_page_and_dark_charts(visit):
    page = visit(program(steps=5))
    page.show("#timeline-chart")
    back = "getComputedStyle(document.body).backgroundColor"
    letters = "document.querySelector('#timeline-chart text').getAttribute('fill')"
    light, light_chart = page.run(back), page.run(letters)
    page.prefer("dark")
    assert page.run(back) != light
    assert page.run(letters) != light_chart


def test_a_hundred_thousand_operations_can_be_looked_at(visit):
    page = visit(program(steps=7_700))
    page.show("#timeline-chart")
    page.press('[data-zoom="all"]')
    all_bars = bars(page)
    for _ in range(9):
        page.press('[data-zoom="0.5"]')
    assert page.problems() == []
    assert 0 < bars(page) < all_bars < 5_000
