"""Files and answers nested thousands of levels deep, or with values that Python's parsers cannot read.

Whoever reads them says so as of any other damage, or passes it over. Nothing here raises RecursionError.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from doubles.tiers import some_of

from eaglelocal.bench import bench_prompts
from eaglelocal.catalog.toml_table import TomlTable
from eaglelocal.cli import bench
from eaglelocal.client import running_servers
from eaglelocal.client.http_connection import HttpReply
from eaglelocal.client.http_stream import StreamedAnswer, refusal
from eaglelocal.conversation import conversation_file, question_history
from eaglelocal.core.json_text import read_json
from eaglelocal.core.tools import Split, Tool, join_calls
from eaglelocal.errors import EngineError, ModelFileError, UsageError
from eaglelocal.hub import pull_plan
from eaglelocal.hub.heads import head_folder as head_folder
from eaglelocal.loading import calibration_store
from eaglelocal.probe import apple
from eaglelocal.server.access import read_key_file
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.json_body import to_json
from eaglelocal.server.responses.stored_responses import RecentItems
from eaglelocal.settings import Settings
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.tool_calls.call_forms import FORMS, write_calls
from eaglelocal.text.tool_calls.tool_schemas import Shape, has_required

pytestmark = pytest.mark.full

LEVELS = 5000
DEEP = {
    "open lists": "[" * LEVELS,
    "lists": "[" * LEVELS + "]" * LEVELS,
    "objects": '{"a":' * LEVELS + "1" + "}" * LEVELS,
    "open objects": '{"a":' * LEVELS,
    "a hundred lists": "[" * 100 + "1" + "]" * 100,
    "digits": '{"a": ' + "1" * LEVELS + "}",
    "no number": '{"a": NaN}',
}


def write(folder: Path, text: str, name: str = "x.json") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def take(text: str, folder: Path) -> object:
    return StreamedAnswer().take(text, 0.0)


def load_settings(text: str, folder: Path) -> object:
    return Settings.load({}, {}, write(folder, f"spec = {text}\n", "config.toml"))


def load_conversation(text: str, folder: Path) -> object:
    write(folder, text, "talk.json")
    return conversation_file.load_conversation(folder, "talk")


BEFORE = [
    "",
    "# [[\n",
    "a = '''[[\n[['''\n",
    'a = """[\\"""[\n[""""' + '"\n',
    'a = [\'[\', "[\\"["]\n',
]
REFUSED: dict[str, tuple[Callable[[str, Path], object], type[Exception]]] = {
    "settings": (load_settings, UsageError),
    "profile": (lambda text, at: TomlTable.of_file(write(at, f"a = {text}")), UsageError),
    "head's config": (lambda text, at: head_folder.read_json(write(at, text)), ModelFileError),
    "conversation": (load_conversation, UsageError),
    "stream": (take, EngineError),
}
PASSED_OVER: dict[str, Callable[[str, Path], object]] = {
    "calibration": lambda text, at: calibration_store._read_content(write(at, text)),
    "pulled drafts": lambda text, at: pull_plan._read(write(at, text)),
    "running server": lambda text, at: running_servers._read(write(at, text)),
    "watched server": lambda text, at: HttpReply(200, {}, text.encode()).mapping(),
    "questions": lambda text, at: question_history._read(write(at, text)),
    "schema of a tool": lambda text, at: Shape.of_tool(Tool("t", "", text)).child("a").types,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=list(DEEP))
@pytest.mark.parametrize("reader", list(REFUSED))
def test_a_deep_file_is_refused_as_any_damage(reader: str, text: str, tmp_path: Path) -> None:
    read, kind = REFUSED[reader]
    with pytest.raises(kind) as refused:
        read(text, tmp_path)
    assert "bug" not in getattr(refused.value, "hint", "")


@pytest.mark.parametrize("text", DEEP.values(), ids=list(DEEP))
@pytest.mark.parametrize("reader", list(PASSED_OVER))
def test_a_deep_text_is_passed_over(reader: str, text: str, tmp_path: Path) -> None:
    assert not PASSED_OVER[reader](text, tmp_path)


@pytest.mark.parametrize("text", DEEP.values(), ids=list(DEEP))
def test_no_call_is_read_from_a_deep_text(text: str) -> None:
    assert apple.parse_displays(text) == (None, None)
    assert not has_required(Tool("t", "", '{"required": ["a"]}'), text)
    assert "answers 500" in refusal("http://127.0.0.1:9", 500, text.encode()).message


