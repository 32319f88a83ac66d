"""A change says what it is: a fragment for the changelog, and a commit message with a short subject and a body."""

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
from tools.docs import changelog, commit_message

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Name the change\n\nSay why.\n", ""),
        ("x" * 60 + "\n\nSay why.\n", ""),
        ("x" * 61 + "\n\nSay why.\n", "the subject has 61 characters"),
        ("Name the change\n", "the commit message has no body"),
        ("Name the change\nSay why.\n", "the commit message has no body"),
        ("Name the change\n\n# Changes to be committed:\n", "the commit message has no body"),
        ("# nothing\n", "the commit message is empty"),
        ("Merge branch 'some' with a name that is longer than any subject may ever be\n", ""),
        (f"Name the change\n\nSay why.\n{commit_message.SCISSORS}\ndiff --git\n", ""),
    ],
)
def test_a_commit_message_has_a_short_subject_and_a_body(message: str, said: str) -> None:
    problem = commit_message.problem(message)
    assert problem.startswith(said) if said else problem == ""


def test_the_hook_refuses_a_message_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text("Name the change\n", encoding="utf-8")
    assert "entry: python3 tools/docs/commit_message.py\n" in (ROOT / ".pre-commit-config.yaml").read_text(
        encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "tools/docs/commit_message.py", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


def test_fragments_become_the_release_above_the_last_one(tmp_path: Path) -> None:
    changes = tmp_path / "changes"
    changes.mkdir()
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\nNewest first.\n\n## 0.1.0\n\n- **Run** it.\n", encoding="utf-8"
    )
    (changes / "README.md").write_text("How to.\n", encoding="utf-8")
    (changes / "plan.md").write_text("**Plans** say more,\nin two lines.\n", encoding="utf-8")
    (changes / "checks.md").write_text("**Checks** find more.\n", encoding="utf-8")
    changelog.release(tmp_path, "0.2.0", datetime.date(2027, 1, 2))
    assert (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8") == (
        "# Changelog\n\nNewest first.\n\n## 0.2.0 (2027-01-02)\n\n- **Checks** find more.\n"
        "- **Plans** say more,\n  in two lines.\n\n## 0.1.0\n\n- **Run** it.\n"
    )
    assert [path.name for path in changes.iterdir()] == ["README.md"]


def test_the_changelog_has_one_entry_a_version_and_fragments_are_sentences() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = [line.split()[1] for line in text.splitlines() if line.startswith("## ")]
    assert versions == sorted(set(versions), reverse=True)
    assert max(len(entry.split()) for entry in text.split("\n## ")) < 600, "a change has a file of its own in changes/"
    for path in changelog.fragments(ROOT):
        fragment = path.read_text(encoding="utf-8")
        assert fragment.startswith("**"), path
        assert fragment.strip().endswith((".", ")")), path
        assert len(fragment.split()) <= 120, path
