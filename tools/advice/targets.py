"""The programs whose advice is followed: loops of ours, the corpus, the mission's documents, programs of others."""

from __future__ import annotations

import ast
import math
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.checks.corpus import Page, pages

from tools import ROOT
from tools.advice.loops import FAULTS, UNCAPTURED, Program, programs
from tools.advice.rehearsal import Job, rehearse
from tools.advice.rewriting import lengthened, marked, tries
from tools.programs.program_data import MAKERS
from tools.programs.programs import Row, rows
from windtunnel import checks
from windtunnel.judgement import SHORT
from windtunnel.trace.finding import Finding

TABLE = Path(__file__).with_name("patches.toml")
NOTEBOOK = ROOT / "tests" / "programs" / "notebook.py"
ERRORS = {check.code for check in checks.all_checks() if check.severity == "error"}
LONG_ENOUGH = round(1.1 * SHORT)


@dataclass(frozen=True)
class Change:
    """A way to follow the advice of `code`, or of whichever findings have the fix `fix`, and the job with it."""

    job: Job
    code: str = ""
    fix: str = ""
    promised: bool = False
    """Whether it is tried only where a finding promised something."""

    def follows(self, finding: Finding) -> bool:
        """Whether it is what a finding advises."""
        return finding.code == self.code or (not self.code and finding.fix == self.fix)


@dataclass(frozen=True)
class Target:
    """A program: where it is from, its name, the job that runs it, and what is made of it by each advice."""

    origin: str
    name: str
    job: Job
    changes: tuple[Change, ...] = ()
    setup: Callable[[], None] | None = field(default=None, compare=False)


def targets(only: str, sources: Path | None, part: str, done: Container[str]) -> Iterator[Target]:
    """Every program whose name holds `only`, or the part `K/N` of them, less those that are `done`.

    Whoever runs them prepares them first.
    """
    first, step = (int(number) for number in part.split("/"))
    named = [(name, make) for name, make in _named(sources) if only in name]
    for name, make in named[first - 1 :: step]:
        target = make() if name not in done else None
        if target is not None:
            yield target


def _named(sources: Path | None) -> Iterator[tuple[str, Callable[[], Target | None]]]:
    """The name of each program, and what makes its target; None is made of one that cannot be judged."""
    table: list[dict[str, Any]] = tomllib.loads(TABLE.read_text("utf-8"))["program"]
    patches = {row["page"]: row["patch"] for row in table if "page" in row}
    unknown = patches.keys() - {page.path.stem for page in pages()}
    if unknown:
        raise ValueError(f"{TABLE.name} has rows of pages that do not exist: {', '.join(sorted(unknown))}")
    for page in sorted(pages(), key=lambda page: page.path.stem not in patches):
        if page.ranks == 1 and not page.triton:
            yield f"corpus: {page.path.stem}", partial(of_page, page, patches.get(page.path.stem, {}))
    for row in table:
        if "program" in row:
            yield name_of(row), partial(of_file, row)
    for other in rows()[0]:
        if runs_alone(other):
            yield f"others: {other.name}", partial(of_others, other, sources)
    for program in programs():
        yield f"loop: {program.name}", partial(of_loop, program)


def of_loop(program: Program) -> Target:
    """A loop of ours, with the patch of each fault that it has or that anything may have."""
    file = Path("loop.py")

    def job(fixed: str = "") -> Job:
        tree = marked(ast.parse(program.source(fixed)))
        return Job(tree, file, program.gpus, options={"no_data": True, "assume": 0.0, "memory_history": True})

    changes = []
    for name, fault in FAULTS.items():
        if fault.bad and name not in program.faults:
            continue
        if name == "launches" and UNCAPTURED & set(program.faults):
            continue
        if name == "full precision" and "A100" not in program.gpus:
            continue
        changes.append(Change(job(name), code=fault.code))
    return Target("loops", f"loop: {program.name}", job(), tuple(changes))


