"""`typing.Any` turns the type checker off: the lines on which it stands are counted, and become fewer only."""

import io
import tokenize
from collections import Counter
from collections.abc import Iterator

from source import PACKAGE, Source, sources

MOST = 290
"""Lines with `Any` in the package. Where they have become fewer by `SLACK`, write the new number down."""
SLACK = 10


def lines(source: Source) -> Iterator[int]:
    """The numbers of the lines on which a file says `Any`, but for comments and texts."""
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    yield from sorted({token.start[0] for token in tokens if token.type == tokenize.NAME and token.string == "Any"})


def room(source: Source) -> str:
    """The folder that a file lies in, or the file itself at the top."""
    return str(source).rpartition("/")[0] or str(source)


def test_any_becomes_rarer() -> None:
    found = Counter({source: len(list(lines(source))) for source in sources()})
    rooms: Counter[str] = Counter()
    for source, count in found.items():
        rooms[room(source)] += count
    total = rooms.total()
    table = "\n".join(f"{count:4} {name}" for name, count in rooms.most_common() if count)
    assert total <= MOST, f"Any stands on {total} lines, {MOST} at most: name the type, or say `object`\n{table}"
    assert total > MOST - SLACK, f"Any stands on {total} lines only: write that down in MOST\n{table}"


def test_any_is_counted_where_it_is_code() -> None:
    text = '''"""Any text."""
from typing import Any
def f(x: Any, *rest: Any) -> "list[Any]":  # Any comment
    return x
AnyOther = 1
'''
    assert list(lines(Source(PACKAGE / "sample.py", text))) == [2, 3]
