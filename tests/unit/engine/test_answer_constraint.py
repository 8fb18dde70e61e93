"""Constraints on tool calls: one unusual tool loses its own constraint and affects no other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.tools import ANY_TOOL, Split, Tool, ToolChoice, ToolUse
from eaglelocal.engine.answer_constraint import MAX_LOOSENED, AnswerConstraint, ConstraintSpec
from eaglelocal.errors import RequestError
from eaglelocal.text.tool_calls import call_forms as forms

REQUIRED = ToolChoice(use=ToolUse.REQUIRED)
PLAIN = Tool("plain", "", '{"type": "object", "properties": {"n": {"type": "integer"}}}')
FIELDS = {"pattern": {"type": "string", "pattern": "(?=a)"}, "n": {"enum": ["(?=a)"]}}
ODD = Tool("odd", "", json.dumps({"type": "object", "properties": FIELDS}))
BROKEN = Tool("broken", "", '{"type": "object", "properties": {"a": {"broken": 1}}}')


class Reader:
    """Implements core.ports.Constraints: refuses what holds one of these words, or is too long."""

    def __init__(self, *words: str, most: int = 10**6) -> None:
        self._words, self._most, self.checked = words, most, list[str]()

    def check(self, constraint: Constraint) -> tuple[str, ...]:
        text = f"{constraint.source}\n{constraint.frame}"
        self.checked.append(text)
        for word in self._words:
            if word in text:
                raise RequestError(f"{word} cannot be bound")
        if len(text) > self._most:
            raise RequestError("it is too long")
        return ()

    def hold(self, constraint: Constraint) -> object:
        return constraint


def spec_of(*tools: Tool, choice: ToolChoice = REQUIRED, constraint: Constraint | None = None) -> ConstraintSpec:
    return ConstraintSpec(
        split=Split(form=forms.HERMES, tools=tools), choice=choice, constraint=constraint, tokens={}, is_split=True
    )


def bound(binding: AnswerConstraint, spec: ConstraintSpec) -> str:
    made = binding.fit_split(spec)
    assert made is not None
    return made.frame or made.source


def test_what_can_be_bound_is_bound_at_once() -> None:
    reader = Reader()
    assert '"integer"' in bound(AnswerConstraint(reader), spec_of(PLAIN, ODD))
    assert len(reader.checked) == 1


def test_a_pattern_that_does_not_compile_is_left_out_and_all_else_stays() -> None:
    text = bound(AnswerConstraint(Reader('"pattern": "(?=a)"')), spec_of(PLAIN, ODD))
    assert '"integer"' in text  # of the other tool
    assert '"pattern": {"type": "string"}' in text  # an argument of that name
    assert '"enum": ["(?=a)"]' in text


def test_a_tool_that_cannot_be_bound_takes_any_arguments() -> None:
    text = bound(AnswerConstraint(Reader('"broken"')), spec_of(PLAIN, Tool("b", "", BROKEN.parameters)))
    assert '"integer"' in text and '"broken"' not in text


def test_what_was_found_out_of_one_owners_tool_is_found_out_again_for_another() -> None:
    reader = Reader('"(?=a)"}')
    binding, num_checked = AnswerConstraint(reader), []
    for owner in ("ann", "ann", "bob", "ann"):
        before = len(reader.checked)
        bound(binding, replace(spec_of(PLAIN, ODD), owner=owner))
        num_checked.append(len(reader.checked) - before)
    assert num_checked[0] == num_checked[2] > num_checked[1] == num_checked[3] == 1


def test_what_was_found_out_is_remembered() -> None:
    reader = Reader('"(?=a)"}')
    binding = AnswerConstraint(reader)
    first = bound(binding, spec_of(PLAIN, ODD))
    count = len(reader.checked)
    assert bound(binding, spec_of(PLAIN, ODD)) == first
    assert len(reader.checked) == count + 1


def test_what_is_remembered_is_bounded() -> None:
    binding = AnswerConstraint(Reader('"broken"'))
    for index in range(MAX_LOOSENED + 5):
        bound(binding, spec_of(Tool(f"b{index}", "", BROKEN.parameters)))
    assert len(binding._loosened) == MAX_LOOSENED


def test_tools_that_are_too_much_together_take_any_arguments() -> None:
    many = [Tool(f"t{index}", "", PLAIN.parameters) for index in range(8)]
    alone = len(bound(AnswerConstraint(Reader()), spec_of(many[0])))
    text = bound(AnswerConstraint(Reader(most=6 * alone)), spec_of(*many))
    assert '"integer"' not in text and "t7" in text


def test_a_strict_tool_is_bound_or_refused() -> None:
    strict = replace(ODD, is_strict=True)
    for choice in (REQUIRED, ANY_TOOL):
        with pytest.raises(RequestError, match=r"of odd, a strict tool, cannot be bound: .*=a") as caught:
            AnswerConstraint(Reader("(?=a)")).fit_split(spec_of(PLAIN, strict, choice=choice))
        assert caught.value.parameter == "tools"
        assert "(?=a)" in bound(AnswerConstraint(Reader()), spec_of(PLAIN, strict, choice=choice))


def test_the_offending_parameter_is_named() -> None:
    schema = Constraint(Syntax.JSON_SCHEMA, '{"wrong": 1}')
    for spec in (spec_of(constraint=schema, choice=ANY_TOOL), spec_of(PLAIN, constraint=schema, choice=ANY_TOOL)):
        with pytest.raises(RequestError) as caught:
            AnswerConstraint(Reader("wrong")).fit_split(spec)
        assert caught.value.parameter == "response_format"
    text = bound(AnswerConstraint(Reader('"broken"')), spec_of(BROKEN, constraint=schema, choice=ANY_TOOL))
    assert "@answer" in text and '{"a"' not in text


FORMAT = {"type": "object", "properties": {"a": FIELDS["pattern"], "b": {"type": "string", "pattern": "^b+$"}}}
LOOKS = Constraint(Syntax.JSON_SCHEMA, json.dumps(FORMAT))


def test_a_format_is_loosened_no_further_than_it_must_be() -> None:
    for words, kept in (((), ["(?=a)", "^b+$"]), (["(?=a)"], ["^b+$"]), (["(?=a)", "^b+$"], [])):
        made = AnswerConstraint(Reader(*words)).fit_text(LOOKS)
        assert made is not None
        assert [word for word in ("(?=a)", "^b+$") if word in made.source] == kept
        assert set(json.loads(made.source)["properties"]) == {"a", "b"}


def test_a_format_is_loosened_in_its_frame_too() -> None:
    made = AnswerConstraint(Reader("(?=a)")).fit_split(spec_of(PLAIN, constraint=LOOKS, choice=ANY_TOOL))
    assert made is not None and "@answer" in made.frame
    assert "^b+$" in made.source and "(?=a)" not in made.source


def test_a_strict_format_is_bound_or_refused() -> None:
    strict = replace(LOOKS, is_strict=True)
    for spec in (spec_of(constraint=strict, choice=ANY_TOOL), spec_of(PLAIN, constraint=strict, choice=ANY_TOOL)):
        with pytest.raises(RequestError, match=r"\(\?=a\)") as caught:
            AnswerConstraint(Reader("(?=a)")).fit_split(spec)
        assert caught.value.parameter == "response_format"
    bound_to = AnswerConstraint(Reader()).fit_text(strict)
    assert bound_to is not None and bound_to.is_strict
    assert json.loads(bound_to.source)["properties"] == json.loads(strict.source)["properties"]


def test_a_format_that_a_required_call_outweighs_is_not_looked_at() -> None:
    assert '"integer"' in bound(AnswerConstraint(Reader("(?=a)")), spec_of(PLAIN, constraint=LOOKS))


def test_without_a_constraint_the_answer_is_free() -> None:
    reader = Reader("")
    assert AnswerConstraint(reader).fit_split(spec_of(PLAIN, choice=ANY_TOOL)) is None
    assert AnswerConstraint(reader).fit_text(None) is None and not reader.checked
