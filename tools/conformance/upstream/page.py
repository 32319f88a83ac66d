"""What the runs of PyTorch's tests mean: counts by subject, and the page `docs/conformance.md`."""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from .runs import BAD, OTHER_GPUS, Result

HERE = Path(__file__).parent
COLUMNS = ("passed", "failed", "skipped", "out of scope", "not run")


@cache
def table(name: str) -> dict[str, Any]:
    """One of the data files beside this module."""
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def whole_files() -> list[str]:
    """The files that are run whole."""
    return list(table("files.toml")["files"])


def suite_files() -> list[str]:
    """The files of suites."""
    return [file for one in table("files.toml")["suite"] for file in one["files"]]


def files() -> list[str]:
    """All files."""
    return [*whole_files(), *suite_files()]


def suite(file: str) -> dict[str, Any]:
    """The suite that a file belongs to; an empty one for those that are run whole."""
    return next((one for one in table("files.toml")["suite"] if file in one["files"]), {})


def seconds(file: str, name: str, usual: float) -> float:
    """What a test may take of processor time: the `usual` unless the table gives it more."""
    given = _first(table("files.toml")["longer"], file, name, "seconds")
    return usual if given is None else max(usual, float(given))


def drawn(file: str, names: Iterable[str]) -> set[str]:
    """Of the names of a file's tests that are in scope those to run: all, or a seeded sample of a suite's size."""
    inside = sorted(name for name in names if out_of_scope(file, name) is None)
    size = suite(file).get("sample", len(inside))
    return set(inside if size >= len(inside) else random.Random(file).sample(inside, size))


def listed() -> list[tuple[str, str]]:
    """The listed tests as (file, Class::test)."""
    rows = []
    for line in (HERE / "listed.txt").read_text(encoding="utf-8").split():
        base, name = line.split("::", 1)
        rows.append((next(file for file in files() if file.rsplit("/")[-1] == base), name))
    return rows


def out_of_scope(file: str, name: str) -> str | None:
    """Why a test is out of scope; None when it is in scope."""
    return _first(table("scope.toml").get("out", ()), file, name, "reason")


def subject(file: str, name: str) -> str:
    """The row of the table that a test belongs to."""
    return _first(table("files.toml")["subject"], file, name, "name") or suite(file)["name"]


def reason(file: str, result: Result) -> str:
    """Why a test fails, or does not run."""
    return _first(table("reasons.toml").get("why", ()), file, result.name, "reason") or _short(result)


def _first(rows: Iterable[Mapping[str, str]], file: str, name: str, key: str) -> str | None:
    for row in rows:
        fits = row["file"] in (file, "*") or (row["file"] == "suites" and suite(file))
        if fits and re.search(row["pattern"], name):
            return row[key]
    return None


def _short(result: Result) -> str:
    message = re.sub(r"0x[0-9a-f]+", "0x...", result.message).removeprefix("[XPASS(strict)] ")
    message = re.sub(r"/\S*/(?=[\w.-]+)", "", message)  # no path of the machine it ran on
    return message[:160] + ("..." if len(message) > 160 else "")


