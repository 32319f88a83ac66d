"""A pytest plugin that writes down each test as it starts and ends, so that a crash costs the one that was running.

It runs in PyTorch's test processes and imports nothing of windtunnel: the stub is measured with it too. The environment
says what to do: `UPSTREAM_JOURNAL` is the file to append to, `UPSTREAM_SELECT` a file with the names of the tests to
run (all that need CUDA without it, and with `UPSTREAM_EVERY` those that do not say so).
"""

from __future__ import annotations

import inspect
import json
import os
import re
from typing import Any

import pytest

TEXT = 6000
BROKEN = "device-side assert triggered"
OTHER_DEVICE = re.compile(r"(CPU|META|MPS|XPU|HPU)::")
"""The classes that PyTorch makes of a device-generic one, for the other devices."""


def name_of(item: pytest.Item) -> str:
    """`Class::test`, the test's name in its file."""
    return item.nodeid.split("::", 1)[1]


def needs_cuda(item: pytest.Item) -> bool:
    """Whether a test is for CUDA: its file, class or name says so, or its source mentions it."""
    if OTHER_DEVICE.search(name_of(item)):
        return False
    names = f"{item.path.name}::{name_of(item)}".lower()
    if "cuda" in names or "gpu" in names or "data_parallel" in names:
        return True
    function = inspect.unwrap(getattr(item, "obj", None) or needs_cuda)
    try:
        return "cuda" in inspect.getsource(function).lower()
    except (OSError, TypeError):
        return False


class Journal:
    """The hooks; lines are JSON objects."""

    def __init__(self, path: str, select: str | None) -> None:
        self.path = path
        self.select = select
        self.reports: dict[str, list[pytest.TestReport]] = {}
        self.ended = 0

    def write(self, **line: Any) -> None:
        """Append one line at once: nothing of it is lost in a crash."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests to run, in the order asked for."""
        if self.select is None:
            every = bool(os.environ.get("UPSTREAM_EVERY"))
            items[:] = [item for item in items if needs_cuda(item) or every]
            self.write(collected=[name_of(item) for item in items])
            return
        with open(self.select, encoding="utf-8") as file:
            wanted = file.read().splitlines()
        found = {name_of(item): item for item in items}
        items[:] = [found[name] for name in wanted if name in found]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which test runs now."""
        self.reports[nodeid] = []
        self.write(start=nodeid.split("::", 1)[1])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the report of a phase."""
        self.reports.setdefault(report.nodeid, []).append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Say how the test ended."""
        reports = self.reports.pop(nodeid, [])
        if self.ended and reports and reports[0].when == "setup" and BROKEN in reports[0].longreprtext:
            # The test before it has broken the device of this process, as it would a real one: begin another.
            self.write(start=None)
            os._exit(0)
        self.ended += 1
        outcome, message, text = "passed", "", ""
        for report in reports:
            if report.failed:
                outcome, message, text = "failed", first_line(report), report.longreprtext[-TEXT:]
                break
            if report.skipped:
                outcome, message = "skipped", first_line(report)
        seconds = round(sum(report.duration for report in reports), 2)
        self.write(test=nodeid.split("::", 1)[1], outcome=outcome, seconds=seconds, message=message, text=text)

    def pytest_sessionfinish(self) -> None:
        """Say that the session came to its end."""
        self.write(ended=True)


def first_line(report: pytest.TestReport) -> str:
    """The first line of what went wrong, or the reason of a skip."""
    what = report.longrepr
    if isinstance(what, tuple):
        return str(what[2]).removeprefix("Skipped: ").splitlines()[0] if what[2] else ""
    crash = getattr(what, "reprcrash", None)
    lines = str(crash.message if crash is not None else what).strip().splitlines()
    return lines[0] if lines else ""


def pytest_configure(config: pytest.Config) -> None:
    """Begin to write."""
    config.pluginmanager.register(Journal(os.environ["UPSTREAM_JOURNAL"], os.environ.get("UPSTREAM_SELECT")))
