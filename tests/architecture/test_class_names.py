"""A class's name says what it is on its whole floor: nobody who looks for one finds several."""

import ast
from collections import Counter
from collections.abc import Iterator

from source import Source, sources, tools

OTHERS_NAMES = ("libraries/", "train/frameworks/")
"""Where names are not ours to choose: those of the libraries that are answered for, and the same in each framework."""


def classes(source: Source) -> Iterator[str]:
    """The classes at the top of a file, also those that only a type checker sees."""
    for node in source.tree.body:
        for inner in node.body if isinstance(node, ast.If | ast.Try) else [node]:
            if isinstance(inner, ast.ClassDef):
                yield inner.name


def test_no_class_has_another_ones_name_on_its_floor() -> None:
    ours = [source for source in (*sources(), *tools()) if not str(source).startswith(OTHERS_NAMES)]
    named = Counter((source.package.name, source.layer, name) for source in ours for name in classes(source))
    assert not [" ".join(place) for place, times in named.items() if times > 1]
