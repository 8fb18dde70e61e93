"""Constraints on the real llama.cpp: answers obey them with any drafts and sampling; impossible ones are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from doubles.chat_templates import GEMMA, QWEN
from doubles.engine_harness import AnswerResult, drive
from doubles.random_models import write_agreeing_head, write_target
from doubles.real_engine import TINY, real_engine
from doubles.tiers import some_of
from doubles.timeouts import wait_until

from eaglelocal.backend.constraint_compiler import LlamaConstraints
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.events import Failed, Finished, Tokens
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import OFF, ChatRequest, Message, fixed_spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.tools import Tool, ToolChoice, ToolUse, join_calls
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import RequestError
from eaglelocal.loading.engine_builder import build
from eaglelocal.preparation.decision import resolve

pytestmark = pytest.mark.full

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "port": {"type": "integer", "minimum": 1, "maximum": 9999},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "port", "tags"],
    "additionalProperties": False,
}
TEXT = json.dumps(SCHEMA)
BY_SCHEMA = Constraint(Syntax.JSON_SCHEMA, TEXT)
LOOK = Tool("look_up", "finds a thing", TEXT)
OF = {
    "type": "object",
    "properties": {"of": {"$ref": "#/$defs/s"}},
    "required": ["of"],
    "additionalProperties": False,
    "$defs": {"s": {"enum": ["server", "monitor"]}},
}
PORT = Tool("port", "the port of a server", json.dumps(OF))
BAD = Tool("bad", "", '{"not": {}}', is_strict=True)
QUESTION = (Message("user", "Which port does the server use?"),)
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=300),
    "seeded": SamplingParams(temperature=1.0, seed=5, max_tokens=300),
    "filtered": SamplingParams(
        temperature=0.8, seed=6, top_k=20, top_p=0.9, min_p=0.02, typical_p=0.95, max_tokens=300
    ),
    "penalized": SamplingParams(temperature=0.9, seed=7, repeat_penalty=1.2, frequency_penalty=0.2, max_tokens=300),
    "biased": SamplingParams(temperature=0.0, logit_bias=((260, 5.0),), max_tokens=300),
}


def plan_of(**changes: object) -> Plan:
    plan = resolve(RunOptions(target="demo@native", spec=4), on_progress=lambda fraction, what: None)
    return replace(plan, threads=1, n_batch=128, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def demo() -> Iterator[Engine]:
    engine = build(plan_of(num_slots=2), lambda _: None)
    yield engine
    engine.close()


def say(engine: Engine, request: ChatRequest) -> AnswerResult:
    return drive(engine, [request])[request.id]


def bound(constraint: Constraint | None = BY_SCHEMA, **fields: object) -> ChatRequest:
    known: dict[str, object] = {"params": PARAMS["greedy"], "spec": fixed_spec(4)} | fields
    return ChatRequest(id="a", messages=QUESTION, constraint=constraint, **known)  # type: ignore[arg-type]


def check_fits(value: object) -> None:
    assert isinstance(value, dict) and set(value) == {"name", "port", "tags"}
    assert len(value["name"]) <= 12 and 1 <= value["port"] <= 9999 and isinstance(value["port"], int)
    assert len(value["tags"]) <= 2 and set(value["tags"]) <= {"a", "b"}


@pytest.mark.parametrize("name", PARAMS)
def test_an_answer_fits_its_schema_drafted_and_plain(demo: Engine, name: str) -> None:
    """Near-ties of the demo's rounded weights may fall otherwise when drafted; equality is the next test's."""
    for spec in (OFF, fixed_spec(4)):
        result = say(demo, bound(params=PARAMS[name], spec=spec))
        check_fits(json.loads(result.text))
        assert result.finished is not None and result.finished.reason == "stop"
    assert name == "biased" or result.finished.speculation.accepted_tokens > 0


EXACT = replace(TINY, layer_gain=0.1)  # float32
SHORT = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"enum": [True, None, "xyz"]}},
    "required": ["b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("bound")
    target = write_target(folder / "target.gguf", EXACT)
    return target, write_agreeing_head(folder / "head.gguf", target, EXACT)


def exact_requests() -> Iterator[ChatRequest]:
    forms = [Constraint(Syntax.JSON_SCHEMA, json.dumps(SHORT)), Constraint(Syntax.REGEX, "[a-z]{3,9} [0-9]{2}")]
    for (name, params), (index, form) in product(PARAMS.items(), enumerate(forms)):
        yield ChatRequest(id=f"{name} {index}", tokens=(33, 60, 97), params=params, constraint=form)


def exact_texts(files: tuple[Path, Path], length: int, num_slots: int) -> dict[str, str]:
    target, head = files
    engine = real_engine(target, "eagle3", head, num_draft_tokens=length, num_slots=num_slots, n_ctx=512)
    result = drive(engine, list(exact_requests()))
    engine.close()
    assert all(answer.finished is not None and answer.finished.reason == "stop" for answer in result.values())
    return {name: answer.text for name, answer in result.items()}


@pytest.mark.parametrize("num_slots", some_of([2, 1], rest=pytest.mark.slow))
def test_a_bound_answer_is_the_same_at_any_draft_length(files: tuple[Path, Path], num_slots: int) -> None:
    plain = exact_texts(files, 0, 1)
    for name, text in plain.items():
        if name.endswith("0"):
            assert set(json.loads(text)) <= {"a", "b"}
        else:
            assert re.fullmatch("[a-z]{3,9} [0-9]{2}", text)
    for length in (1, 4, 8):
        assert exact_texts(files, length, num_slots) == plain


# ---- thinking is off: the template has closed the thought
THOUGHTFUL = {
    "qwen": (QWEN, ("<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"), "<|im_end|>"),
    "gemma": (GEMMA, ("<|turn>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'), "<turn|>"),
}
ONE = {"properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}
COUNT = Tool("count", "", json.dumps({"type": "object", **ONE}))
BY_SHORT = Constraint(Syntax.JSON_SCHEMA, json.dumps(SHORT))
BOUND_KINDS: dict[str, dict[str, object]] = {
    "schema": {"constraint": BY_SHORT},
    "schema or call": {"constraint": BY_SHORT, "tools": (COUNT,), "tool_choice": ToolChoice(parallel=False)},
    "call": {"tools": (COUNT,), "tool_choice": ToolChoice(use=ToolUse.REQUIRED, parallel=False)},
}


@pytest.fixture(scope="module", params=THOUGHTFUL)
def thoughtful(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    template, controls, end = THOUGHTFUL[request.param]
    shape = replace(EXACT, n_vocab=320, controls=controls, end=end, template=template)
    engine = real_engine(write_target(tmp_path_factory.mktemp("off") / "target.gguf", shape), n_ctx=2048)
    yield engine
    engine.close()


@pytest.mark.parametrize("kind", BOUND_KINDS)
def test_a_bound_answer_begins_at_once_when_thinking_is_off(thoughtful: Engine, kind: str) -> None:
    known = {"is_split": True, "spec": OFF, "template_values": (("enable_thinking", "false"),), **BOUND_KINDS[kind]}
    for seed in range(30):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=150)
        result = say(thoughtful, bound(**{"constraint": None, "params": params, **known}))  # type: ignore[arg-type]
        assert result.finished is not None and result.finished.reason in ("stop", "tool_calls"), (seed, result)
        assert not result.reasoning
        assert json.loads(result.calls[0].arguments)["n"] in (1, 22) if result.calls else json.loads(result.text)


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint(Syntax.JSON_OBJECT), r"\{(.|\n)*"),
        (Constraint(Syntax.REGEX, "(yes|no), [0-9]{1,3}"), "(yes|no), [0-9]{1,3}"),
        (
            Constraint(Syntax.LARK, 'start: "<" word ("," word){0,3} ">"\nword: /[a-z]{2,4}/'),
            "<[a-z]{2,4}(,[a-z]{2,4}){0,3}>",
        ),
    ],
)
@pytest.mark.parametrize("is_split", [False, True])
def test_other_forms(demo: Engine, constraint: Constraint, pattern: str, is_split: bool) -> None:
    """Split, as a chat's answer is: what it is bound to stands in a frame then."""
    for spec in (OFF, fixed_spec(4)):
        assert re.fullmatch(pattern, say(demo, bound(constraint, spec=spec, is_split=is_split)).text)


