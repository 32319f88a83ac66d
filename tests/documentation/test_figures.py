"""Figures as data: pages show what docs/figures/*.json hold, and a measured number stands in prose nowhere else."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from tools.docs import figures, versions, words
from tools.programs import programs

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in figures.FOLDER.glob("*.json"))
GENERATED = words.GENERATED | {"errata.md"}
"""Pages without numbers of our own: a command writes them, or, errata.md, they quote what other documents print."""
PAGES = [page for page in figures.pages() if page.name not in GENERATED]
STATED = tomllib.loads((figures.FOLDER / "stated.toml").read_text(encoding="utf-8"))
MEASURED = re.compile(
    r"(?<![\w.,/-])[+±-]?\d[\d,.]*(?:(?: to | and |–)\d[\d,.]*)?\s?(?:%|[mµn]?s\b|seconds\b|minutes\b|times\b|tau\b)"
)
"""A share, a time or a factor: what a command prints rather than what a program is told."""


def prose(text: str) -> str:
    """What a person wrote: without figures, code, and paragraphs that link to where a number is from."""
    text = re.sub(r"(?s)```.*?```|````.*?````", "", figures.TABLE.sub("", text))
    text = re.sub(r"`[^`\n]+`", "", figures.VALUE.sub("", text))
    return "\n\n".join(part for part in text.split("\n\n") if "](http" not in part)


def numbers(page: Path) -> set[str]:
    return {" ".join(number.split()) for number in MEASURED.findall(prose(page.read_text(encoding="utf-8")))}


def test_pages_show_the_figures_as_the_data_have_them() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in figures.pages()}
    assert {name for name, text in texts.items() if figures.rendered(text) != text} == set()
    assert (ROOT / "docs" / "programs.md").read_text(encoding="utf-8") == programs.page(
        figures.load("programs")["rows"]
    )


def test_no_measured_number_stands_in_prose_without_data() -> None:
    stated = {page: set(numbers) for page, numbers in STATED.items()}
    found = {page.name: numbers(page) for page in PAGES}
    assert {page: lost for page in found if (lost := found[page] - stated.get(page, set()))} == {}
    assert {page: gone for page in stated if (gone := stated[page] - found.get(page, set()))} == {}


def test_a_number_in_prose_is_found() -> None:
    text = "It takes 3.5 % (12 to 14 ms) and <!--f:overhead/add/ratio-->3.96<!--/--> times.\n\nSee [it](http://a): 4 %."
    assert MEASURED.findall(prose(text)) == ["3.5 %", "12 to 14 ms"]


def test_a_figure_says_where_it_is_from() -> None:
    every = {name: figures.load(name) for name in NAMES}
    assert not [name for name, data in every.items() if list(data) != [*figures.ORIGIN, "columns", "rows"]]
    assert not [name for name, data in every.items() if set(figures.ORIGIN) & set(data["columns"]) - {"command"}]
    text = {name: (figures.FOLDER / f"{name}.json").read_text(encoding="utf-8") for name in NAMES}
    assert not [name for name, data in every.items() if figures.written(data) != text[name]]
    rows = [(f"{name}/{key}", data, row) for name, data in every.items() for key, row in data["rows"].items()]
    assert not [place for place, data, row in rows if not is_from_somewhere({**data, **row})]
    assert not [place for place, data, row in rows if not set(row) <= {*data["columns"], *figures.ORIGIN}]


def is_from_somewhere(origin: dict[str, str]) -> bool:
    dated = re.fullmatch(r"\d{4}-\d\d-\d\d|unknown", origin["date"])
    committed = re.fullmatch(r"[0-9a-f]{7,40}\+?|unknown", origin["commit"])
    return bool(dated and committed and origin["command"] and origin["machine"])


def test_every_target_that_figures_name_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [figures.load(name)["command"] for name in NAMES]
    named = {target for command in commands for target in re.findall(r"make ([a-z-]+)", command)}
    assert {target for target in named if not re.search(rf"^{target}[a-z -]*:", makefile, re.MULTILINE)} == set()


def test_every_figure_is_shown_somewhere() -> None:
    texts = "".join(page.read_text(encoding="utf-8") for page in figures.pages())
    shown = {
        name
        for found in (*figures.VALUE.findall(texts), *((n, "") for n, _ in figures.TABLE.findall(texts)))
        for name in found[:1]
    }
    assert set(NAMES) - shown == set()


def test_a_comment_never_begins_a_line() -> None:
    """Markdown would take the whole line for HTML."""
    assert [
        page.name
        for page in figures.pages()
        if re.search(r"^\s*<!--f:", page.read_text(encoding="utf-8"), re.MULTILINE)
    ] == []


def test_what_was_measured_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    column = {
        "program": {"title": "program"},
        "ratio": {"title": "times", "digits": 2},
        "spread": {"title": "quartiles"},
    }
    rows = {"add": {"program": "add", "ratio": 4.5, "spread": [4, 5]}, "item": {"program": "item", "ratio": 1200}}
    old = {
        "command": "make bench",
        "machine": "one",
        "date": "2026-01-01",
        "commit": "unknown",
        "columns": column,
        "rows": rows,
    }
    (tmp_path / "bench.json").write_text(json.dumps(old), encoding="utf-8")
    figures.record("bench", {"add": {"ratio": 3.0}})
    new = figures.load("bench")["rows"]
    assert new["add"] | {"machine": "", "date": "", "commit": ""} == {
        "program": "add", "ratio": 3.0, "spread": [4, 5], "machine": "", "date": "", "commit": "",
    }  # fmt: skip
    assert new["item"] == rows["item"]
    assert figures.table("bench").splitlines()[2:] == ["| add | 3.00 | 4–5 |", "| item | 1,200.00 |  |"]
    assert figures.rendered("<!--f:bench/add/ratio-->?<!--/--> x") == "<!--f:bench/add/ratio-->3.00<!--/--> x"


@pytest.mark.parametrize(
    ("triton", "jax", "folders"),
    [
        ("3.2.0", "none", {"architecture", "seam", "ranks"}),
        ("3.10.1", "none", {"architecture", "seam", "ranks", "on_triton"}),
        ("none", "0.12.0.1", {"architecture", "seam", "ranks", "on_jax"}),
    ],
)
def test_an_environment_runs_the_tests_of_what_it_has(triton: str, jax: str, folders: set[str]) -> None:
    chosen = versions.tests_of({"torch": "2.6.0", "triton": triton, "jax": jax, "tensorflow": "none"})
    assert {Path(test).parts[1] for test in chosen} == folders
    assert all((ROOT / test).is_file() for test in chosen)
