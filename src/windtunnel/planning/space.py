"""What varies between candidates: options of the program, environment variables, overrides; and the range of a search.

    --batch-size=8,16,32                     an option of the program
    --compile                                a switch: without it and with it
    PYTORCH_CUDA_ALLOC_CONF=,expandable_segments:True     an environment variable (capitals)
    optimizer.name=adamw,sgd                 an override `key=value`, as Hydra reads it
    conf/train.json:model.layers=12,24       a value in a JSON file that is an argument of the program

Values that contain commas are separated by semicolons instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel import foreign
from windtunnel.errors import UsageError
from windtunnel.launch import Program

OPTION, SWITCH, VARIABLE, OVERRIDE, CONFIG = "option", "switch", "variable", "override", "config"
LOWEST, HIGHEST = 1, 4096
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@-]*")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")


@dataclass(frozen=True)
class Choice:
    """One value of an axis. `value` is None for a switch that is left out and for a variable that is unset."""

    kind: str
    name: str
    value: str | None

    def __str__(self) -> str:
        if self.kind == SWITCH:
            return self.name if self.value is not None else f"no {self.name}"
        return f"{self.name}={'' if self.value is None else self.value}"


@dataclass(frozen=True)
class Axis:
    """Something that varies, and its values in the order given."""

    kind: str
    name: str
    values: tuple[str | None, ...]

    def choices(self) -> list[Choice]:
        """Each value as a choice."""
        return [Choice(self.kind, self.name, value) for value in self.values]

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The values as whole numbers; None if one of them is not a whole number."""
        if not all(value is not None and re.fullmatch(r"\d+", value) for value in self.values):
            return None
        return tuple(int(value) for value in self.values if value is not None)


