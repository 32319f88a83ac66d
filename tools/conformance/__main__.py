"""Run PyTorch's own CUDA tests on two emulated GPUs and count what passes: `make conformance`.

    python -m tools.conformance                      # the listed tests and whole files; writes docs/conformance.md
    python -m tools.conformance --suites             # tests beyond those files; writes docs/conformance-suites.md
    python -m tools.conformance --list               # only the listed ones (upstream/listed.txt)
    python -m tools.conformance --only test_nn.py --failed   # what did not pass in a file; where its journal is not
                                                          # at hand, what the page of suites says failed
    python -m tools.conformance --sources DIR        # PyTorch's sources at hand instead of Debian's source package

The tests are PyTorch's and are not kept here: they are fetched into `.cache/`, which git ignores. A run that was cut
off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import Progress

from tools import ROOT
from tools.conformance.upstream import page
from tools.conformance.upstream.runs import BAD, EMULATED, STUB, FileJournal, Result, Runner
from tools.conformance.upstream.sources import VERSION, SourcesError, find, flame_graphs

CACHE = ROOT / ".cache" / "conformance"
PAGE = ROOT / "docs" / "conformance.md"
SUITES_PAGE = ROOT / "docs" / "conformance-suites.md"


def terminated(*_: object) -> NoReturn:
    """A request to end is an interruption like Ctrl-C."""
    raise KeyboardInterrupt


def main() -> int:
    """Fetch, run, count; the exit status: 0 when every listed test passes, 1 when not, 2 for a wrong option."""
    options = arguments()
    signal.signal(signal.SIGTERM, terminated)
    try:
        folder = find(CACHE, options.sources)
    except SourcesError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    try:
        flame_graphs(CACHE)
    except SourcesError as error:
        print(f"conformance: without flamegraph.pl (tests that draw a flame graph fail): {error}", file=sys.stderr)
    torch = version("torch").split("+")[0]
    options.suites = options.suites or bool(set(options.only or ()) & set(page.suite_files()))
    whole = page.suite_files() if options.suites else page.whole_files()
    files = options.only or whole
    memory = int(options.memory_gb * 2**30)
    results: dict[str, dict[str, dict[str, Result]]] = {}
    empty: frozenset[str] = frozenset()
    for kind, plugins in (("emulated", EMULATED), ("stub", STUB))[: 1 if options.no_stub else 2]:
        every = frozenset(file for file in page.files() if page.suite(file).get("every"))
        runner = Runner(folder, plugins, options.test_seconds, memory, every=every, limit=page.seconds)
        journals = CACHE / f"{kind}-{torch}"
        if not run_all(runner, journals, files, kind, options):
            print("conformance: interrupted; the same command goes on from here", file=sys.stderr)
            return 130
        read = {file: FileJournal.read(path(journals, file)) for file in whole}
        if kind == "emulated":
            empty = frozenset(file for file, journal in read.items() if journal.finished and not journal.collected)
        results[kind] = {
            file: found(file, journal) if kind == "emulated" else journal.results for file, journal in read.items()
        }
    runs = page.Runs(torch, results["emulated"], results.get("stub"), empty)
    if not options.only and not options.suites:
        print("The listed tests:")
        print(page.text(page.cells(runs, page.listed())))
    if not options.list:
        print("\nWhole files, the tests that need CUDA:")
        print(page.text(page.cells(runs)))
        if torch == VERSION and not options.only:
            target = SUITES_PAGE if options.suites else PAGE
            earlier = target.read_text(encoding="utf-8") if target.exists() else ""
            text = page.suites_document(runs, earlier) if options.suites else page.document(runs)
            target.write_text(text, encoding="utf-8")
            print(f"\nwritten: {target.relative_to(ROOT)}")
    if options.suites:
        return 0
    bad = [f"{file}::{name}" for file, name in page.listed() if runs.column(file, name) in ("failed", "not run")]
    for name in bad if not options.only else ():
        print(f"does not pass: {name}")
    return 1 if bad else 0


def run_all(runner: Runner, journals: Path, files: list[str], kind: str, options: argparse.Namespace) -> bool:
    """Bring the journals of all files to their end, several at a time; False when interrupted."""
    shown = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with shown, ThreadPoolExecutor(options.jobs) as pool:
        work = [pool.submit(run, runner, journals, file, kind, options) for file in files]
        try:
            for one in shown.track(as_completed(work), total=len(work), description=f"files, {kind}"):
                one.result()
        except KeyboardInterrupt:
            runner.stopping = True
            for one in work:
                one.cancel()
            return False
    return True


def run(runner: Runner, journals: Path, file: str, kind: str, options: argparse.Namespace) -> None:
    """Bring one file's journal to its end."""
    journal = FileJournal.read(path(journals, file))
    if options.fresh or (journal.finished and kind == "emulated" and not options.failed and not options.count):
        journal.forget()
    elif options.failed and kind == "emulated" and journal.collected:
        journal.forget(BAD)
    if options.count or (kind == "stub" and journal.finished):
        return
    if not journal.collected:
        runner.run(file, journal, frozenset())
        journal = FileJournal.read(journal.path)
    inside = page.drawn(file, journal.collected)
    if options.failed and options.suites and kind == "emulated" and not journal.results:
        leave_as_before(journal, file, inside)
    wanted = inside & {name for at, name in page.listed() if at == file} if options.list else inside
    runner.run(file, journal, frozenset(wanted))
    journal = FileJournal.read(journal.path)
    if kind == "emulated" and not options.once:
        runner.again(file, journal)
        runner.with_other_gpus(file, FileJournal.read(journal.path))
        journal = FileJournal.read(journal.path)
    if inside <= journal.results.keys():
        for name in journal.left():  # out of scope, or not of the sample
            journal.write(test=name, outcome="skipped", seconds=0, message="not run", text="")
        journal.write(finished=True)
    print(f"{kind}: {file}: {len(wanted)} tests", file=sys.stderr, flush=True)


