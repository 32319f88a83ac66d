"""A folder in a place that others may write to has a drawn name (`tempfile`) or is made by `private_folder`."""

import ast

from source import sources

GUESSABLE = {"gettempdir", "gettempprefix", "getuser", "getlogin", "TMPDIR", "/tmp", "/var/tmp", "/dev/shm"}
MAY_NAME = {"arrivals.py", "planning/cache.py"}
"""The first makes its folder by `private_folder`; the second has a list of variables that decide nothing."""


def names(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_no_path_in_a_shared_place_can_be_guessed() -> None:
    assert {str(source) for source in sources() if names(source.tree) & GUESSABLE} <= MAY_NAME
