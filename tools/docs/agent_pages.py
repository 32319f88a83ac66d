"""Write what is for programs from the documentation: SKILL.md, docs/llms.txt, and the list of edits in docs/agents.md.

python -m tools.docs.agent_pages          # write them
python -m tools.docs.agent_pages --check  # exit 1 when one is not what it would write
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from tools import ROOT
from windtunnel import checks
from windtunnel.checks._edits import EDITED

DOCS = ROOT / "docs"
DESCRIPTION = (
    "Run, time, check and fix CUDA programs written with PyTorch on a machine without a GPU, unmodified, on emulated "
    "GPUs of any model. Use it to test GPU code, to find out why a training is slow, wrong or out of memory, or which "
    "GPU and batch size to take."
)
INSTALL = """## Install

Python 3.11 or newer; no GPU, driver or CUDA. Install PyTorch's CPU build first, then `pip install "windtunnel[torch]"`
(in a clone: `pip install ".[torch]"`). `windtunnel doctor` says what is missing, with the command that fixes it.
"""
SECTION = re.compile(r"^  - (.+):$")
PAGE = re.compile(r"^      - (?:(.+): )?([a-z0-9-]+)\.md$")
EDITS = re.compile(r"(<!-- edits -->\n).*?(?=\nWhere an edit)", re.DOTALL)


def nav() -> dict[str, list[tuple[str, str]]]:
    """The site's pages by section, each with its label and its name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in (ROOT / "mkdocs.yml").read_text("utf-8").splitlines():
        if section := SECTION.match(line):
            found[section[1]] = []
        elif (page := PAGE.match(line)) and found:
            found[list(found)[-1]].append((page[1], page[2]))
    return {section: pages for section, pages in found.items() if pages}


def about(name: str) -> str:
    """A page's first sentence."""
    text = (DOCS / f"{name}.md").read_text("utf-8")
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^( {4}|#|\||<a ).*$", "", text, flags=re.MULTILINE)
    first = " ".join(text.strip().split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:?])\s(?=[A-Z*`])", first, maxsplit=1)[0].rstrip(":")
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", sentence)


def llms() -> str:
    """The pages, as https://llmstxt.org has it."""
    start = (DOCS / "index.md").read_text("utf-8").split("\n\n")[1]
    lines = ["# windtunnel", "", f"> {' '.join(start.split())}", "", "`windtunnel explain PAGE` prints a page.", ""]
    for section, pages in nav().items():
        rows = [f"- [{label}]({name}.md): {about(name)}" for label, name in pages]
        lines += [f"## {section}", "", *rows, ""]
    return "\n".join(lines)


def section(page: str, title: str) -> str:
    """A section of a page, with its title."""
    text = (DOCS / f"{page}.md").read_text("utf-8")
    return re.split(r"\n## ", text[text.index(f"## {title}\n") + 3 :], maxsplit=1)[0].strip()


def edits() -> str:
    """The list of findings that have an edit."""
    return ", ".join(f"[{code}](checks/{code}.md)" for code in EDITED) + ".\n"


def agents(text: str) -> str:
    """The page for agents with that list."""
    return EDITS.sub(lambda found: found[1] + edits(), text)


def skill(page: str) -> str:
    """What an agent should know, of the page for agents and of others."""
    body = page.partition("\n\n")[2]
    commands = (DOCS / "command-line.md").read_text("utf-8").partition("| command |")[2].partition("\n\n")[0]
    codes = "\n".join(f"| `{one.code}` | {one.severity} | {one.title()} |" for one in checks.all_checks())
    parts = [
        f"---\nname: windtunnel\ndescription: {DESCRIPTION}\n---\n\n# windtunnel\n",
        INSTALL,
        f"## What it tells a program\n\n{body.strip()}\n",
        f"## Commands\n\n| command |{commands}\n",
        f"## {section('command-line', 'Exit codes')}\n",
        f"## {section('reports', 'JSON')}\n",
        f"## Findings\n\n`windtunnel explain CODE` has the page of each.\n\n| code | worst | what it finds |\n"
        f"| --- | --- | --- |\n{codes}\n",
    ]
    return re.sub(r"(?<!!)\[([^]]+)\]\([^)#:]*(?:\.md)?(?:#[^)]*)?\)", r"\1", "\n".join(parts)).replace(
        "<!-- edits -->\n", ""
    )


def wanted() -> dict[Path, str]:
    """Every file's text."""
    page = agents((DOCS / "agents.md").read_text("utf-8"))
    return {DOCS / "agents.md": page, DOCS / "llms.txt": llms(), ROOT / "SKILL.md": skill(page)}


def main() -> int:
    """Write the files, or compare; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    compare, texts = parser.parse_args().check, wanted()
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in stale:
        if compare:
            print(f"{path.relative_to(ROOT)} is out of date: run python -m tools.docs.agent_pages", file=sys.stderr)
        else:
            path.write_text(texts[path], "utf-8")
    return 1 if compare and stale else 0


if __name__ == "__main__":
    sys.exit(main())