@dataclass
class Runs:
    """All results, by file and test: on emulated GPUs, and on the stub (None where that did not run).

    `empty` are the files of which pytest collects no test.
    """

    torch: str
    emulated: dict[str, dict[str, Result]]
    stub: dict[str, dict[str, Result]] | None
    empty: frozenset[str] = frozenset()

    def rows(self, chosen: Iterable[tuple[str, str]] | None = None) -> list[tuple[str, Counter[str], int | None]]:
        """(subject, counts by column, passed on the stub) of the tests chosen, in the order of the subjects' table."""
        subjects = [*table("files.toml")["subject"], *table("files.toml")["suite"]]
        counts: dict[str, Counter[str]] = {row["name"]: Counter() for row in subjects}
        stub: Counter[str] = Counter()
        unknown: set[str] = set()
        for file, name in self.tests() if chosen is None else chosen:
            row = subject(file, name)
            counts[row][self.column(file, name)] += 1
            if self.stub is not None and out_of_scope(file, name) is None:
                known = self.stub.get(file, {})
                result = known.get(name, known.get("import"))  # a module that cannot be imported passes nothing
                stub[row] += result is not None and result.outcome == "passed"
                if result is None:
                    unknown.add(row)
        return [
            (row, count, None if self.stub is None or row in unknown else stub[row])
            for row, count in counts.items()
            if count
        ]

    def tests(self) -> list[tuple[str, str]]:
        """Every test that ran or is out of scope."""
        return [
            (file, name)
            for file, results in self.emulated.items()
            for name, result in results.items()
            if result.outcome != EARLIER
        ]

    def partial(self) -> set[str]:
        """The files of which only those tests were run that had failed on an earlier page."""
        return {
            file
            for file, results in self.emulated.items()
            if any(result.outcome == EARLIER for result in results.values())
        }

    def since(self, earlier: str) -> Runs:
        """These results for a page that is to replace the `earlier` one: of a partial file what failed there.

        A partial file that did not come to its end is left out, so that the earlier page stays right.
        """
        before, chosen = failing_before(earlier), dict(self.emulated)
        for file in self.partial():
            results = chosen.pop(file)
            names = before.get(file, set())
            if all(name in results and results[name].outcome != "not run" for name in names):
                chosen[file] = {name: results[name] for name in sorted(names)}
        return replace(self, emulated=chosen)

    def column(self, file: str, name: str) -> str:
        """The column that a test counts in."""
        if out_of_scope(file, name) is not None:
            return "out of scope"
        result = self.emulated.get(file, {}).get(name)
        if result is None:
            return "not run"
        return "failed" if result.outcome in BAD else result.outcome

    def failing(self) -> dict[str, list[tuple[str, str]]]:
        """By file, the failing tests with their reasons."""
        found: dict[str, list[tuple[str, str]]] = {}
        for file, name in self.tests():
            if self.column(file, name) == "failed":
                found.setdefault(file, []).append((name, reason(file, self.emulated[file][name])))
        return found


def share(counts: Counter[str]) -> float:
    """Passed among those in scope that ran to an end."""
    ran = counts["passed"] + counts["failed"]
    return counts["passed"] / ran if ran else 0.0


def cells(runs: Runs, chosen: Iterable[tuple[str, str]] | None = None) -> list[list[str]]:
    """The table's cells: a header, a line a subject, a sum."""
    rows = runs.rows(chosen)
    sums: Counter[str] = Counter()
    for _, counts, _ in rows:
        sums.update(counts)
    found = [stub for *_, stub in rows]
    total = None if None in found else sum(stub for stub in found if stub is not None)
    lines = [["subject", *COLUMNS, "passed of passed and failed", "a stub passes"]]
    for name, counts, stub in [*rows, ("all", sums, total)]:
        lines.append(
            [
                name,
                *(str(counts[column]) for column in COLUMNS),
                f"{share(counts):.1%}",
                "-" if stub is None else str(stub),
            ]
        )
    return lines


