"""Every module that reads files which somebody else may have written has a format in `make fuzz`."""

import re

import pytest
from source import PACKAGE

pytest.importorskip("torch")

from tools.fuzz.formats import FORMATS

READS = re.compile(r"\bforeign\.(read_bytes|from_json|from_toml|facts|from_pickle|unpacked)\(")
OWN = {
    "launch.py": "what processes leave in the run's folder, of mode 0700",
    "live.py": "the same",
    "ranks/ledger.py": "the same",
    "planning/space.py": "the configuration of the user's own program, of which only names are looked up",
}


def test_every_reader_of_files_has_a_format():
    readers = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if READS.search(path.read_text("utf-8"))
    }
    fuzzed = {module for kind in FORMATS.values() for module in kind.modules}
    assert {name for name in readers if not name.startswith("foreign/")} == fuzzed | set(OWN)
