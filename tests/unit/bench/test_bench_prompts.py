"""Prompts of the bench: the built-in kinds, and files in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eaglelocal.bench.bench_prompts import BenchPrompt, builtin_prompts, group_by_category, parse_line, read_prompts
from eaglelocal.core.request import Image, Message
from eaglelocal.errors import UsageError


def said(text: str, category: str = "prompts") -> BenchPrompt:
    return BenchPrompt(category, (Message("user", text),))


def picture(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


TEXT, PICTURE = {"type": "text", "text": "hi"}, picture("data:image/gif;base64,R0lGODlh")


def parts(*content: dict[str, object]) -> str:
    return json.dumps({"messages": [{"role": "user", "content": list(content)}]})


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ("Hello there", said("Hello there")),
        ("[1, 2]", BenchPrompt("prompts", tokens=(1, 2))),
        ('["a", "b"]', said('["a", "b"]')),
        ("[INST] hi", said("[INST] hi")),
        ('[{"role": "user", "content": "hi"}]', said("hi")),
        ('{"text": "x"}', said("x")),
        ('{"prompt": [3, 4]}', BenchPrompt("prompts", tokens=(3, 4))),
        ('{"prompt_token_ids": [3], "category": "ids"}', BenchPrompt("ids", tokens=(3,))),
        ('{"prompt": "2+2", "category": "math"}', said("2+2", "math")),
        ('{"prompt": "x", "category": null}', said("x")),
        ('{"tokens": [1, 5, 0]}', BenchPrompt("prompts", tokens=(1, 5, 0))),
        (
            '{"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "hi"}]}',
            BenchPrompt("prompts", (Message("system", ""), Message("user", "hi"))),
        ),
        (parts(TEXT, PICTURE, TEXT), BenchPrompt("prompts", (Message("user", "hihi", images=(Image(b"GIF89a", 2),)),))),
    ],
)
def test_lines_of_a_file(line: str, prompt: BenchPrompt) -> None:
    assert parse_line(line) == prompt


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{not json", "not JSON"),
        ('{"words": "x"}', "not none"),
        ("[1, -2]", "not negative"),
        ('[{"role": "user"}]', "a role and a content"),
        ('{"prompt": "x", "tokens": [1]}', "not prompt, tokens"),
        ('{"prompt": ""}', "neither is empty"),
        ('{"prompt": 3}', "a prompt is text"),
        ('{"messages": []}', "neither is empty"),
        ('{"messages": ["hi"]}', "a role and a content"),
        ('{"messages": [{"role": "user"}]}', "a role and a content"),
        (parts({"type": "image_url", "image_url": {"url": "http://x/y.png"}}), "with a data: URL"),
        (parts({"type": "input_audio"}), "a part of a message is"),
        (parts(picture("data:image/png;base64,!!!")), "is base64 of PNG"),
        (parts(picture("data:image/png,abc")), "is base64 of PNG"),
        (parts(picture("data:image/png;base64,aGVsbG8=")), "is base64 of PNG"),
        ('{"tokens": []}', "not empty"),
        ('{"tokens": [1, -2]}', "not negative"),
        ('{"tokens": [true]}', "whole numbers"),
        ('{"tokens": "12"}', "a list"),
    ],
)
def test_what_is_no_prompt_is_said_with_its_line(line: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text(f"fine\n\n{line}\n")
    with pytest.raises(UsageError, match=what) as raised:
        read_prompts(file)
    assert "line 3" in raised.value.message


def test_a_missing_an_empty_and_a_binary_file_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="no prompt"):
        read_prompts(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(tmp_path / "binary")


def test_a_file_of_windows_and_separators_within_a_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_bytes('\ufeff{"prompt": "a\u2028b\x85c"}\r\nd\r\n'.encode())
    assert read_prompts(file) == [said("a\u2028b\x85c"), said("d")]


def test_categories_of_a_file_are_chosen_by_name(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text('{"prompt": "a", "category": "x"}\nb\n')
    assert read_prompts(file, ["x"]) == [said("a", "x")]
    with pytest.raises(UsageError, match="poetry"):
        read_prompts(file, ["poetry"])


def test_an_unknown_category_is_said() -> None:
    with pytest.raises(UsageError, match="poetry"):
        builtin_prompts(["poetry"], 1)


def test_the_built_in_kinds_are_the_six_and_copying() -> None:
    sorted_in = group_by_category(builtin_prompts([], 3))
    assert set(sorted_in) == {"chat", "summarise", "passage", "math", "translate", "python", "copy"}
    assert all(len(set(prompts)) == 3 for prompts in sorted_in.values())
    assert all(prompt.messages[-1].role == "user" for prompts in sorted_in.values() for prompt in prompts)


def test_a_category_named_twice_is_asked_once() -> None:
    assert len(builtin_prompts(["math", "math"], 2)) == 2


def test_so_many_of_each_category() -> None:
    prompts = [said("a", "x"), said("b", "y"), said("c", "x")]
    assert group_by_category(prompts, 1) == {"x": [prompts[0]], "y": [prompts[1]]}