@dataclass(frozen=True)
class Largest:
    """An integer option whose largest value that fits is searched for, from `low` to `high` in steps of `step`."""

    kind: str
    name: str
    low: int = LOWEST
    high: int = HIGHEST
    step: int = 1

    def choice(self, value: int) -> Choice:
        """The choice of one value."""
        return Choice(self.kind, self.name, str(value))

    def round(self, value: float) -> int:
        """The nearest value at or below `value` that may be tried."""
        steps = int((value - self.low) // self.step)
        most = (self.high - self.low) // self.step
        return self.low + max(0, min(most, steps)) * self.step

    @property
    def top(self) -> int:
        """The largest value that may be tried."""
        return self.round(self.high)


def parse_axis(text: str) -> Axis:
    """Parse a `--vary` option.

    Raises:
        UsageError: the text has none of the forms, or gives a value twice.
    """
    name, equals, rest = text.partition("=")
    kind = _kind(name, text)
    if not equals:
        if kind != OPTION:
            raise UsageError(f"--vary={text} gives no values: write {name}=VALUE,VALUE")
        return Axis(SWITCH, name, (None, ""))
    values = tuple(value.strip() for value in rest.split(";" if ";" in rest else ","))
    if len(set(values)) < len(values):
        raise UsageError(f"--vary={text} gives a value twice")
    if kind != VARIABLE and "" in values:
        raise UsageError(f"--vary={text} has an empty value: --vary={name} alone tries a switch without and with it")
    return Axis(kind, name, tuple(value or None for value in values) if kind == VARIABLE else values)


def parse_largest(text: str) -> Largest:
    """Parse a `--largest` option: a name, and optionally LOW..HIGH or LOW..HIGH:STEP.

    Raises:
        UsageError: the text does not have that form.
    """
    name, equals, rest = text.partition("=")
    kind = _kind(name, text)
    if not equals:
        return Largest(kind, name)
    match = _RANGE.fullmatch(rest.strip())
    if match is None:
        raise UsageError(
            f"--largest={text} is not a range: write --largest={name}=1..512, or 8..512:8 for multiples of 8"
        )
    low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if not low <= high or low < 1 or step < 1:
        raise UsageError(f"--largest={text} is empty: a range starts at 1 or more and goes up")
    return Largest(kind, name, low, high, step)


def _kind(name: str, text: str) -> str:
    file, colon, key = name.rpartition(":")
    if colon and file and key and Path(file).suffix == ".json":
        return CONFIG
    for kind, pattern in ((OPTION, _OPTION), (VARIABLE, _VARIABLE), (OVERRIDE, _OVERRIDE)):
        if pattern.fullmatch(name):
            return kind
    raise UsageError(
        f"{text!r} cannot vary: write --option=VALUES, VARIABLE=VALUES, key=VALUES or file.json:key=VALUES"
    )


def applied(program: Program, choices: Sequence[Choice]) -> tuple[Program, dict[str, str | None], dict[str, str]]:
    """The program with choices applied: its arguments, variables to set (None: to unset), and files to write, by name.

    An option that is already among the arguments gets its new value there; any other is appended. A file to write is a
    copy of a configuration file; its key also stands in the arguments, where whoever writes the file replaces it by a
    path.

    Raises:
        UsageError: a configuration file cannot be read, lacks the key, or is not an argument of the program.
    """
    arguments = list(program.arguments)
    variables: dict[str, str | None] = {}
    configs: dict[str, list[Choice]] = {}
    for choice in choices:
        if choice.kind == VARIABLE:
            variables[choice.name] = choice.value
        elif choice.kind == CONFIG:
            configs.setdefault(choice.name.rpartition(":")[0], []).append(choice)
        elif choice.kind == OVERRIDE:
            arguments = _overridden(arguments, choice)
        elif choice.kind == SWITCH:
            arguments = [word for word in arguments if word != choice.name]
            arguments += [choice.name] if choice.value is not None else []
        else:
            arguments = _with_option(arguments, choice.name, str(choice.value))
    files = {}
    for file, wanted in configs.items():
        if not any(word == file or word.endswith(f"={file}") for word in arguments):
            raise UsageError(f"{file!r} is not among the program's arguments, so changes in it would have no effect")
        files[file] = _configured(file, wanted)
    return Program(program.kind, program.name, tuple(arguments)), variables, files


def _with_option(arguments: list[str], name: str, value: str) -> list[str]:
    names = {name, "--" + name[2:].replace("-", "_"), "--" + name[2:].replace("_", "-")} if name[:2] == "--" else {name}
    short = not name.startswith("--")
    for index, word in enumerate(arguments):
        head, equals, _ = word.partition("=")
        if head in names and equals:
            return [*arguments[:index], f"{head}={value}", *arguments[index + 1 :]]
        if word in names:
            return [*arguments[: index + 1], value, *arguments[index + 2 :]]
    return [*arguments, name, value] if short else [*arguments, f"{name}={value}"]


def _overridden(arguments: list[str], choice: Choice) -> list[str]:
    kept = [word for word in arguments if word.partition("=")[0] != choice.name]
    return [*kept, f"{choice.name}={choice.value}"]


def _configured(file: str, choices: Sequence[Choice]) -> str:
    try:
        data = foreign.from_json(Path(file).read_bytes(), file, "a configuration")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    for choice in choices:
        keys = choice.name.rpartition(":")[2].split(".")
        place = data
        for key in keys[:-1]:
            place = place.get(key) if isinstance(place, dict) else None
        if not isinstance(place, dict) or keys[-1] not in place:
            raise UsageError(f"{file} has no value {'.'.join(keys)!r} that could vary")
        place[keys[-1]] = _typed(str(choice.value))
    return json.dumps(data, indent=1)


def _typed(text: str) -> object:
    """A value as in JSON: a number, a boolean or null if the text is one, otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def environment_of(variables: Mapping[str, str | None], base: Mapping[str, str]) -> dict[str, str]:
    """An environment with some variables set and others unset."""
    changed = dict(base)
    for name, value in variables.items():
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = value
    return changed
