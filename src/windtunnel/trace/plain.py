"""Plain data: what is saved, sent between processes and shown, as JSON and TOML have it."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
"""An object of JSON, or a table of TOML."""
