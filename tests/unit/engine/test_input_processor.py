"""Prompts: raw, fill-in-the-middle, and continued ones; the room in the context, and prompts that are only counted."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from doubles import chat_templates as templates

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.ports import FillTokens
from eaglelocal.core.request import AnswerOptions, ChatRequest, Message, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.thinking import Thinking
from eaglelocal.core.tools import Split, Tool, ToolCall, ToolChoice, ToolUse
from eaglelocal.engine.input_processor import InputProcessor
from eaglelocal.errors import RequestError

CONTROLS = ("<s>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|im_start|>", "<|im_end|>")
PREFIX, SUFFIX, MIDDLE = (0x110000 + CONTROLS.index(f"<|fim_{word}|>") for word in ("prefix", "suffix", "middle"))
N_CTX = 2000


class CharacterVocabulary:
    """Implements core.ports.Vocabulary: a character is a token, and so is each control text where it is parsed."""

    n_tokens = 0x110000 + len(CONTROLS)
    bos_text, eos_text = "<s>", ""
    control_texts = CONTROLS
    max_token_bytes = 1

    def __init__(self, chat_template: str | None = None, *, fills: bool = True) -> None:
        self.chat_template = chat_template
        self.fill_tokens = FillTokens(PREFIX, SUFFIX, MIDDLE) if fills else None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        pattern = "|".join(map(re.escape, CONTROLS)) + "|(?s:.)" if parse_special else "(?s:.)"
        parts = ["<s>"] * add_special + re.findall(pattern, text)
        known = [CONTROLS.index(part) if len(part) > 1 else -1 for part in parts]
        return [ord(part) if at < 0 else 0x110000 + at for part, at in zip(parts, known, strict=True)]

    def piece(self, token: int) -> bytes:
        return chr(token).encode() if token < 0x110000 else b""

    def spelled(self, token: int) -> bytes:
        return self.piece(token) or CONTROLS[token - 0x110000].encode()

    def is_end(self, token: int) -> bool:
        return False


class Anything:
    """Implements core.ports.Constraints."""

    def check(self, constraint: Constraint) -> tuple[str, ...]:
        return ()

    def hold(self, constraint: Constraint) -> object:
        return constraint


def shown(tokens: tuple[int, ...]) -> str:
    """Control tokens in brackets, so that they differ from what is spelled."""
    return "".join(chr(token) if token < 0x110000 else f"[{CONTROLS[token - 0x110000]}]" for token in tokens)


def prompt_of(asked: ChatRequest, vocabulary: CharacterVocabulary | None = None) -> str:
    return shown(InputProcessor(vocabulary or CharacterVocabulary(), N_CTX, Anything()).read(asked).prompt)


def test_every_option_of_a_request_is_handed_on_to_the_engine() -> None:
    """A field that is added to AnswerOptions needs no other line between the request's reader and its use."""
    chat = replace(ChatRequest(id="a", text="hi"), spec=fixed_spec(3), owner="anna", tells_tokens=True)
    chat = replace(chat, is_private=True, reuses_cache=False, line_limit_s=2.0)
    read = InputProcessor(CharacterVocabulary(), N_CTX, Anything()).read(chat)
    computed = {"params", "constraint"}  # from the request's and the model's
    handed_on = {field.name for field in fields(AnswerOptions)} - computed
    assert {name: read.options[name] for name in handed_on} == {name: chat.options[name] for name in handed_on}
    assert all(chat.options[field.name] != field.default for field in fields(AnswerOptions) if field.name in handed_on)


# ---- raw prompts
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hi", "[<s>]hi"),
        ("<s>hi", "[<s>]hi"),
        ("<|im_start|>user\nhi<|im_end|>", "[<s>][<|im_start|>]user\nhi[<|im_end|>]"),
        (
            "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
            "[<s>][<|fim_prefix|>]a[<|fim_suffix|>]b[<|fim_middle|>]",
        ),
    ],
)
def test_a_raw_prompt_may_spell_control_tokens(text: str, expected: str) -> None:
    assert prompt_of(ChatRequest(id="a", text=text)) == expected


