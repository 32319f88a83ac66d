"""Schemas of what commands print with `--json`: each has one, and what it prints is what that says."""

from __future__ import annotations

import json

import click
import jsonschema
import pytest
from click.testing import CliRunner

from helpers.schemas import conforms
from windtunnel.cli import NAMES, group
from windtunnel.cli._schemas import OUTPUTS, schema_of
from windtunnel.errors import UsageError


def prints_json(name: str) -> bool:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return any("--json" in one.opts for one in command.params)


def test_every_command_that_prints_json_has_a_schema() -> None:
    assert {name for name in NAMES if prints_json(name)} == {name.partition(" ")[0] for name in OUTPUTS}


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_schema_is_one(command: str) -> None:
    done = CliRunner().invoke(group, ["explain", "--schema", *command.split()], catch_exceptions=False)
    schema = json.loads(done.stdout)
    assert schema == json.loads(json.dumps(schema_of(command)))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert f"windtunnel {command} --json" in schema["title"]


@pytest.mark.parametrize(
    "words", ["gpus", "gpus V100 H100", "explain", "explain host-sync", "experiment list"], ids=str.split
)
def test_what_is_printed_is_what_the_schema_says(words: str) -> None:
    done = CliRunner().invoke(group, [*words.split(), "--json"], catch_exceptions=False)
    command = words if words in OUTPUTS else words.partition(" ")[0]
    assert conforms(command, json.loads(done.stdout))


def test_a_key_that_the_schema_does_not_know_is_found() -> None:
    (page, *_) = json.loads(CliRunner().invoke(group, ["explain", "host-sync", "--json"]).stdout)
    with pytest.raises(jsonschema.ValidationError):
        conforms("explain", [page | {"another": 1}])


def test_what_prints_no_json_is_refused() -> None:
    with pytest.raises(UsageError, match="no schema of 'smi'"):
        schema_of("smi")
