"""The table that says which test holds which item."""

from tools.docs import mission_table


def test_items_are_numbered_from_1_to_132():
    assert [item.number for item in mission_table.items()] == list(range(1, 133))


def test_marks_name_items_that_exist():
    marked = {**mission_table.tests(), **mission_table.decisions()}
    assert set(marked) <= {item.number for item in mission_table.items()}
    assert "tests/mission/test_items_tensors.py::test_where_a_tensor_is" in mission_table.tests()[26]


def test_table_has_a_row_for_each_item():
    rows = [line for line in mission_table.table().splitlines() if line.startswith("| ")]
    assert len(rows) == 133
    assert rows[26].endswith(" | test |")


def test_no_item_is_open():
    marked = {**mission_table.tests(), **mission_table.decisions()}
    assert [item.number for item in mission_table.items() if item.number not in marked] == []


def test_the_page_lists_all_items_with_none_open():
    rows = [line.split(" | ") for line in mission_table.TABLE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert [int(row[0].strip("| ")) for row in rows[1:]] == list(range(1, 133))
    assert {row[-1].strip(" |") for row in rows[1:]} == {"test", "decision"}
    assert all(row[-2].strip() for row in rows[1:])
