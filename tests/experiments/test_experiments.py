"""What holds for every experiment: its text follows from its numbers, and each form of the result shows both."""

import json

import pytest

from windtunnel import experiments
from windtunnel.experiments import _html, _text
from windtunnel.experiments._result import Timeline
from windtunnel.trace.units import join_units

SEVERAL_PROCESSES = {"scaling"}


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.long] if name in SEVERAL_PROCESSES else [])
        for name in experiments.names()
    ]
)
def result(request, small):
    return small(request.param)


def test_the_conclusion_states_facts_and_nothing_else(result, loose_numbers):
    assert loose_numbers(result) == []
    assert 1 <= len(result.conclusion) <= 3


def test_every_number_says_where_it_comes_from(result):
    assert set(result.sources) == set(result.devices)
    assert result.sources.get("cpu", "measured") == "measured"
    assert result.sources.get("gpu", "modelled").startswith("modelled")
    wanted = {origin for table in result.tables for column in table.columns for origin in column.of}
    assert wanted <= set(result.devices)
    assert len(result.provenance()) == len(result.used()) >= len(wanted)


def test_rows_are_as_long_as_their_headings(result):
    assert result.tables
    assert result.plots
    for table in result.tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_the_text_the_page_and_the_json_hold_the_same(result):
    documentation = experiments.documentation(result.name)
    text = " ".join(_text.render(result, experiments.title(result.name)).split())
    page = _html.render(result, documentation)
    loaded = json.loads(json.dumps(result.as_dict()))
    for sentence in result.conclusion:
        assert sentence in text
    for table in result.tables:
        for row in _text.cells(table.told()):
            plain = [cell for cell in row if cell.isascii() and not set(cell) & set("<>&'\"")]
            assert all(f">{join_units(cell)}</td>" in page for cell in plain)
    assert loaded["conclusion"] == list(result.conclusion)
    assert loaded["facts"].keys() == result.facts.keys()
    assert " src=" not in page.partition("<script>")[0]


def test_plots_have_words(result):
    for plot in result.plots:
        spoken = _text.spoken(result, plot)
        assert plot.title in spoken
        names = plot.lanes if isinstance(plot, Timeline) else [series.name for series in plot.series]
        assert all(name in spoken for name in names)


def test_the_page_of_an_experiment_begins_with_its_question(result):
    first, blank, *rest = experiments.documentation(result.name).splitlines()
    assert first.endswith(("?", "."))
    assert blank == ""
    assert len(rest) > 2
