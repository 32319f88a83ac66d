"""What a build adds to pyproject.toml: the addresses of the repository it is built from, and the documentation's pages.

The addresses are those that the workflow or the clone has, or that the sdist was built with; without either there are
none.
"""

from __future__ import annotations

import os
import re
import subprocess
from email.parser import HeaderParser
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = ("docs/*.md", "docs/llms.txt", "SKILL.md")
ORIGIN = re.compile(r"(?:https?://(?:[^@/]*@)?|ssh://git@|git@)([\w.-]+\.[a-z]+)[:/]([\w./-]+?)(?:\.git)?/?$")


def urls(root: Path, environment: dict[str, str], version: str) -> dict[str, str]:
    """The project's addresses by label."""
    built = root / "PKG-INFO"
    if built.is_file():
        found = HeaderParser().parsestr(built.read_text("utf-8")).get_all("Project-URL", [])
        return {label: address for label, _, address in (one.partition(", ") for one in found)}
    origin = subprocess.run(
        ["git", "-C", str(root), "config", "--get", "remote.origin.url"], capture_output=True, text=True, check=False
    ).stdout.strip() if (root / ".git").exists() else ""  # fmt: skip
    match = ORIGIN.match(origin)
    address = f"https://{match[1]}/{match[2]}" if match else ""
    if environment.get("GITHUB_REPOSITORY"):
        address = f"{environment.get('GITHUB_SERVER_URL', 'https://github.com')}/{environment['GITHUB_REPOSITORY']}"
    if not address:
        return {}
    pages = f"{address}/blob/v{version}"
    return {
        "Repository": address,
        "Documentation": f"{pages}/docs/index.md",
        "Issues": f"{address}/issues",
        "Changelog": f"{pages}/CHANGELOG.md",
    }


class Metadata(MetadataHookInterface):
    """`dynamic = ["urls"]`."""

    def update(self, metadata: dict[str, object]) -> None:
        """Add the addresses, where they are known."""
        found = urls(Path(self.root), dict(os.environ), str(metadata["version"]))
        if found:
            metadata["urls"] = found


class Build(BuildHookInterface):
    """What a wheel carries beside the package."""

    def initialize(self, version: str, build_data: dict[str, dict[str, str]]) -> None:
        """Add the pages that `windtunnel explain PAGE` prints."""
        if self.target_name == "wheel" and version != "editable":
            root = Path(self.root)
            pages = [path for pattern in PAGES for path in root.glob(pattern)]
            build_data["force_include"] |= {str(path): f"windtunnel/pages/{path.name}" for path in pages}