@pytest.mark.parametrize("name", ["lists", "open lists", "objects", "open objects", "a hundred lists"])
def test_a_deep_line_of_a_prompts_file_is_reported_with_its_number(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"What is an owl?\n{DEEP[name]}\n", "prompts.jsonl")
    with pytest.raises(UsageError, match=r"prompts\.jsonl, line 2: nested deeper than 64 levels"):
        bench_prompts.read_prompts(path)


@pytest.mark.parametrize("levels", [64, 500, 3000])
@pytest.mark.parametrize("before", BEFORE)
def test_a_deep_setting_is_reported_with_its_line(before: str, levels: int, tmp_path: Path) -> None:
    text = f"{before}[table]\nx = {'[' * levels}\n{']' * levels}\n"
    path = write(tmp_path, text, "config.toml")
    line = before.count("\n") + 2
    with pytest.raises(UsageError, match=rf"config\.toml, line {line}: nested deeper than 64 levels$"):
        Settings.load({}, {}, path)
    with pytest.raises(UsageError, match=rf"config\.toml, line {line}: nested deeper than 64 levels$"):
        TomlTable.of_file(path)


def test_a_deep_dotted_setting_is_reported_with_its_first_name(tmp_path: Path) -> None:
    path = write(tmp_path, f"b = 1\na{'.a' * 70} = 1\n", "config.toml")
    with pytest.raises(UsageError, match=r"config\.toml: a is nested deeper than 64 levels$"):
        Settings.load({}, {}, path)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: Settings.load({}, {}, path),
        TomlTable.of_file,
        bench_prompts.read_prompts,
        bench.read_key,
        read_key_file,
        lambda path: conversation_file.load_conversation(path.parent, path.stem),
    ],
)
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_latin_1_letter_is_named_with_its_line(mark: bytes, read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(mark + b"# one\r\n# two\r\na = 'caf\xe9'\n")
    with pytest.raises(UsageError, match=r"x\.json.*\bline 3: byte 0xe9 is not UTF-8$"):
        read(path)


def test_a_line_of_brackets_is_still_a_text(tmp_path: Path) -> None:
    path = write(tmp_path, "[[ what is this?\n[1, 2, NaN]\n")
    assert [one.messages[0].content for one in bench_prompts.read_prompts(path)] == ["[[ what is this?", "[1, 2, NaN]"]


@pytest.mark.parametrize("text", [DEEP["lists"], DEEP["open lists"], DEEP["objects"]], ids=["lists", "open", "objects"])
@pytest.mark.parametrize(
    "form", some_of(FORMS, 10, rest=pytest.mark.slow), ids=[f"{number}" for number in range(len(FORMS))]
)
@pytest.mark.parametrize("piece", some_of([1, 10_000_000], rest=pytest.mark.slow))
def test_arguments_of_any_depth_end_an_answer_well(form: object, text: str, piece: int) -> None:
    tool = Tool("look_up", "", '{"type": "object", "properties": {"word": {}}, "required": ["word"]}')
    written = write_calls(form, [("look_up", {"word": "QQ"})])  # type: ignore[arg-type]
    split = SplitText(Split(form=form, tools=(tool,)), lambda: "id")  # type: ignore[arg-type]
    answer = written.replace('"QQ"', text).replace("QQ", text)
    report = [split.push(answer[at : at + piece]) for at in range(0, len(answer), piece)]
    report.append(split.finish(""))
    for call in join_calls(part for one in report for part in one.calls):
        if call.arguments.endswith("}"):
            try:
                read_json(call.arguments)
            except ValueError as error:
                assert "nested deeper" in str(error) or "Expecting" in str(error)


@pytest.mark.parametrize("levels", [70, 500, 900])
def test_values_of_a_request_are_bounded_where_they_come_in(levels: int) -> None:
    value = json.loads("[" * levels + "]" * levels)
    with pytest.raises(Problem, match="nested deeper than 64 levels"):
        to_json(value, "tools.t")


def test_a_deep_response_is_forgotten() -> None:
    kept = RecentItems()
    kept.store("deep", json.loads("[" * 900 + "]" * 900))
    kept.store("plain", {"a": [1]})
    assert kept.find("deep") is None
    assert kept.find("plain") == {"a": [1]}
