"""Rows: what is compressed reads, changes and continues as what is not."""

from __future__ import annotations

import random

import pytest

from windtunnel.trace import rows as module
from windtunnel.trace.rows import WIDTH, Rows


@pytest.fixture(params=[0, 1, 2, 3])
def draw(request, monkeypatch):
    """Blocks so small that few rows fill many of them."""
    monkeypatch.setattr(module, "BLOCK", 4 * WIDTH)
    monkeypatch.setattr(module, "OPEN", 8 * WIDTH)
    return random.Random(request.param)


def row(draw: random.Random) -> module.Row:
    a, b, c, d, e, f, g, h = (draw.randrange(-(1 << 62), 1 << 62) for _ in range(WIDTH))
    return a, b, c, d, e, f, g, h


def test_rows_are_a_list_of_rows(draw):
    rows, expected = Rows(), []
    for _ in range(400):
        what = draw.randrange(7)
        if what < 3 or not expected:
            expected.append(row(draw))
            (rows.append if what else rows.buffer.extend)(expected[-1])
        elif what == 3:
            rows.spill()
        elif what == 4:
            index, column = draw.randrange(len(expected)), draw.randrange(WIDTH)
            value = draw.randrange(1 << 40)
            rows.put(index, column, value)
            expected[index] = (*expected[index][:column], value, *expected[index][column + 1 :])
        elif what == 5:
            index, column = draw.randrange(len(expected)), draw.randrange(WIDTH)
            assert rows.get(index, column) == expected[index][column]
            assert rows[index] == rows[index - len(expected)] == expected[index]
        else:
            more = [row(draw) for _ in range(draw.randrange(9))]
            rows.extend(b"".join(number.to_bytes(8, "little", signed=True) for one in more for number in one))
            expected += more
        first = draw.randrange(len(expected) + 1)
        assert len(rows) == len(expected)
        assert list(rows.since(first)) == expected[first:]
    assert list(rows) == expected
    assert [list(rows.column(column)) for column in range(WIDTH)] == [list(one) for one in zip(*expected, strict=True)]
    assert list(Rows.from_bytes(rows.to_bytes())) == expected
    assert len(rows._packed) > 10


def test_rows_are_read_while_others_come(draw):
    rows, expected = Rows(), [row(draw) for _ in range(40)]
    for one in expected:
        rows.append(one)
    seen = []
    for one in rows:
        seen.append(one)
        for _ in range(3):
            if len(rows) < 400:
                rows.append(row(draw))
                rows.spill()
    assert seen[:40] == expected


def test_many_rows_take_few_bytes():
    rows = Rows()
    for number in range(500_000):
        rows.append((0, 1, number % 7, number % 5, 9000 * number, 9000 * number + 500, 9000 * number + 700, 4096))
    packed = sum(map(len, rows._packed))
    assert len(rows.stored) * 8 <= (module.OPEN + 2 * module.BLOCK) * 8
    assert packed < 64 * 500_000 / 4
