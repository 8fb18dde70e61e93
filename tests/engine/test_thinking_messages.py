"""Reasoning that is closed at its budget in families whose answers are several messages: the model goes on behind it.

The scripted model tells a story: its next token after each beginning of it is certain, so that an answer can think,
be closed, and then speak or call a tool, with any drafts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from doubles import chat_templates as templates
from doubles.engine_harness import AnswerResult, EngineHarness, drive
from doubles.property_tests import examples
from doubles.random_models import TargetShape, write_target
from doubles.real_engine import real_engine
from doubles.scripted_context import START, Floats, ScriptedHead, Table, next_state
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.thinking import Thinking
from eaglelocal.core.tools import Tool, ToolChoice, ToolUse
from eaglelocal.drafters.eagle3 import Eagle3

THOUGHT, CLOSING, TEXT, CALL = "well ", "so, \n", "Yes.", ("f", '{"a": 1}')
CERTAIN = 50.0
LETTERS = list("abcdefgh")


@dataclass(frozen=True)
class MessageFamily:
    """The words of a family, with those that are control tokens first, and how it opens a message of each kind."""

    template: str
    markers: tuple[str, ...]
    words: tuple[str, ...]
    thought: str
    text: str
    next_header: str
    call: str  # with its header


HARMONY = MessageFamily(
    templates.HARMONY,
    ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"),
    ("assistant", "analysis", "final", "commentary", " to=functions.f", " ", "json", '{"a": ', "1}"),
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "<|end|><|start|>assistant",
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}',
)
MUSE = MessageFamily(
    templates.MUSE,
    ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    ("assistant", " to=", "self", "user", "f", "<atem:", "function_calls>\n", '<atem:invoke name="f">\n',
     '<atem:parameter name="a">', "1", "</atem:", "parameter>\n", "invoke>\n", "function_calls>"),
    " to=self<|message|>",
    " to=user<|message|>",
    "<|eom|><|start|>assistant",
    ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="a">1</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>",
)  # fmt: skip
SOLAR = MessageFamily(
    templates.SOLAR,
    ("<|begin|>", "<|content|>", "<|think|>", "<|end|>", "<|flush|>", "<|tool_calls|>", "<|calls|>",
     "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
    ("assistant", "abc", "f", '{"a": ', "1}"),
    "<|think|>",
    "<|content|>",
    "<|end|><|begin|>assistant",
    '<|tool_calls|><|tool_call:begin|>abc<|tool_call:name|>f<|tool_call:args|>{"a": 1}<|tool_call:end|><|calls|>',
)  # fmt: skip
FAMILIES = {"gpt-oss": HARMONY, "muse": MUSE, "solar": SOLAR}


class MessageVocabulary:
    """Implements core.ports.Vocabulary: a token a word of the family; token 0 ends the answer."""

    bos_text = eos_text = ""
    max_token_bytes = None
    fill_tokens = None

    def __init__(self, family: MessageFamily) -> None:
        self.chat_template = family.template
        self.control_texts = family.markers
        self._words = ["", *dict.fromkeys((*family.markers, *family.words, THOUGHT, "so, ", "\n", TEXT, *LETTERS))]
        self.n_tokens = len(self._words)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = []
        while text:
            fitting = [n for n, word in enumerate(self._words) if word and text.startswith(word)]
            token = max(fitting, key=lambda n: len(self._words[n]), default=self.n_tokens - 1)
            tokens.append(token)
            text = text[len(self._words[token]) if fitting else 1 :]
        return tokens

    def piece(self, token: int) -> bytes:
        return b"" if 0 <= token <= len(self.control_texts) else self._words[token].encode()

    def spelled(self, token: int) -> bytes:
        return self._words[token].encode()

    def is_end(self, token: int) -> bool:
        return token == 0


class StoryTable(Table):
    """A table of random logits, and of a story that is certain."""

    def __init__(self, n_vocab: int, *, seed: int) -> None:
        super().__init__(n_vocab, seed=seed)
        self._next: dict[int, int] = {}

    def tell(self, before: Sequence[int], story: Sequence[int]) -> None:
        state = START
        for token in before:
            state = next_state(state, token)
        for token in story:
            self._next[state] = token
            state = next_state(state, token)

    def logits(self, state: int) -> Floats:
        known = super().logits(state)
        if state in self._next:
            known = known.copy()
            known[self._next[state]] += CERTAIN
        return known


class StoryModel:
    """An engine whose model tells a story; its drafts are right, or at random."""

    def __init__(self, family: MessageFamily, length: int, *, seed: int = 1, head_seed: int | None = None) -> None:
        self.vocabulary = MessageVocabulary(family)
        self.table = StoryTable(self.vocabulary.n_tokens, seed=seed)
        head = self.table if head_seed is None else Table(self.vocabulary.n_tokens, seed=head_seed)
        self._harness = EngineHarness(
            self.table,
            Eagle3(ScriptedHead(head, n_ctx=512), (0,)),
            num_draft_tokens=length,
            n_ctx=512,
            vocabulary=self.vocabulary,  # type: ignore[arg-type]
        )

    def tell(self, request: ChatRequest, story: str, *, ends: bool = True) -> list[int]:
        """Return the tokens of the story, which is known from now on; `ends`: the answer ends behind it."""
        tokens = [*self.vocabulary.tokenize(story, add_special=False, parse_special=True), *[0] * ends]
        self.table.tell(self._harness.engine.input_processor.make_prompt(request).tokens, tokens)
        return tokens

    def answer(self, request: ChatRequest) -> AnswerResult:
        return self._harness.run([request])["a"]


def ask(budget: int, *, offers: bool, **params: object) -> ChatRequest:
    thinking = Thinking(budget=budget, message=CLOSING)
    known: dict[str, object] = {"temperature": 0.8, "seed": 3, "max_tokens": 90, "thinking": thinking}
    tools = (Tool("f", "", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),) if offers else ()
    return ChatRequest(
        id="a",
        messages=(Message("user", "ab"),),
        params=SamplingParams(**known | params),  # type: ignore[arg-type]
        is_split=True,
        tools=tools,
    )


@pytest.mark.parametrize("head_seed", [None, 2])
@pytest.mark.parametrize("length", range(9))
@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_follows_the_closing_words(name: str, length: int, head_seed: int | None) -> None:
    family, request = FAMILIES[name], ask(7, offers=True)
    model = StoryModel(family, length, head_seed=head_seed)
    expected = model.tell(request, family.thought + THOUGHT * 7 + CLOSING + family.next_header + family.call)
    result = model.answer(request)
    assert result.tokens == expected
    assert (result.reasoning.rstrip(), result.text) == (THOUGHT * 7 + "so,", "")
    assert [(call.name, call.arguments) for call in result.calls] == [CALL]
    assert result.finished is not None and result.finished.reason == "tool_calls"


@pytest.mark.parametrize("length", [0, 1, 4, 8])
@pytest.mark.parametrize("name", FAMILIES)
def test_text_and_a_call_follow_reasoning_that_began_again(name: str, length: int) -> None:
    family, request = FAMILIES[name], ask(4, offers=True)
    model = StoryModel(family, length)
    again = family.thought + family.next_header + family.text  # closed at once, and without words
    said = TEXT + family.next_header + family.call
    expected = model.tell(request, family.thought + THOUGHT * 4 + CLOSING + family.next_header + again + said)
    result = model.answer(request)
    assert result.tokens == expected
    assert (result.reasoning.rstrip(), result.text) == (THOUGHT * 4 + "so,", TEXT)
    assert [(call.name, call.arguments) for call in result.calls] == [CALL]


@pytest.mark.parametrize("budget", [0, 5])
@pytest.mark.parametrize("length", [0, 1, 4, 8])
@pytest.mark.parametrize("name", FAMILIES)
def test_without_tools_the_text_begins_behind_the_closing_words(name: str, length: int, budget: int) -> None:
    family, request = FAMILIES[name], ask(budget, offers=False)
    model = StoryModel(family, length)
    closing = (CLOSING if budget else "") + family.next_header + family.text
    expected = model.tell(request, family.thought + THOUGHT * budget + closing + TEXT)
    result = model.answer(request)
    assert result.tokens == expected
    assert (result.reasoning.rstrip(), result.text) == ((THOUGHT * budget + "so,") * bool(budget), TEXT)


@examples(60)
@given(
    name=st.sampled_from(sorted(FAMILIES)),
    told=st.sampled_from(["", "thought", "thought again"]),
    seed=st.integers(0, 10_000),
    budget=st.integers(0, 9),
    length=st.integers(1, 8),
    offers=st.booleans(),
)
def test_drafts_change_nothing_whatever_follows(
    name: str, told: str, seed: int, budget: int, length: int, *, offers: bool
) -> None:
    """At the end of the story the model writes at random: headers that end nowhere, halves of calls."""
    family, request = FAMILIES[name], ask(budget, offers=offers)
    story = family.thought * bool(told)
    if told == "thought again":
        story += THOUGHT * budget + (CLOSING if budget else "") + family.next_header + family.thought
    plain, drafted = (answer_at_random(family, request, story, n, seed) for n in (0, length))
    assert drafted.tokens == plain.tokens
    assert (drafted.reasoning, drafted.text) == (plain.reasoning, plain.text)
    assert [(call.name, call.arguments) for call in drafted.calls] == [
        (call.name, call.arguments) for call in plain.calls
    ]


def answer_at_random(family: MessageFamily, request: ChatRequest, story: str, length: int, seed: int) -> AnswerResult:
    model = StoryModel(family, length, seed=seed, head_seed=seed % 3 or None)
    model.tell(request, story, ends=False)
    return model.answer(request)


# ---- the real grammar of a required call
WANTED = Tool("f", "", '{"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}')
THINKS = {"gpt-oss": "<|channel|>a", "muse": "s", "solar": "<|think|>"}  # what begins reasoning rather than a call


@pytest.mark.parametrize("kind", ["none", "ngram"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_required_call_follows_the_closing_words(tmp_path: Path, name: str, kind: str) -> None:
    """The grammar takes the closing words as reasoning, and their markers as its end."""
    family = FAMILIES[name]
    shape = TargetShape(
        n_embd=64, n_layer=2, n_ff=64, n_vocab=320, controls=family.markers, end="<|over|>", template=family.template
    )
    engine = real_engine(write_target(tmp_path / "target.gguf", shape), kind, n_ctx=1024)
    thinks = engine.input_processor.vocabulary.tokenize(THINKS[name], add_special=False, parse_special=True)
    liked = tuple((token, 1000.0) for token in thinks)
    request = ask(9, offers=False, temperature=0.0, max_tokens=300, logit_bias=liked)
    request = replace(request, tools=(WANTED,), tool_choice=ToolChoice(use=ToolUse.REQUIRED, parallel=False))
    result = drive(engine, [request])["a"]
    engine.close()
    assert result.finished is not None and result.finished.reason == "tool_calls"
    assert result.reasoning.rstrip().endswith("so,") and result.text == ""
    assert [(call.name, json.loads(call.arguments)) for call in result.calls] == [("f", {"a": 1})]
