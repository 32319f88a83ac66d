"""The workshop: programs that measure, compare and generate; nothing here is part of windtunnel's package."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""
