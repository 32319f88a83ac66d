"""Folders in places that others may write to: what is already there is not believed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from windtunnel import arrivals
from windtunnel.folders import private_folder, user_cache
from windtunnel.seam.torch.compiled import compilers


def link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent / "elsewhere")


def open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def open_to_its_group(path: Path) -> None:
    path.mkdir()
    path.chmod(0o770)


PLANTED: dict[str, Callable[[Path], object]] = {
    "a link": link,
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "a file": Path.touch,
    "a pipe": os.mkfifo,
    "open to others": open_to_others,
    "open to its group": open_to_its_group,
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
def test_what_was_planted_is_not_used(plant: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "shared" / "wanted"
    path.parent.mkdir()
    plant(path)
    with pytest.raises(OSError, match="remove it"):
        private_folder(str(path))


def test_another_users_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private_folder(str(tmp_path / "wanted"))
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_folder(str(tmp_path / "wanted"))


def test_a_private_folder_is_made_once_with_all_above_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    for _ in range(2):
        assert private_folder(str(path)) == str(path)
    assert [one.stat().st_mode & 0o777 for one in (path, path.parent)] == [0o700, 0o700]


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as of a user id without a passwd entry
    assert user_cache("plans") is None


@pytest.mark.parametrize("plant", [link, open_to_others])
@pytest.mark.parametrize("named", [True, False])
def test_generated_code_lies_elsewhere_for_as_long_as_the_emulation(
    plant: Callable[[Path], object], named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tmp_path / "windtunnel" if named else tmp_path / "windtunnel" / "inductor"
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    wanted.parent.mkdir(exist_ok=True)
    plant(wanted)
    with ExitStack() as stack:
        chosen = compilers.folder(str(tmp_path) if named else None, stack)
        assert Path(chosen).is_dir()
        assert not Path(chosen).is_relative_to(tmp_path)
        assert os.stat(chosen).st_mode & 0o777 == 0o700
    assert not Path(chosen).exists()


def test_generated_code_lies_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    with ExitStack() as stack:
        assert compilers.folder(None, stack) == str(tmp_path / "windtunnel" / "inductor")
        assert compilers.folder(str(tmp_path / "own"), stack) == str(tmp_path / "own" / "windtunnel")


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
def test_a_rank_on_its_way_leaves_nothing_in_a_planted_folder(
    plant: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in arrivals.RANKS + arrivals.JOBS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    plant(tmp_path / f"windtunnel-{os.getuid()}-7----")
    here = arrivals.Arrival()
    here.begin()
    assert (here.path, here.folder, here.gone()) == ("", "", [])
    assert not [path for path in tmp_path.rglob("*") if path.name == "1"]