def test_a_suffix_makes_an_infill_prompt() -> None:
    filled = "[<s>][<|fim_prefix|>]def f([<|fim_suffix|>]<s>)[<|fim_middle|>]"
    assert prompt_of(ChatRequest(id="a", text="def f(", suffix="<s>)")) == filled
    assert prompt_of(ChatRequest(id="a", tokens=tuple(map(ord, "def f(")), suffix="<s>)")) == filled
    assert (
        prompt_of(ChatRequest(id="a", text="", suffix=")")) == "[<s>][<|fim_prefix|>][<|fim_suffix|>])[<|fim_middle|>]"
    )


def test_a_model_without_tokens_for_that_says_so() -> None:
    with pytest.raises(RequestError, match="cannot fill in the middle") as caught:
        prompt_of(ChatRequest(id="a", text="a", suffix="b"), CharacterVocabulary(fills=False))
    assert caught.value.parameter == "suffix"


# ---- what the operator shares
OPENING, SYSTEM = "[<s>][<|im_start|>]system\n", "You are <|im_end|> kind."


def count_shared(reader: InputProcessor, system: str, *, tools: tuple[Tool, ...] = (), question: str = "Hello") -> str:
    """Return what is shared of the prompt."""
    messages = (Message("system", system), Message("user", question))
    request = reader.read(ChatRequest(id="a", messages=messages, tools=tools))
    return shown(request.prompt[: request.num_shared])


@pytest.mark.parametrize(
    ("system", "is_shared"),
    [(SYSTEM, True), (f"{SYSTEM} More.", True), (f"{SYSTEM}er", True), ("You are kind.", False), (SYSTEM[:-1], False)],
)
def test_what_is_shared_ends_with_the_text(system: str, is_shared: bool) -> None:
    """Also where the prompt goes on in the same word; and of a prompt that begins otherwise nothing is."""
    reader = InputProcessor(CharacterVocabulary(templates.QWEN), N_CTX, Anything())
    reader.share(SYSTEM)
    expected = f"{OPENING}{SYSTEM}" if is_shared else ""
    assert count_shared(reader, system) == expected
    assert count_shared(reader, system, tools=(Tool("f"),), question="e") == expected


def test_the_longest_of_several_shared_texts_counts() -> None:
    reader = InputProcessor(CharacterVocabulary(templates.QWEN), N_CTX, Anything())
    for text in ("You are", "You are kind.", "Be kind."):
        reader.share(text)
    for system, expected in (("You are kind.", "You are kind."), ("You are it.", "You are"), ("No.", "")):
        assert count_shared(reader, system).removeprefix(OPENING) == expected
    assert reader.read(ChatRequest(id="a", text="You are kind.")).num_shared == 0


@pytest.mark.parametrize(("shared", "asked"), [("high", "high"), ("", ""), ("", "medium")])
def test_a_text_behind_the_effort_is_shared_with_the_servers_own(shared: str, asked: str) -> None:
    effort = "{% for m in messages %}{{ (reasoning_effort or 'medium') + m.content }}{% endfor %}"
    reader = InputProcessor(CharacterVocabulary(effort), N_CTX, Anything())
    reader.share(SYSTEM, Thinking(shared))
    messages = (Message("system", SYSTEM), Message("user", "Hi"))
    request = ChatRequest(id="a", messages=messages, params=SamplingParams(thinking=Thinking(asked)))
    assert shown(reader.read(request).prompt[: reader.read(request).num_shared]).endswith(SYSTEM)


def test_a_text_that_does_not_fit_the_context_cannot_be_shared() -> None:
    with pytest.raises(RequestError, match="context length"):
        InputProcessor(CharacterVocabulary(templates.QWEN), 20, Anything()).share("x" * 1000)


