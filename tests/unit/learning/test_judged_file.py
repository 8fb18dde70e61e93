"""Texts that were judged are found again, whatever a kill has left of a line."""

from __future__ import annotations

from pathlib import Path

from eaglelocal.learning.judgement import SUFFIX, JudgedFile, JudgedText

TEXT = JudgedText("ann", 1, 40, 2.5, 2.0, 0.75, 0.5)


def test_texts_come_back_also_those_without_figures(tmp_path: Path) -> None:
    judged = JudgedFile(tmp_path, 0, 1)
    judged.add("a", TEXT)
    judged.add("b", None)
    assert JudgedFile(tmp_path, 0, 1).texts == {"a": TEXT, "b": None}
    assert JudgedFile(tmp_path, 0, 2).texts == {}


def test_a_line_that_was_cut_off_costs_one_text_more_and_no_later_one(tmp_path: Path) -> None:
    JudgedFile(tmp_path, 0, 1).add("a", TEXT)
    JudgedFile(tmp_path, 0, 1).add("b", TEXT)
    path = tmp_path / f"0-1{SUFFIX}"
    path.write_bytes(path.read_bytes()[:-9])
    for key in "bcd":
        JudgedFile(tmp_path, 0, 1).add(key, TEXT)
    assert list(JudgedFile(tmp_path, 0, 1).texts) == ["a", "c", "d"]


def test_figures_that_are_no_numbers_cost_one_text(tmp_path: Path) -> None:
    path = tmp_path / f"0-1{SUFFIX}"
    path.write_text('["a", ["ann", Infinity, 1, 1, 1, 1, 1]]\n["b", ["ann", 1, NaN, 1, 1, 1, 1]]\n')
    JudgedFile(tmp_path, 0, 1).add("c", TEXT)
    assert list(JudgedFile(tmp_path, 0, 1).texts) == ["c"]
