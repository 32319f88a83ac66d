"""The calibration script: its curves are the committed ones, and its error is what the documentation says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_committed_curves_meet_the_published_figures():
    run = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "calibrate_cost.py"), "--check"],
        capture_output=True,
        text=True,
        check=True,
    )
    errors = {
        match[1]: (float(match[2]), float(match[3]))
        for match in re.finditer(
            r"^([\w ]+): \d+\D*?, median error ([\d.]+)%, p90 ([\d.]+)%$", run.stdout, re.MULTILINE
        )
    }
    errors = {name.split()[0]: value for name, value in errors.items()}
    assert errors["kernel"][0] <= 5.0
    assert errors["kernel"][1] <= 15.0
    assert errors["fitted"][0] <= 1.0
    assert errors["unseen"][0] <= 8.0
    assert errors["unseen"][1] <= 20.0