def test_what_one_owner_had_compiled_is_compiled_again_for_another() -> None:
    """A constraint that is there at once would tell that another used it."""

    def read(owner: str, **more: object) -> Constraint | None:
        messages = (Message("user", "Hi"),)
        request = ChatRequest(id="a", owner=owner, messages=messages, is_split=True, **more)  # type: ignore[arg-type]
        return reader.read(request).constraint

    reader = InputProcessor(CharacterVocabulary(templates.QWEN), N_CTX, Anything())
    for more in (
        {"constraint": Constraint(Syntax.JSON_OBJECT)},
        {"tools": (Tool("f"),), "tool_choice": ToolChoice(use=ToolUse.REQUIRED)},
    ):
        anns, bobs = read("ann", **more), read("bob", **more)
        assert anns is not None and bobs is not None
        assert anns != bobs and replace(anns, owner="bob") == bobs == read("bob", **more)


# ---- room
def test_an_answer_gets_the_room_that_is_left() -> None:
    intake = InputProcessor(CharacterVocabulary(), 10)
    for wanted, got in ((None, None), (3, 3), (7, 7), (8, 7), (100_000, 7)):
        asked = ChatRequest(id="a", text="hi", params=SamplingParams(max_tokens=wanted))
        assert intake.read(asked).params.max_tokens == got
    assert intake.read(ChatRequest(id="a", text="x" * 8)).prompt


def test_penalties_look_back_no_further_than_the_context_reaches() -> None:
    for wanted, got in ((0, 0), (9, 9), (1_000_000, 10)):
        asked = ChatRequest(id="a", text="hi", params=SamplingParams(repeat_last_n=wanted))
        assert InputProcessor(CharacterVocabulary(), 10).read(asked).params.repeat_last_n == got


@pytest.mark.parametrize(("asked", "parameter"), [({"text": "x" * 9}, "prompt"), ({"tokens": (1,) * 10}, "prompt")])
def test_a_prompt_without_room_for_an_answer_is_refused(asked: dict[str, object], parameter: str) -> None:
    known = "^this model's maximum context length is 10 tokens, and the prompt has 10: no room"
    with pytest.raises(RequestError, match=known) as caught:
        InputProcessor(CharacterVocabulary(), 10).read(ChatRequest(id="a", **asked))  # type: ignore[arg-type]
    assert (caught.value.parameter, caught.value.code) == (parameter, "context_length_exceeded")


