"""The book's chapter on GPUs as its notebook, executed in a kernel."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
import listings

import notebooks


def test_the_notebook_shows_what_the_book_shows(tmp_path):
    shown = notebooks.listing(tmp_path, "tensorflow", "s0_gpus")
    assert listings.differences("tensorflow", "s0_gpus", shown) == []