def leave_as_before(journal: FileJournal, file: str, inside: set[str]) -> None:
    """Of a file without a journal that the page has: note that all but its failing tests stay as they are there."""
    text = SUITES_PAGE.read_text(encoding="utf-8")
    if file not in page.files_after(page.NOT_REACHED, text):
        for name in sorted(inside - page.failing_before(text).get(file, set())):
            journal.write(test=name, outcome=page.EARLIER, seconds=0, message="", text="")


def found(file: str, journal: FileJournal) -> dict[str, Result]:
    """A file's results; a test without one was not run, and those that were not drawn are left out."""
    drawn = page.drawn(file, journal.collected)
    names = [name for name in journal.collected if name in drawn or page.out_of_scope(file, name) is not None]
    return {name: journal.results.get(name, Result(name, "not run")) for name in names or journal.results}


def path(journals: Path, file: str) -> Path:
    """Where a file's journal is."""
    return journals / (file.replace("/", "-").removesuffix(".py") + ".jsonl")


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="Run PyTorch's own CUDA tests on two emulated GPUs.")
    parser.add_argument("--sources", type=Path, metavar="DIR", help="PyTorch's sources, or their folder test")
    parser.add_argument("--suites", action="store_true", help="run the suites of upstream/files.toml instead")
    parser.add_argument("--list", action="store_true", help="run only the tests of upstream/listed.txt")
    parser.add_argument(
        "--only", action="append", choices=page.files(), metavar="FILE", help="run only this file; may be repeated"
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--failed", action="store_true", help="run again only what did not pass")
    again.add_argument("--fresh", action="store_true", help="forget what an earlier run found, the stub's too")
    again.add_argument("--count", action="store_true", help="run nothing: count what earlier runs found")
    parser.add_argument("--no-stub", action="store_true", help="do not measure what a stub would pass")
    parser.add_argument("--once", action="store_true", help="do not run again, alone, what failed")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="files at a time (2)")
    parser.add_argument("--test-seconds", type=float, default=120, help="processor time of a test (120)")
    parser.add_argument("--memory-gb", type=float, default=8, help="what a test process may have of memory (8)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