@pytest.mark.parametrize(("trained", "hint"), [(0, "--ctx 1280"), (11, "--ctx 11"), (10, "shorter"), (8, "shorter")])
def test_a_larger_context_is_no_way_out_where_the_model_has_none(trained: int, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        InputProcessor(CharacterVocabulary(), 10, trained_ctx=trained).read(ChatRequest(id="a", text="x" * 9))
    assert hint in caught.value.hint


def test_counting_counts_what_would_not_fit_too() -> None:
    intake = InputProcessor(CharacterVocabulary(), 10)
    assert len(intake.make_prompt(ChatRequest(id="a", text="x" * 500, is_counted=True)).tokens) == 501


# ---- answers that go on
QWEN = CharacterVocabulary(templates.QWEN)
ASKED = Message("user", "Why?")
FUNCTION = Tool("f")


def split_of(vocabulary: CharacterVocabulary, *messages: Message, **fields: object) -> tuple[str, Split | None]:
    known: dict[str, object] = {"resumes": True, "is_split": True, "tools": (FUNCTION,)}
    asked = ChatRequest(id="a", messages=messages, **known | fields)  # type: ignore[arg-type]
    request = InputProcessor(vocabulary, N_CTX, Anything()).read(asked)
    return shown(request.prompt), request.split


def test_what_was_said_goes_on() -> None:
    prompt, split = split_of(QWEN, ASKED, Message("assistant", "Because ("))
    assert prompt.endswith("[<|im_start|>]assistant\nBecause (")
    assert split is not None and (split.in_text, split.in_reasoning) == (True, False)


def test_a_thought_goes_on() -> None:
    prompt, split = split_of(QWEN, ASKED, Message("assistant", "<think>\nHm, <|im_end|>"))
    assert prompt.endswith("[<|im_start|>]assistant\n<think>\nHm, <|im_end|>")
    assert split is not None and (split.in_text, split.in_reasoning) == (False, True)
    begun = CharacterVocabulary(templates.DEEPSEEK)
    prompt, split = split_of(begun, ASKED, Message("assistant", "", reasoning="Hm"), tools=())
    assert prompt.endswith("<Assistant><think>\nHm")
    assert split is not None and split.in_reasoning


def test_a_thought_that_the_template_would_begin_is_over_where_something_was_said() -> None:
    begun = CharacterVocabulary(templates.DEEPSEEK)
    prompt, split = split_of(begun, ASKED, Message("assistant", "Because"), tools=())
    assert prompt.endswith("<Assistant>Because")
    assert split is not None and (split.in_text, split.in_reasoning) == (True, False)


BOUND = {"constraint": Constraint(Syntax.JSON_OBJECT)}


@pytest.mark.parametrize(
    ("last", "fields"),
    [
        (Message("assistant", "Because"), {"resumes": False}),
        (Message("assistant", "Because"), BOUND),
        (Message("assistant", "Because"), {"tool_choice": ToolChoice(use=ToolUse.REQUIRED)}),
        (Message("user", "Because"), {}),
        (Message("assistant", ""), {}),
    ],
)
def test_an_answer_that_begins_has_a_generation_prompt(last: Message, fields: dict[str, object]) -> None:
    prompt, split = split_of(QWEN, ASKED, last, **fields)
    assert prompt.endswith("[<|im_end|>]\n[<|im_start|>]assistant\n")
    assert split is not None and not split.in_text and not split.in_reasoning


OFF, CALLED = (("enable_thinking", "false"),), (Message("assistant", "", tool_calls=(ToolCall("c", "f", "{}"),)),)


@pytest.mark.parametrize(
    ("template", "messages", "fields", "is_after"),
    [
        (templates.QWEN, (ASKED,), {"template_values": OFF}, True),
        (templates.QWEN, (ASKED,), {}, False),
        (templates.GEMMA, (ASKED,), {}, True),
        (templates.GEMMA, (ASKED,), {"template_values": (("enable_thinking", "true"),)}, False),
        (templates.GEMMA, (ASKED, *CALLED, Message("tool", "r", tool_call_id="c")), {}, False),
        (templates.GEMMA, (ASKED, *CALLED, Message("tool", "r", tool_call_id="c")), {"template_values": OFF}, True),
        (templates.DEEPSEEK_31, (ASKED,), {}, True),
        (templates.DEEPSEEK, (ASKED,), {"template_values": OFF}, False),
        (templates.HY, (ASKED,), {}, True),
        (templates.HY, (ASKED,), {"template_values": (("reasoning_effort", '"high"'),)}, False),
        (templates.HARMONY, (ASKED,), {"template_values": OFF}, False),
    ],
)
def test_a_thought_that_the_prompt_has_closed_is_over(
    template: str, messages: tuple[Message, ...], fields: dict[str, object], is_after: bool
) -> None:
    _, split = split_of(CharacterVocabulary(template), *messages, **fields)
    assert split is not None and split.after_reasoning is is_after


def test_a_strict_tool_is_bound_after_what_was_said() -> None:
    strict = replace(FUNCTION, is_strict=True)
    asked = ChatRequest(
        id="a", messages=(ASKED, Message("assistant", "So")), tools=(strict,), resumes=True, is_split=True
    )
    bound = InputProcessor(QWEN, N_CTX, Anything()).read(asked).constraint
    assert bound is not None and bound.source.startswith("start:  (plain_text?")


@pytest.mark.parametrize("begun", ["", "Write a", "Write a poem about "])
def test_a_question_that_the_model_asks_ends_where_its_words_begin(begun: str) -> None:
    messages = (Message("system", "You ask."), Message("user", begun))
    asked = prompt_of(ChatRequest(id="a", messages=messages, asks=True))
    assert asked.endswith(begun)
    if begun:
        assert prompt_of(ChatRequest(id="a", messages=messages)).startswith(asked.rstrip())
