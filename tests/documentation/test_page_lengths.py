"""Pages stay short enough to be read."""

from tools.docs import words

LIMIT = 33_000
PAGE = 1_200
LONGER = {
    "architecture.md": 3_100,
    "time.md": 2_460,
    "command-line.md": 2_000,
    "trainer.md": 1_850,
    "memory.md": 1_750,
    "ranks.md": 1_450,
    "compilers.md": 1_450,
}
"""Pages that a reader searches rather than reads."""


def test_all_pages_together_and_each_of_them_are_short() -> None:
    counted = {path.name: words.words(path.read_text(encoding="utf-8")) for path in words.pages()}
    assert {name: count for name, count in counted.items() if count > LONGER.get(name, PAGE)} == {}
    assert sum(counted.values()) < LIMIT


def test_what_a_command_writes_is_not_counted() -> None:
    text = "# Two words\n\n<!--table:steps-->\n\n| no | words |\n\n<!--/-->\n\n| takes | <!--f:a/b/c-->3 ms<!--/--> |\n"
    assert words.words(text) == len(["Two", "words", "takes", "3", "ms"])
