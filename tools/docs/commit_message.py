"""Check a commit's message, as a hook of git: a subject of at most 60 characters, an empty line, a body that says why.

python tools/docs/commit_message.py .git/COMMIT_EDITMSG
"""

from __future__ import annotations

import sys
from pathlib import Path

LONGEST_SUBJECT = 60
MADE_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
SCISSORS = "# ------------------------ >8 ------------------------"


def problem(message: str) -> str:
    """What is wrong with a message, in one sentence; empty where nothing is."""
    written = message.partition(SCISSORS)[0].splitlines()
    lines = "\n".join(line for line in written if not line.startswith("#")).strip().splitlines()
    subject = lines[0] if lines else ""
    if subject.startswith(MADE_BY_GIT):
        return ""
    if not subject:
        return "the commit message is empty: name the change in its first line"
    if len(subject) > LONGEST_SUBJECT:
        return (
            f"the subject has {len(subject)} characters: name the change in at most {LONGEST_SUBJECT}, why goes below"
        )
    if len(lines) < 3 or lines[1].strip():
        return "the commit message has no body: leave a line empty below the subject and say why"
    return ""


def main(path: str) -> int:
    """The exit status for the message in that file."""
    found = problem(Path(path).read_text(encoding="utf-8"))
    if found:
        print(found, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