def of_page(page: Page, patches: Mapping[str, Mapping[str, str]]) -> Target | None:
    """A program of the corpus, its loop long enough to be judged; None where it has no loop, or is wrong by intent."""
    if {code for code, _, _ in page.expected} & ERRORS:
        return None
    options: dict[str, object] = {"memory_history": page.history}
    try:
        once = lengthened(ast.parse(page.program), 1)
    except ValueError:
        return None
    first = rehearse(Job(once, page.path, page.gpus, options=options, judged=False))
    if first.failed or not (first.kernels or page.history):
        return None
    times = math.ceil(LONG_ENOUGH / first.kernels) if first.kernels else 1

    def job(source: str) -> Job:
        tree = lengthened(ast.parse(source), times)
        return Job(marked(tree), page.path, page.gpus, options=options)

    whole = job(page.program)
    changes = [Change(job(replaced(page.program, words, page.path.stem)), code=code) for code, words in patches.items()]
    assert isinstance(whole.source, ast.Module)
    for fix, way, tree in tries(whole.source, page.gpus):
        changes.append(
            Change(Job(tree, page.path, page.gpus, (), way.prelude, options), fix=fix, promised=way.promised)
        )
    return Target("corpus", f"corpus: {page.path.stem}", whole, tuple(changes))


def replaced(source: str, words: Mapping[str, str], name: str) -> str:
    """A program with some of its text replaced; raises ValueError where it does not hold what is to be replaced."""
    for old, new in words.items():
        if old not in source:
            raise ValueError(f"{name} does not hold {old!r}")
        source = source.replace(old, new)
    return source


def name_of(row: Mapping[str, Any]) -> str:
    """How a row of the table is called."""
    where = "mission" if row.get("listing") else "examples"
    return " ".join([f"{where}: {Path(row['program']).name}", *row.get("arguments", ()), f"on {row['gpus']}"])


def of_file(row: Mapping[str, Any]) -> Target:
    """A program of the repository that is run as it is."""
    path = ROOT / row["program"]
    file, arguments = (NOTEBOOK, (str(path),)) if row.get("listing") else (path, tuple(row.get("arguments", ())))
    options: dict[str, object] = {"no_data": True, "assume": 0.0} if row.get("no_data") else {}
    job = Job(file.read_text("utf-8"), file, row["gpus"], arguments, options=options)
    by_hand = [
        Change(job._replace(source=replaced(str(job.source), words, path.stem)), code=code)
        for code, words in row.get("patch", {}).items()
    ]
    changes = (*by_hand, *preludes(job, path))
    return Target("mission" if row.get("listing") else "examples", name_of(row), job, changes)


def preludes(job: Job, file: Path) -> tuple[Change, ...]:
    """The fixes that need no other text than one before the program."""
    found = []
    text = file.read_text("utf-8")
    for fix, way, _ in tries(ast.parse(text), job.gpus, rewriting=False):
        found.append(Change(job._replace(prelude=way.prelude), fix=fix, promised=way.promised))
    return tuple(found)


def runs_alone(row: Row) -> bool:
    """Whether a program of others is a script that runs in one process and ends by itself."""
    script = row.script or (row.command[0] if row.command else "")
    return script.endswith(".py") and not (row.options or row.tests or row.until or row.variables)


def of_others(row: Row, sources: Path | None) -> Target:
    """A program of others, in a copy of the folder that it needs."""
    folder = Path(tempfile.mkdtemp(prefix="windtunnel-advice-")) / "program"
    words = [f"{folder}/{word[2:]}" if word.startswith("@/") else word for word in row.command]
    if row.script:
        file = ROOT / "tools" / "programs" / "scripts" / row.script
    else:
        file = folder / words.pop(0)
    origin = None if sources is None or not row.checkout else sources / row.checkout.split("/")[1] / row.folder

    def setup() -> None:
        if row.checkout and (origin is None or not origin.is_dir()):
            raise FileNotFoundError(f"needs a checkout of {row.checkout}: --sources DIR")
        if origin is None:
            folder.mkdir()
        else:
            shutil.copytree(origin, folder, ignore=shutil.ignore_patterns(".git"))
        if row.prepare:
            MAKERS[row.prepare](folder)

    job = Job("", file, row.gpus, tuple(words), folder=folder)
    return Target("others", f"others: {row.name}", job, setup=setup)


def prepared(target: Target) -> Target:
    """A target whose files are there; raises OSError with a sentence where they cannot be had."""
    if target.setup is None:
        return target
    target.setup()
    job = Job(target.job.file.read_text("utf-8"), *target.job[1:])
    return Target(target.origin, target.name, job, preludes(job, job.file))
