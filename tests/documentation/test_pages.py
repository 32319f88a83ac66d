"""Every command of every page: its options exist, and what needs no more than a small program runs."""

import importlib
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest

from helpers.nccl_table import TABLE
from windtunnel import networks

pytestmark = pytest.mark.long
"""It runs the pages' commands."""

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "```console" in path.read_text(encoding="utf-8"))
NOT_RUN = {
    r"\[options\]|^\.\.\.|^why |^ {8}rank": "a form or an output, no command",
    r"^(verdict|step|network|ranks|job|dgx-h100) ": "an output",
    r"^windtunnel run .*serve\.py": "tests/planning/test_serving.py",
    r"--host-from": "tests/seam/test_host_work.py: it takes a program whose host has work of its own",
    r"cluster\.trace": "tests/analysis/test_retime.py",
    r"^windtunnel (verify|calibrate)|--curves a100\.toml": "a real GPU, or what was measured on one",
    r"^windtunnel experiment [a-z-]+ --gpus \S+( --report \S+| --small)?$": "tests/experiments runs them all, in small",
    r"^windtunnel plan .*(--largest|8xA100)": "minutes; tests/planning",
    r"^python -m windtunnel.demo": "tests/cli/test_demo.py",
    r"^python examples/recovery/": "another environment; tests/ranks/test_recovery.py has loops of our own",
    r"^python mend\.py": "tests/documentation/test_agents.py",
    r"^torchrun|--nnodes": "tests/documentation/test_many_machines.py",
    r"--fault .*train\.py|--nproc-per-node 2 train\.py": "tests/faults and tests/ranks",
    r"^(pip|jupyter|make) ": "an installation, a server, or a target, which is there (see below)",
    r"^(cd|pytest) .*|^pytest$": "tests/cli/test_pytest_plugin.py and test_pytest_findings.py",
}
PROGRAM = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
size = parser.parse_known_args()[0].batch_size
torch.manual_seed(0)
model = torch.nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(size, 8).cuda()).sum().backward()
    optimizer.step()
"""


def commands(page):
    """A page's command lines, without prompts and comments."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.removeprefix("$ ").partition("  #")[0].rstrip() for block in blocks for line in block.splitlines()]
    return [line.partition("     #")[0] for line in lines if line]


def is_run(line):
    return not any(re.search(pattern, line) for pattern in NOT_RUN)


DONE = {}
"""Finished commands: several pages have the same one."""
RUN = [page for page in PAGES if any(map(is_run, commands(page)))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the programs and files that pages name, as earlier pages make them."""
    here = tmp_path_factory.mktemp("pages")
    (here / "package").mkdir()
    for path in (here / "train.py", here / "package" / "train.py"):
        path.write_text(PROGRAM, encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", (DOCS / "gpus.md").read_text(encoding="utf-8"), re.DOTALL)
    (here / "my.toml").write_text(toml, encoding="utf-8")
    (here / "ours.toml").write_bytes((Path(networks.__file__).parent / "p5.toml").read_bytes())
    (here / "nccl-tests.txt").write_text(TABLE.format(name="all_reduce_perf", other="pt02"), encoding="utf-8")
    made = "--trace v100.trace --report out.snapshot.pickle --report t.kineto.json.gz"
    assert bash(here, f"windtunnel run -q --gpus V100 {made} train.py").returncode == 0
    for name in ("snapshot.pickle", "memory.pickle"):
        (here / name).write_bytes((here / "out.snapshot.pickle").read_bytes())
    (here / "trace.json.gz").write_bytes((here / "t.kineto.json.gz").read_bytes())
    (here / "rehearsal.trace").write_bytes((here / "v100.trace").read_bytes())
    return here


def bash(here, line):
    """The finished command line."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=here,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_commands_have_their_options(folder, monkeypatch):
    monkeypatch.chdir(folder)
    plugin = (ROOT / "src" / "windtunnel" / "pytest_plugin.py").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in (line for page in PAGES for line in commands(page)):
        words = shlex.split(line) if not re.search(r"\[options\]|^why |^ {8}rank", line) else [""]
        if words[0] == "windtunnel":
            command = importlib.import_module(f"windtunnel.cli.{words[1]}").command
            known = {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
            program = next((at for at, word in enumerate(words) if words[1] == "run" and word.endswith(".py")), None)
            used = [word.partition("=")[0] for word in words[2:program] if word.startswith("-")]
            if words[1] not in ("smi", "verify") and "--" not in words:
                assert [option for option in used if option not in known] == [], line
        if words[0] == "pytest":
            assert all(word in plugin for word in words if word.startswith("--gpu")), line
        if words[0] == "make":
            assert re.search(rf"^{words[1]}[a-z -]*:", makefile, re.MULTILINE), line


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(is_run, commands(page)))], ids=lambda page: page.stem
)
def test_a_pages_commands_run(page, folder):
    for line in filter(is_run, commands(page)):
        expected = (0, 1) if line.startswith("windtunnel compare") else (0,)
        if line not in DONE:
            DONE[line] = bash(folder, line)
        assert DONE[line].returncode in expected, f"{line}\n{DONE[line].stderr}"


def test_every_exception_is_needed():
    lines = [line for page in PAGES for line in commands(page)]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for line in lines)] == []


EVERY_PAGE = [(page, page.read_text(encoding="utf-8")) for page in sorted(DOCS.rglob("*.md"))]


def headings(text):
    """The anchors of a page: those that MkDocs gives its headings, and those written out."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    titles = re.findall(r"^#+ +(.*)$", plain, re.MULTILINE)
    written = set(re.findall(r'<a id="([^"]+)">', text))
    return written | {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_links_lead_somewhere():
    lost = []
    for page, text in EVERY_PAGE:
        prose = re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL)
        for link, anchor in re.findall(r"\]\((?!http|mailto)([^)#\s]*)(?:#([^)\s]+))?\)", prose):
            target = page.parent / link if link else page
            if not target.exists() or (anchor and anchor not in headings(target.read_text(encoding="utf-8"))):
                lost.append(f"{page.name}: {link}#{anchor}")
    assert not lost


def test_programs_are_python():
    for page, text in EVERY_PAGE:
        for _, program in re.findall(r"^ *(`{3,})python\n(.*?)^ *\1$", text, re.DOTALL | re.MULTILINE):
            compile(textwrap.dedent(program), str(page), "exec")