def test_ignored_ends_do_not_keep_a_bound_answer_going(demo: Engine) -> None:
    params = replace(PARAMS["greedy"], ignore_eos=True, max_tokens=40)
    result = say(demo, bound(Constraint(Syntax.REGEX, "(yes|no)"), params=params))
    assert result.text in ("yes", "no") and result.finished is not None and result.finished.reason == "stop"


NESTED = '{"type": "object", "properties": {"a": ' * 70 + "{}" + "}}" * 70
REFUSED = {
    "no JSON": Constraint(Syntax.JSON_SCHEMA, "{"),
    "no object": Constraint(Syntax.JSON_SCHEMA, "[]"),
    "too deep": Constraint(Syntax.JSON_SCHEMA, NESTED),
    "far too deep": Constraint(Syntax.JSON_SCHEMA, "[" * 50_000 + "]" * 50_000),
    "too large": Constraint(Syntax.JSON_SCHEMA, json.dumps({"enum": ["x" * 140_000]})),
    "unknown type": Constraint(Syntax.JSON_SCHEMA, '{"type": "intger"}'),
    "keyword that cannot be met": Constraint(
        Syntax.JSON_SCHEMA, '{"type": "array", "uniqueItems": true}', is_strict=True
    ),
    "refers to itself alone": Constraint(Syntax.JSON_SCHEMA, '{"$ref": "#"}'),
    "refers elsewhere": Constraint(Syntax.JSON_SCHEMA, '{"$ref": "https://example.com/a.json"}'),
    "refers to nothing": Constraint(Syntax.JSON_SCHEMA, '{"$ref": "#/$defs/a"}'),
    "bad expression": Constraint(Syntax.REGEX, "(a"),
    "bad grammar": Constraint(Syntax.LARK, "start: nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(demo: Engine, name: str) -> None:
    result = say(demo, bound(REFUSED[name]))
    assert result.started is None and result.failed is not None
    error = result.failed.error
    assert isinstance(error, RequestError) and error.parameter == "response_format"
    assert "\n" not in error.message and len(error.message) < 400


def test_a_schema_that_refers_to_itself_in_parts_is_taken(demo: Engine) -> None:
    properties = {"n": {"enum": [1, 2]}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}
    tree = {"type": "object", "properties": properties, "required": ["n", "next"], "additionalProperties": False}
    value = json.loads(say(demo, bound(Constraint(Syntax.JSON_SCHEMA, json.dumps(tree)))).text)
    while value is not None:
        assert set(value) == {"n", "next"} and value["n"] in (1, 2)
        value = value["next"]


# ---- tools
def called(engine: Engine, choice: ToolChoice, **fields: object) -> AnswerResult:
    return say(engine, bound(None, tools=(LOOK, PORT), tool_choice=choice, is_split=True, **fields))


@pytest.mark.parametrize("name", ["greedy", "seeded"])
def test_a_required_call_has_arguments_that_fit(demo: Engine, name: str) -> None:
    choice = ToolChoice(use=ToolUse.REQUIRED, name="look_up", parallel=False)
    plain = called(demo, choice, params=PARAMS[name], spec=OFF)
    drafted = called(demo, choice, params=PARAMS[name])
    (call,) = plain.calls
    assert (call.name, plain.text, plain.finished and plain.finished.reason) == ("look_up", "", "tool_calls")
    check_fits(json.loads(call.arguments))
    check_fits(json.loads(drafted.calls[0].arguments))
    assert re.fullmatch("call_[0-9a-f]{24}", call.id) and call.id != drafted.calls[0].id


def test_any_required_call_is_one_of_the_tools(demo: Engine) -> None:
    result = called(demo, ToolChoice(use=ToolUse.REQUIRED), params=replace(PARAMS["seeded"], max_tokens=500))
    assert result.calls and (result.text == "" or result.text.startswith("<tool_call>"))
    assert result.finished is not None
    is_cut = result.finished.reason == "length"  # a small model may write a string on and on
    for call in result.calls[: -1 if is_cut else None]:
        arguments = json.loads(call.arguments)
        assert arguments.get("of") in ("server", "monitor") if call.name == "port" else check_fits(arguments) is None


def test_half_a_call_at_which_an_answer_was_cut_off_is_not_text(demo: Engine) -> None:
    result = called(demo, ToolChoice(use=ToolUse.REQUIRED), params=replace(PARAMS["greedy"], max_tokens=8))
    assert not result.calls and result.text == ""
    assert result.finished is not None and result.finished.reason == "length"


def test_a_bound_answer_may_be_a_call_instead(demo: Engine) -> None:
    result = say(demo, bound(tools=(LOOK,), is_split=True))
    if result.calls:
        check_fits(json.loads(result.calls[0].arguments))
    else:
        check_fits(json.loads(result.text))


def test_tools_are_not_shown_where_none_may_be_called(demo: Engine) -> None:
    without = say(demo, bound(None))
    assert called(demo, ToolChoice(use=ToolUse.NONE)).tokens == without.tokens
    offered = called(demo, ToolChoice())
    assert offered.started is not None and without.started is not None
    assert offered.started.prompt_tokens > without.started.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"tools": (), "tool_choice": ToolChoice(use=ToolUse.REQUIRED)}, "tool_choice"),
        ({"tool_choice": ToolChoice(use=ToolUse.REQUIRED, name="other")}, "tool_choice"),
        ({"tools": (Tool("two words"),)}, "tools"),
        ({"tools": (Tool("a", "", "[]"),)}, "tools"),
        ({"tools": (Tool("a", "", "{"),)}, "tools"),
        (
            {"tools": (Tool("a", "", '{"not": {}}', is_strict=True),), "tool_choice": ToolChoice(use=ToolUse.REQUIRED)},
            "tools",
        ),
        ({"messages": (), "text": "hello"}, "tools"),
    ],
)
def test_tools_that_cannot_be_are_refused(demo: Engine, fields: dict[str, object], parameter: str) -> None:
    result = say(demo, replace(bound(None, tools=(LOOK,)), **fields))  # type: ignore[arg-type]
    assert result.failed is not None and isinstance(result.failed.error, RequestError)
    assert result.failed.error.parameter == parameter


