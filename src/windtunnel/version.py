"""The version of windtunnel, of what is installed beside it, and where windtunnel is at home."""

from __future__ import annotations

import functools

__version__ = "0.1.0"


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, without importing it; None where there is none."""
    from importlib import metadata  # here: it would be half of what `import windtunnel` takes

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def addresses() -> dict[str, str]:
    """The addresses of the repository that this installation was built from, by label; empty where it has none."""
    from importlib import metadata

    try:
        found = metadata.metadata("windtunnel").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return {}
    return {label: address for label, _, address in (one.partition(", ") for one in found)}


def page_address(page: str) -> str:
    """Where a page of the documentation is on the web: "checks/host-sync.md"; "" where this is not known."""
    index = addresses().get("Documentation", "")
    return index.removesuffix("index.md") + page if index else ""
