"""Text files that a question quotes: which are taken, and how they are sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.conversation.added_file import (
    MAX_TEXT_BYTES,
    AddedFile,
    escape_mentions,
    find_escaped_mentions,
    find_mention,
    find_mentions,
    read_added_file,
    write_mention,
)
from eaglelocal.errors import UsageError


def test_a_file_is_quoted_in_a_fence_that_its_text_does_not_end(tmp_path: Path) -> None:
    path = tmp_path / "a b.md"
    path.write_bytes(b"\xef\xbb\xbf````\r\ncode\r\n````\r\n")
    file = read_added_file(str(path))
    assert (file.label, file.quoted) == ("[a b.md, 3 lines]", "a b.md:\n`````\n````\ncode\n````\n`````")


def test_a_name_cannot_control_the_terminal() -> None:
    file = AddedFile("a\x1b[2J\nb", "x")
    assert file.label.isprintable() and "\x1b" not in file.quoted


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x7fELF\0\1", "is not text"),
        (b"caf\xe9\n", "is not UTF-8 text: line 1: byte 0xe9"),
        (b" \n", "is empty"),
        (b"x" * (MAX_TEXT_BYTES + 1), "a question at most 1.0 MB"),
    ],
)
def test_what_no_model_reads_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=expected):
        read_added_file(str(path))


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, expected in (("pipe", "is not a file"), ("", "is a folder"), ("gone", "cannot read")):
        with pytest.raises(UsageError, match=expected):
            read_added_file(str(tmp_path / name))


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(["", "see ", "a\n", "x\t"]))
def test_a_path_is_read_as_it_is_written(path: str, before: str) -> None:
    assert find_mention("@a\n") is None
    if "\n" not in path:
        assert find_mention(before + write_mention(path)) == (len(before), path)


@pytest.mark.parametrize(("text", "paths"), [
    ("see @notes.md, please", ["notes.md"]),
    ("@notes.md?", ["notes.md"]),
    ("@my\\ notes.md and @sub/notes.md", ["my notes.md", "sub/notes.md"]),
    ("what is in @sub of it, import @sub/x or @sub/ from npm", []),
    ("what is @. or @.. or @/ or @~ or @~/ or @./ or @/.", []),
    ("see @missing.txt, @sub/missing.py", ["missing.txt", "sub/missing.py"]),
    ("what do @app.route, @alice.smith and @dataclasses.field do", []),
    ("ask @alice, me@notes.md, @types/node or @", []),
    ("@/dev/zero @./nothing @~/nothing-at-all @../x/", ["/dev/zero", "./nothing", "~/nothing-at-all", "../x/"]),
    ("@" + "a" * 5000, []),
    ("@a\0b", []),
])  # fmt: skip
def test_the_paths_that_a_question_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, paths: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("notes.md", "my notes.md", "sub/notes.md"):
        (tmp_path / name).write_text("x")
    found = find_mentions(text)
    assert [path for _, _, path in found] == paths
    for begin, end, path in found:
        assert text[begin:end].replace("\\", "") == f"@{path}"


@pytest.mark.parametrize(("text", "begins"), [
    (r"mail \@site.org, not \@/x", [5, 21]),
    (r"\@maketitle, me\@site.org or \\@site.org", []),
    ("@site.org", []),
])  # fmt: skip
def test_a_backslash_makes_text_of_a_path(text: str, begins: list[int]) -> None:
    assert find_escaped_mentions(text) == begins
    assert not begins or not find_mentions(text)


def test_what_comes_from_elsewhere_names_no_path() -> None:
    text = "@/dev/zero, @alice and\n@missing.txt"
    escaped = escape_mentions(text)
    assert escaped == "\\@/dev/zero, @alice and\n\\@missing.txt" and not find_mentions(escaped)
    assert escape_mentions(escaped) == escaped
