"""The former name stands only in the constant that refuses it, and what was left behind under it is refused."""

import gzip
import subprocess
from pathlib import Path

import platformdirs
import pytest

from windtunnel import settings
from windtunnel.cli import main
from windtunnel.errors import FORMER_NAME, FileFormatError, UsageError
from windtunnel.trace import journal
from windtunnel.trace.trace import Trace

ROOT = Path(__file__).parents[2]
REFUSED_BY = "src/windtunnel/errors.py"
RECORDED_BY_OTHERS: tuple[str, ...] = ()
"""Files that others recorded under the former name."""


def files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def content(name: str) -> bytes:
    data = (ROOT / name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


def test_the_former_name_stands_nowhere_else() -> None:
    names = files()
    assert len(names) > 1000
    word = FORMER_NAME.encode()
    found = [name for name in names if word in content(name).lower() or FORMER_NAME in name.lower()]
    assert found == [REFUSED_BY, *RECORDED_BY_OTHERS]
    assert content(REFUSED_BY).lower().count(word) == 1


def sentence(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert f"belongs to {FORMER_NAME}, which is called windtunnel now: " in text
    assert "\n" not in text
    return text


def test_a_variable_of_the_former_name_is_refused(tmp_path: Path) -> None:
    said = {}
    for name in settings.NAMES:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(settings.variable(name, FORMER_NAME), "1")
            with pytest.raises(UsageError) as error:
                settings.read(tmp_path)
        said[name] = sentence(error)
    assert not [name for name, text in said.items() if not text.endswith(f"set {settings.variable(name)}")]


def test_the_table_of_the_former_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.{FORMER_NAME}]\nfail_on = "error"\n')
    with pytest.raises(FileFormatError) as error:
        settings.read(tmp_path)
    assert sentence(error).endswith("rename it to [tool.windtunnel]")


def test_variables_and_tables_of_the_package_that_has_the_name_today_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{FORMER_NAME.upper()}_API_KEY", "1")
    (tmp_path / "pyproject.toml").write_text(f'[tool.{FORMER_NAME}]\nmodel = "x"\n')
    assert settings.read(tmp_path) == {}


def test_traces_and_journals_of_the_former_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.trace"
    path.write_bytes(gzip.compress(f"{FORMER_NAME}-trace 1\n{{}}\n".encode()))
    with pytest.raises(FileFormatError) as error:
        Trace.load(path)
    assert "record it again with `windtunnel run --trace`" in sentence(error)
    path.write_bytes(journal.MAGIC.replace(b"windtunnel", FORMER_NAME.encode()))
    with pytest.raises(FileFormatError) as error:
        journal.read(path)
    assert sentence(error).endswith("run the program again")


def test_a_command_says_the_sentence_and_ends_with_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(settings.variable("gpus", FORMER_NAME), "2xV100")
    with pytest.raises(SystemExit) as end:
        main(["gpus"])
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith("which is called windtunnel now: set WINDTUNNEL_GPUS\n")


def test_a_plan_says_that_the_former_cache_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    folder = Path(platformdirs.user_cache_dir(FORMER_NAME)) / "plans"
    folder.mkdir(parents=True)
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(SystemExit):
        main(["plan", str(tmp_path / "empty.py"), "--gpus", "T4", "--quiet"])
    assert f"the plan cache {folder} belongs to {FORMER_NAME}" in capsys.readouterr().err
