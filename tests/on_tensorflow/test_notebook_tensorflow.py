"""The book's chapter on GPUs as its notebook, executed in a kernel."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
import listings

import notebooks


def test_the_notebook_shows_what_the_book_shows(tmp_path):
    shown = notebooks.listing(tmp_path, "tensorflow", "s0_gpus", TF_USE_LEGACY_KERAS="1")
    log, rest = (
        "\n".join(line for line in shown.splitlines() if line.startswith("INFO:") is is_log) for is_log in (True, False)
    )
    # A notebook shows an object without a repr of its own as IPython does, and the log among the output.
    assert listings.differences("tensorflow", "s0_gpus", rest.replace(" at 0x", " object at 0x")) == []
    assert log.startswith("INFO:tensorflow:Using MirroredStrategy with devices ('/job:localhost/")