def text(lines: list[list[str]]) -> str:
    """Cells as a table for a terminal."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def markdown(lines: list[list[str]]) -> str:
    """Cells as a Markdown table."""
    rule = ["---", *["---:"] * (len(lines[0]) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]])


def document(runs: Runs) -> str:
    """The page `docs/conformance.md`."""
    listed_passed = sum(runs.column(*test) == "passed" for test in listed())
    parts = [
        "# PyTorch's own CUDA tests",
        "`make conformance` writes this page. It fetches the tests of PyTorch 2.6.0 from Debian's source package, runs "
        f"those that need CUDA on torch {runs.torch} with two emulated GPUs, and counts. The tests are unchanged. "
        "*A stub* only claims that there are two GPUs: a test that passes on it proves nothing. Most of the test "
        "modules create a tensor on the GPU while they are imported, which fails on the stub.",
        f"Of the {len(listed())} tests in `tools/conformance/upstream/listed.txt`, {listed_passed} pass.",
        markdown(cells(runs)),
        "*Skipped* tests skip themselves, mostly for reasons unrelated to emulation: slow tests, ROCm, libraries that "
        "are not installed. *Out of scope* tests are not run. *Not run* tests were not reached by the last run. A test "
        "that skips itself where there are two GPUs is run on one or on four.",
        "Tests beyond these files are on [a page of their own](conformance-suites.md).",
        *_alone(runs),
        "## Out of scope",
        *_scope(runs),
        "## Failing tests",
        *(_failures(file, rows) for file, rows in runs.failing().items()),
    ]
    return "\n\n".join(parts) + "\n"


def _alone(runs: Runs) -> list[str]:
    names = [
        f"`{name}`"
        for file, name in runs.tests()
        if runs.column(file, name) == "passed" and runs.emulated[file][name].alone
    ]
    if not names:
        return []
    return [
        "Failing tests were run once more, each in a process of its own, as PyTorch's CI does (`run_test_retries` in "
        f"its `test/run_test.py`). {len(names)} passed there, because they had failed only after earlier tests of "
        f"their file: {', '.join(names)}."
    ]


def suites_document(runs: Runs, earlier: str = "") -> str:
    """The page `docs/conformance-suites.md`; suites that were not run stay as the `earlier` page has them."""
    partial, runs = runs.partial(), runs.since(earlier)
    ran = {file for file, _ in runs.tests()}
    kept = Earlier.read(earlier, ran, {file: len(runs.emulated[file]) for file in ran & partial})
    empty = runs.empty | kept.empty
    left = [
        f"`{file}`"
        for file in suite_files()
        if file not in ran | empty and (file in kept.left or suite(file)["name"] not in kept.rows)
    ]
    parts = [
        "# PyTorch's tests beyond its CUDA files",
        '`make conformance ARGS="--suites"` writes this page. It runs tests of PyTorch 2.6.0 that are not in the files '
        f"of [the other page](conformance.md), unchanged, on torch {runs.torch} with two emulated GPUs, or four where "
        "a test needs more than two. The target for each suite is that 97 % of its tests in scope pass.",
        markdown(kept.joined(cells(runs))),
        *([f"{MARK} of an earlier run, or of one and of the last, which {LAST}."] if kept.rows else []),
        *([f"{NOT_REACHED}: {', '.join(left)}."] if left else []),
        *([f"{NO_TESTS}: {', '.join(f'`{file}`' for file in sorted(empty))}."] if empty else []),
        "*Skipped* tests skip themselves, mostly for reasons unrelated to emulation. *Not run* tests were not reached "
        "by the last run.",
        *_elsewhere(runs),
        *_samples(),
        *_longer(),
        *_alone(runs),
        "## Out of scope",
        *_scope(runs, earlier),
        "## Failing tests",
        *(_failures(file, rows) for file, rows in runs.failing().items()),
        *kept.failures,
    ]
    return "\n\n".join(parts) + "\n"


MARK = "†"
EARLIER = "earlier"
"""The outcome of a test that a run with `--failed` leaves as the page has it."""
NOT_REACHED = "Files that the last run did not reach"
NO_TESTS = "Files of which pytest collects no test, on a GPU either (a decorator makes a function of their only class)"
LAST = "ran other files, or of a file only what had failed"


def failing_before(text: str) -> dict[str, set[str]]:
    """By file, the tests that a page says failed."""
    sections = text.partition("## Failing tests")[2].split("\n### ")[1:]
    return {section.split()[0]: set(re.findall(r"`(\w+::[^`]+)`", section)) for section in sections}


def files_after(words: str, text: str) -> set[str]:
    """The files that a page lists in the line that begins with these words."""
    return set(re.findall(r"`([^`]+)`", "".join(re.findall(rf"^{re.escape(words)}: (.*)$", text, re.MULTILINE))))


@dataclass
class Earlier:
    """What an earlier page says of suites of which no file was run again as a whole.

    `rows` are the table's cells by suite, `failures` the sections of their files, `left` the files not reached then,
    `empty` those without a test.
    """

    rows: dict[str, list[str]]
    failures: list[str]
    left: set[str]
    empty: set[str]

    @classmethod
    def read(cls, text: str, ran: set[str], partial: Mapping[str, int]) -> Earlier:
        """Of a page's text what is of suites none of whose files that it has were among those that `ran` now.

        `partial` has the files of which only failing tests ran again, with the number of these; they leave the row's
        column of failed tests, and the file its section.
        """
        left = files_after(NOT_REACHED, text)
        again = {suite(file)["name"] for file in ran - left - partial.keys()}
        table_lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
        names = {one["name"] for one in table("files.toml")["suite"]} - again
        rows = {line[0].removesuffix(f" {MARK}"): line[1:] for line in table_lines}
        sections = [f"### {section.strip()}" for section in text.partition("## Failing tests")[2].split("\n### ")[1:]]
        failures = [
            one for one in sections if suite(one.split()[1]).get("name") in names and one.split()[1] not in partial
        ]
        failed = COLUMNS.index("failed")
        for file, number in partial.items():
            if suite(file)["name"] in names:
                row = rows[suite(file)["name"]]
                row[failed] = str(int(row[failed]) - number)
        return cls({name: rows[name] for name in names & rows.keys()}, failures, left, files_after(NO_TESTS, text))

    def joined(self, lines: list[list[str]]) -> list[list[str]]:
        """The table's cells with the rows of the earlier run among them, and the sum of both."""
        header, *new, last = lines
        found = [line for line in new if line[0] not in self.rows]
        for name, row in self.rows.items():
            others = [line for line in new if line[0] == name]
            counts = Counter(
                {column: sum(int(line[i]) for line in ([name, *row], *others)) for i, column in enumerate(COLUMNS, 1)}
            )
            found.append(
                [f"{name} {MARK}", *(str(counts[column]) for column in COLUMNS), f"{share(counts):.1%}", row[-1]]
            )
        order = [one["name"] for one in table("files.toml")["suite"]]
        found.sort(key=lambda line: order.index(line[0].removesuffix(f" {MARK}")))
        sums = Counter({name: sum(int(line[i]) for line in found) for i, name in enumerate(COLUMNS, 1)})
        return [header, *found, ["all", *(str(sums[name]) for name in COLUMNS), f"{share(sums):.1%}", last[-1]]]