# ---- through the process
def test_calls_and_refusals_cross_the_pipe() -> None:
    with EngineClient(plan_of()) as client:
        client.start()
        choice = ToolChoice(use=ToolUse.REQUIRED, name="look_up", parallel=False)
        asked = bound(None, tools=(LOOK,), tool_choice=choice, is_split=True)
        events = list(client.stream(asked))
        pieces = [piece for event in events if isinstance(event, Tokens) for piece in event.pieces]
        (call,) = join_calls(part for piece in pieces for part in piece.calls)
        check_fits(json.loads(call.arguments))
        assert isinstance(events[-1], Finished) and events[-1].reason == "tool_calls"
        failed = list(client.stream(bound(REFUSED["bad expression"])))[-1]
        assert isinstance(failed, Failed) and isinstance(failed.error, RequestError)
        assert failed.error.parameter == "response_format"


@pytest.mark.parametrize("binds_answers", [True, False])
def test_a_server_s_engine_reads_the_vocabulary_by_itself(tmp_path: Path, binds_answers: bool) -> None:
    engine = real_engine(write_target(tmp_path / "target.gguf", TINY), binds_answers=binds_answers)
    try:
        constraints = engine.input_processor.constraints
        assert isinstance(constraints, LlamaConstraints)
        if binds_answers:
            wait_until(lambda: constraints.is_prepared, "the vocabulary")
        assert constraints.is_prepared is binds_answers
    finally:
        engine.close()


