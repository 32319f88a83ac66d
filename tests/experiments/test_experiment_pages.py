"""docs/experiments/ has a page for each experiment, made from a run, and a table of all."""

from pathlib import Path

import pytest

from windtunnel import experiments

FOLDER = Path(__file__).parents[2] / "docs" / "experiments"


def test_every_experiment_has_its_page_and_no_other_is_there():
    assert {path.stem for path in FOLDER.glob("*.md")} == {*experiments.names(), "index"}


def test_the_index_lists_all_with_their_questions():
    rows = [line for line in (FOLDER / "index.md").read_text("utf-8").splitlines() if line.startswith("| [")]
    assert rows == [f"| [{name}]({name}.md) | {experiments.title(name)} |" for name in experiments.names()]


@pytest.mark.parametrize("name", experiments.names())
def test_a_page_has_question_command_numbers_and_pictures(name):
    text = (FOLDER / f"{name}.md").read_text("utf-8")
    assert text.startswith(f"# {experiments.documentation(name).splitlines()[0]}\n")
    assert f"windtunnel experiment {name}" in text
    assert "| --: |" in text or "| :-- |" in text
    pictures = sorted(path.name for path in FOLDER.glob(f"{name}-[0-9]*.svg"))
    assert pictures
    assert all(f"]({picture})" in text for picture in pictures)
