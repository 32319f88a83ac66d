"""PyTorch's test sources: from a folder at hand, or from Debian's source package by the machine's own apt client.

Debian trixie carries PyTorch 2.6.0 (https://packages.debian.org/source/trixie/pytorch). Only its `test/` folder is
unpacked, into a folder that git ignores. The mirror and its key are those of the machine's own apt sources.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

VERSION = "2.6.0"
SUITE = "trixie"
FLAME_GRAPHS = "libdevel-nytprof-perl"
SYSTEM = Path("/etc/apt")


class SourcesError(Exception):
    """The test sources cannot be had: what is missing and what to do."""


def find(cache: Path, given: Path | None, system: Path = SYSTEM) -> Path:
    """The folder `test/` of PyTorch's sources: of `given`, or of `cache`, fetched into it when it is not there.

    Raises:
        SourcesError: The folder given holds no test sources, or there is no apt client or Debian mirror to ask.
    """
    if given is not None:
        for folder in (given, given / "test"):
            if (folder / "test_cuda.py").is_file():
                return folder.resolve()
        raise SourcesError(f"{given} holds no test_cuda.py: name PyTorch's source folder or its folder test")
    folder = cache / f"pytorch-{VERSION}" / "test"
    if not folder.is_dir():
        apt = Apt(cache / "apt", system)
        apt.run("source", "--download-only", "pytorch")
        archives = list(apt.downloads.glob(f"pytorch_{VERSION}*.orig.tar.*"))
        if not archives:
            raise SourcesError(f"Debian {SUITE} has no PyTorch {VERSION}: name a source folder with --sources DIR")
        unpack(archives[0], folder)
    return folder


def flame_graphs(cache: Path, system: Path = SYSTEM) -> None:
    """Put flamegraph.pl where `torch.cuda._memory_viz` looks for it before it would download it from the internet.

    Debian ships the script with a Perl profiler. A test that draws a flame graph fails where it cannot be had.
    """
    wanted = Path(f"/tmp/{os.getuid()}_flamegraph.pl")  # torch/cuda/_memory_viz.py: format_flamegraph
    if wanted.exists():
        return
    apt = Apt(cache / "apt", system)
    apt.run("download", FLAME_GRAPHS)
    package = next(apt.downloads.glob(f"{FLAME_GRAPHS}_*.deb"))
    subprocess.run(["dpkg-deb", "--extract", package, apt.folder / "unpacked"], check=True)
    script = next((apt.folder / "unpacked").rglob("flamegraph.pl"))
    shutil.copy(script, wanted)
    wanted.chmod(0o755)


class Apt:
    """The machine's apt client on package lists of its own, in `folder`: nothing of the system changes."""

    def __init__(self, folder: Path, system: Path) -> None:
        if shutil.which("apt-get") is None:
            raise SourcesError("there is no apt-get to fetch PyTorch's tests with: name a folder with --sources DIR")
        self.folder = folder.resolve()
        self.downloads = self.folder / "downloads"
        for name in ("lists/partial", "cache/archives/partial", "downloads"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "sources.list").write_text(source_lines(system), encoding="utf-8")
        self.run("update")

    def run(self, *arguments: str) -> None:
        """One command of apt-get, in the folder of downloads."""
        options = {
            "Dir::Etc::sourcelist": self.folder / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            "APT::Sandbox::User": "root",  # the folder is this user's, not apt's
        }
        command = ["apt-get", "--quiet", *(f"-o{name}={value}" for name, value in options.items()), *arguments]
        ran = subprocess.run(command, cwd=self.downloads, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SourcesError(f"apt-get {arguments[0]} failed: {(ran.stderr or ran.stdout).strip()}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the files below the archive's `*/test/` into `folder`, which appears only once it is whole."""
    partial = folder.with_name("test.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = Path(member.name).parts
            if parts[1:2] == ("test",) and member.isfile():
                member.name = str(Path(*parts[2:]))
                tar.extract(member, partial, filter="data")
    partial.rename(folder)


def source_lines(system: Path = SYSTEM) -> str:
    """A sources.list: the machine's Debian mirror with its key, for trixie's packages and their sources."""
    for options, uri in entries(system):
        if re.search(r"/debian/?$", uri):
            return "".join(f"{kind} {options}{uri} {SUITE} main\n" for kind in ("deb", "deb-src"))
    raise SourcesError(
        f"no Debian mirror is named in {system}, so PyTorch's tests cannot be fetched from its source package: "
        "name a source folder with --sources DIR"
    )


def entries(system: Path) -> Iterator[tuple[str, str]]:
    """(options in one-line style, address) of every binary archive that apt is told of; see sources.list(5)."""
    files = [system / "sources.list", *sorted((system / "sources.list.d").glob("*"))]
    for path in files:
        if path.suffix == ".list" and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                found = re.match(r"deb\s+(\[[^]]*\]\s+)?(\S+)\s", line)
                if found:
                    yield found[1] or "", found[2]
        elif path.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
                fields = dict(re.findall(r"^([\w-]+):[ \t]*(.+)$", stanza, re.MULTILINE))
                key = fields.get("Signed-By", "").strip()
                options = f"[signed-by={key}] " if key else ""
                for uri in fields.get("URIs", "").split():
                    yield options, uri