def test_a_strict_tool_is_bound_where_the_answer_may_be_free(demo: Engine) -> None:
    """Whatever is drafted, and whatever the model says first: what it calls fits."""
    strict = tuple(replace(tool, is_strict=True) for tool in (LOOK, PORT))
    asked = bound(None, tools=strict, is_split=True)
    plain, drafted = say(demo, replace(asked, spec=OFF)), say(demo, asked)
    assert (plain.text, [call.arguments for call in plain.calls]) == (
        drafted.text,
        [call.arguments for call in drafted.calls],
    )
    for call in plain.calls:
        assert json.loads(call.arguments).get("of", "server") in ("server", "monitor")


def test_odd_schemas_bind_what_can_be_bound(demo: Engine) -> None:
    odd = {"type": "object", "properties": {"of": {"enum": ["a", "b"]}, "x": {"type": "string", "pattern": "(?=a)a"}}}
    tool = Tool("odd", "", json.dumps({**odd, "required": ["of"], "additionalProperties": False, "not": {}}))
    choice = ToolChoice(use=ToolUse.REQUIRED, name="odd", parallel=False)
    result = say(demo, bound(None, tools=(tool, LOOK), tool_choice=choice, is_split=True))
    assert result.failed is None and result.started is not None and result.started.unbound == ("not", "pattern")
    for call in result.calls:  # the other may be any text, as long as there is room for it
        assert re.match(r'\s*\{\s*"of"\s*:\s*"[ab]"', call.arguments)


def test_an_answer_goes_on_where_its_beginning_ends(demo: Engine) -> None:
    """What the model says by itself, cut anywhere and sent again, ends as it would have."""
    whole = say(demo, ChatRequest(id="a", messages=QUESTION, params=PARAMS["greedy"], is_split=True))
    words = whole.text.split(" ")
    assert len(words) > 4
    begun = " ".join(words[: len(words) // 2])
    messages = (*QUESTION, Message("assistant", begun))
    rest = say(demo, ChatRequest(id="a", messages=messages, params=PARAMS["greedy"], is_split=True, resumes=True))
    assert begun + rest.text == whole.text
