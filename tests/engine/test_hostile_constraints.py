"""Schemas, grammars and regular expressions that would take for ever or crash their compiler, on the real one."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglelocal.backend.constraint_compiler import MAX_CACHED, MAX_REFUSED, LlamaConstraints
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.tools import Split, Tool, ToolChoice, ToolUse
from eaglelocal.engine.answer_constraint import MAX_COSTLY, AnswerConstraint, ConstraintSpec
from eaglelocal.errors import RequestError, ResourceError, TooComplexError
from eaglelocal.processes.limited_process import CallRaised
from eaglelocal.text.tool_calls import call_forms as forms

pytestmark = pytest.mark.full

DEMO = Path(__file__).parents[2] / "profiles" / "demo" / "guide-target.gguf"
HONEST = Constraint(Syntax.JSON_SCHEMA, '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}')
REQUIRED = ToolChoice(use=ToolUse.REQUIRED)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel(load_library(), DEMO)
    yield model
    model.close()


@pytest.fixture
def constraints(model: LlamaModel) -> Iterator[LlamaConstraints]:
    constraints = LlamaConstraints(model.vocabulary)
    yield constraints
    constraints.close()


def chained(count: int, word: str = "anyOf") -> str:
    """A schema in which each definition refers to the next."""
    links = {f"d{i}": {word: [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "string"}]} for i in range(count)}
    return json.dumps({"$defs": {**links, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"})


def nested(count: int) -> str:
    return '{"properties":{"a":' * count + "{}" + "}}" * count


SLOW = json.dumps({"type": "integer", "multipleOf": 999_983})
HOSTILE = {
    "chain of anyOf": Constraint(Syntax.JSON_SCHEMA, chained(1500)),
    "chain of allOf": Constraint(Syntax.JSON_SCHEMA, chained(1500, "allOf")),
    "chain of oneOf": Constraint(Syntax.JSON_SCHEMA, chained(1500, "oneOf")),
    "a large multiple": Constraint(Syntax.JSON_SCHEMA, SLOW),
    "a large multiple, framed": Constraint(Syntax.JSON_SCHEMA, SLOW, frame='start: "x"? @answer'),
    "a deep schema": Constraint(Syntax.JSON_SCHEMA, nested(2000)),
    "deep lists": Constraint(Syntax.JSON_SCHEMA, '{"enum":' + "[" * 5000 + "]" * 5000 + "}"),
    "a deep expression": Constraint(Syntax.REGEX, "(" * 20_000 + "a" + ")" * 20_000),
    "repeated repetitions": Constraint(Syntax.REGEX, "((((a{1,999}){1,999}){1,999}){1,999}){1,999}"),
    "a deep grammar": Constraint(Syntax.LARK, "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "rules in a row": Constraint(
        Syntax.LARK, "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(6000)) + '\nr6000: "a"'
    ),
    "a grammar of intersections": Constraint(
        Syntax.LARK, "start: A\nA: " + " & ".join(f"/(.*a.{{{n}}}b.*)/" for n in range(10, 40))
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_too_complex_schema_is_refused_by_name_and_delays_no_other(constraints: LlamaConstraints, name: str) -> None:
    try:
        constraints.check(HOSTILE[name])
    except RequestError as refusal:
        assert re.match(
            "the (schema|regular expression|grammar) (is too complex to compile|cannot be (used|read))", refusal.message
        )
        assert len(refusal.message) < 400 and "\n" not in refusal.message
    else:
        assert name in {"repeated repetitions", "rules in a row", "a grammar of intersections"}  # bounded, and compiled
    constraints.check(HONEST)


@pytest.mark.parametrize("name", ["chain of anyOf", "a large multiple"])
def test_what_was_refused_is_not_tried_again(constraints: LlamaConstraints, name: str) -> None:
    with pytest.raises(TooComplexError) as first:
        constraints.check(HOSTILE[name])
    constraints.check(HONEST)
    constraints.close()  # a check would fail now
    with pytest.raises(TooComplexError) as second:
        constraints.check(HOSTILE[name])
    assert str(second.value) == str(first.value)
    constraints.check(HONEST)


def test_a_kept_refusal_does_not_keep_its_caller_alive(constraints: LlamaConstraints) -> None:
    class Asked:
        """What a caller has at hand."""

    def refused(constraint: Constraint) -> weakref.ref[Asked]:
        asked = Asked()
        with pytest.raises(RequestError):
            constraints.check(constraint)
        return weakref.ref(asked)

    alive = [refused(Constraint(Syntax.JSON_SCHEMA, '{"type": "wrong"}')) for _ in range(3)]
    gc.collect()
    assert [one() for one in alive] == [None, None, None]


def test_an_internal_error_does_not_refuse_the_schema(
    constraints: LlamaConstraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> object:
        raise CallRaised("RuntimeError", "can't start new thread")

    with monkeypatch.context() as broken:
        broken.setattr(constraints.checker, "call", fail)
        with pytest.raises(ResourceError, match="the schema cannot be checked now: can't start new thread"):
            constraints.check(HONEST)
    constraints.check(HONEST)


def test_only_so_many_refusals_are_kept(constraints: LlamaConstraints) -> None:
    wrong = [Constraint(Syntax.JSON_SCHEMA, f'{{"type": "wrong{index}"}}') for index in range(MAX_REFUSED + 1)]
    for each in wrong:
        with pytest.raises(RequestError, match="cannot be used"):
            constraints.check(each)
    constraints.close()  # a check would fail now
    for each in wrong[1:]:
        with pytest.raises(RequestError, match="cannot be used"):
            constraints.check(each)
    with pytest.raises(ResourceError, match="was closed"):
        constraints.check(wrong[0])


def test_a_constraint_stays_compiled_while_a_request_holds_it(constraints: LlamaConstraints) -> None:
    held = constraints.hold(HONEST)
    others = [Constraint(Syntax.REGEX, f"a{{{index + 1}}}") for index in range(MAX_CACHED)]
    for each in others:
        constraints.check(each)
    assert constraints.hold(HONEST) is held
    released = weakref.ref(held)
    del held
    gc.collect()
    assert released() is not None  # it was used recently
    for each in others:
        constraints.check(each)
    gc.collect()
    assert released() is None


def test_a_check_goes_on_where_its_process_was_killed(constraints: LlamaConstraints) -> None:
    constraints.check(HONEST)
    os.kill(constraints.checker.pid or 0, signal.SIGKILL)
    constraints.check(Constraint(Syntax.REGEX, "another"))
    constraints.close()
    with pytest.raises(Exception, match="was closed"):
        constraints.check(Constraint(Syntax.REGEX, "and another"))


class Counting:
    """Implements core.ports.Constraints over the real ones."""

    def __init__(self, constraints: LlamaConstraints) -> None:
        self._constraints, self.num_costly = constraints, 0

    def check(self, constraint: Constraint) -> tuple[str, ...]:
        try:
            return self._constraints.check(constraint)
        except TooComplexError:
            self.num_costly += 1
            raise

    def hold(self, constraint: Constraint) -> object:
        return self._constraints.hold(constraint)


def test_many_tools_that_are_too_complex_are_given_up_soon(constraints: LlamaConstraints) -> None:
    """Each costs seconds of a processor; a hundred of them must not."""
    schemas = [json.dumps({"type": "object", "properties": {f"p{i}": json.loads(SLOW)}}) for i in range(100)]
    tools = tuple(Tool(f"t{i}", "", schema) for i, schema in enumerate(schemas))
    counting = Counting(constraints)
    spec = ConstraintSpec(
        split=Split(form=forms.HERMES, tools=tools), choice=REQUIRED, constraint=None, tokens={}, is_split=True
    )
    made = AnswerConstraint(counting).fit_split(spec)
    assert made is not None and "t99" in made.source and "999983" not in made.source
    assert counting.num_costly <= MAX_COSTLY + 1
