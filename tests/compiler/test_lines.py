"""What was inlined from a header counts as the line that called it."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.compiler.lines import of_the_program

PTX = """\t.loc\t1 7 10                          // /home/me/kernel.cu:7:10
\t.loc\t2 144 1                         // /headers/a.h:144:1 @[ /headers/more.h:3:1 @[ /home/me/kernel.cu:9:46 ] ]
\t.loc\t2 20 1                          // /headers/a.h:20:1
\t.file\t1 "/home/me/kernel.cu"
\t.file\t2 "/headers/a.h"
"""


def test_an_inlined_line_becomes_its_callers() -> None:
    lines = [line.split("//")[0].split() for line in of_the_program(PTX, ["/headers"]).splitlines()]
    assert lines[:3] == [[".loc", "1", "7", "10"], [".loc", "1", "9", "46"], [".loc", "2", "20", "1"]]


def test_a_file_that_has_no_number_gets_one() -> None:
    text = of_the_program(PTX.replace('\t.file\t1 "/home/me/kernel.cu"\n', ""), ["/headers"])
    assert '\t.file\t3 "/home/me/kernel.cu"' in text
    assert ".loc\t3 9 46" in text


def test_what_a_callers_path_shares_with_the_folder_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "kernels").mkdir()
    file = tmp_path / "kernels" / "kernel.cu"
    file.write_text("")
    monkeypatch.chdir(tmp_path / "project")
    text = of_the_program(PTX.replace("@[ /home/me/kernel.cu", "@[ kernels/kernel.cu"), ["/headers"])
    assert f'.file\t3 "{file}"' in text
