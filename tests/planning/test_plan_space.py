"""What varies, as the command line says it, and the program with a choice of it."""

import json

import pytest

from windtunnel.errors import UsageError
from windtunnel.launch import Program
from windtunnel.planning.space import Choice, Largest, applied, environment_of, parse_axis, parse_largest

TRAIN = Program("script", "train.py", ("--lr", "1e-3", "--batch_size=4", "--amp", "conf.json", "model.depth=2"))


def words(text: str, index: int = 0) -> tuple[str, ...]:
    program, _, _ = applied(TRAIN, [parse_axis(text).choices()[index]])
    return program.arguments


def test_an_option_takes_the_place_of_the_one_that_is_given() -> None:
    assert words("--batch-size=8,16", 1)[2] == "--batch_size=16"
    assert words("--lr=1e-4")[:2] == ("--lr", "1e-4")


def test_other_options_come_last() -> None:
    assert words("--steps=8")[-1] == "--steps=8"
    assert words("-b=8")[-2:] == ("-b", "8")


def test_a_switch_is_left_out_and_given() -> None:
    assert "--amp" not in words("--amp", 0)
    assert words("--amp", 1).count("--amp") == 1
    assert words("--compile", 1)[-1] == "--compile"


def test_an_override_replaces_its_key() -> None:
    assert words("model.depth=2,4", 1)[-1] == "model.depth=4"
    assert "model.depth=2" not in words("model.depth=2,4", 1)


def test_a_variable_is_set_or_unset_and_may_hold_commas() -> None:
    axis = parse_axis("PYTORCH_CUDA_ALLOC_CONF=;expandable_segments:True,max_split_size_mb:64")
    assert axis.values == (None, "expandable_segments:True,max_split_size_mb:64")
    program, variables, _ = applied(TRAIN, [axis.choices()[0]])
    assert program == TRAIN
    assert environment_of(variables, {"PYTORCH_CUDA_ALLOC_CONF": "x", "HOME": "/"}) == {"HOME": "/"}


def test_a_value_of_a_configuration_is_written_into_a_copy(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf.json").write_text('{"model": {"layers": 12, "name": "a"}}')
    axis = parse_axis("conf.json:model.layers=12,24")
    _, _, files = applied(TRAIN, [axis.choices()[1]])
    assert json.loads(files["conf.json"]) == {"model": {"layers": 24, "name": "a"}}
    assert json.loads((tmp_path / "conf.json").read_text())["model"]["layers"] == 12
    with pytest.raises(UsageError, match=r"has no value 'model\.heads'"):
        applied(TRAIN, [Choice("config", "conf.json:model.heads", "8")])
    with pytest.raises(UsageError, match="would have no effect"):
        applied(Program("script", "train.py"), axis.choices())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("--batch-size=8,8", "twice"),
        ("--batch-size=8,", "empty value"),
        ("SEED", "gives no values"),
        ("8,16", "cannot vary"),
    ],
)
def test_what_cannot_vary_is_said(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_axis(text)


def test_a_range_is_bounded_where_it_says_so() -> None:
    assert parse_largest("--batch-size") == Largest("option", "--batch-size", 1, 4096, 1)
    assert parse_largest("--batch-size=8..100:8").top == 96
    for text in ("--batch-size=8", "--batch-size=9..8", "--batch-size=0..8"):
        with pytest.raises(UsageError, match="range"):
            parse_largest(text)