def _elsewhere(runs: Runs) -> list[str]:
    """What skipped itself for its number of GPUs, and was not run with another: so it is with `--once`."""
    found = [runs.emulated[file][name] for file, name in runs.tests() if runs.column(file, name) == "skipped"]
    count = sum(any(re.search(words, result.message) for words in OTHER_GPUS) for result in found)
    return [f"{count} of the skipped tests want another number of GPUs and were not run with it."] if count else []


def _samples() -> list[str]:
    sizes = {row["name"]: row["sample"] for row in table("files.toml")["suite"] if "sample" in row}
    words = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return [
        "Of some suites only a random sample of the tests in scope is run; the seed is the file's name. At most this "
        f"many tests are drawn per file, all if the file has fewer: {words}. The files, the sample sizes and what is "
        "out of scope were fixed in `tools/conformance/upstream/files.toml` and `scope.toml` before a suite's first "
        "run, except for what is marked *added later* below. Tests of the profiler and of "
        "`distributed/` are in scope whether or not they mention CUDA."
    ]


def _longer() -> list[str]:
    """The tests that may take longer than others, from the table."""
    rows = [f"`{row['file']}` {row['seconds']} s ({row['reason']})" for row in table("files.toml")["longer"]]
    return [f"A test may take 120 s of processor time, and those of some files more: {', '.join(rows)}."]


def _scope(runs: Runs, earlier: str = "") -> list[str]:
    """What is out of scope and how often; reasons that only the `earlier` page has stay as they are there."""
    counts = Counter(why for test in runs.tests() if (why := out_of_scope(*test)) is not None)
    later = {row["reason"] for row in table("scope.toml")["out"] if row.get("later")}
    section = earlier.partition("## Out of scope")[2].partition("\n## ")[0]
    known = dict(line[2:-1].rsplit(" (", 1) for line in section.splitlines() if line.startswith("- "))
    lines = [f"- {why} ({count})" for why, count in known.items() if why not in counts]
    for why, count in counts.items():
        before = known.get(why, str(count)).partition(",")[0]
        added = ", added later" * (why in later) + f", {before} in an earlier run" * (before != str(count))
        lines.append(f"- {why} ({count}{added})")
    return ["\n".join(lines)]


def _failures(file: str, rows: list[tuple[str, str]]) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, why in rows:
        by_reason.setdefault(why, []).append(name)
    ordered = sorted(by_reason.items(), key=lambda row: -len(row[1]))
    lines = [f"- {_escaped(why)}: {', '.join(f'`{name}`' for name in names)}" for why, names in ordered]
    return f"### {file}\n\n" + "\n".join(lines)


def _escaped(words: str) -> str:
    return re.sub(r"([\\`*_<>\[\]()|])", r"\\\1", words)
