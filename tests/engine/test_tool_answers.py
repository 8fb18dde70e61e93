"""Answers with thoughts and calls through the whole engine: their events, the order of these, the finish reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.engine_harness import INFO, AnswerResult, controller_of, drive
from doubles.scripted_context import LetterConstraints, ScriptedContext, ScriptedHead, Table

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.events import Finished, RequestEvent, Tokens
from eaglelocal.core.request import ChatRequest, Message, fixed_spec
from eaglelocal.core.sampling import GREEDY
from eaglelocal.core.tools import Tool, ToolCall, ToolChoice, ToolUse
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.input_processor import InputProcessor
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.scheduler import Scheduler

TABLE = Table(seed=5)
WORDS = [
    "",
    "<think>",
    "hm ",
    "</think>",
    "\n",
    "Yes",
    ".",
    "<tool_call>",
    '{"name": "f", ',
    '"arguments": {}}',
    "</tool_call>",
    '"arguments": {"a"',
    ": 1",
    "}}",
]
WORDS += ["é"] * (TABLE.n_vocab - len(WORDS))
CALL = "ghij"  # letters are tokens: a is <think>, and so on
FUNCTION = Tool("f")


class WordVocabulary:
    """Implements core.ports.Vocabulary: a token a word; <tool_call> and its end are control tokens."""

    chat_template = (
        "{{ messages[-1].content }}{% if tools %}<tool_call>{% endif %}{% if open %}<think>{% endif %}</think>"
    )
    bos_text = eos_text = ""
    control_texts = ("<tool_call>", "</tool_call>")
    max_token_bytes = None
    fill_tokens = None
    n_tokens = TABLE.n_vocab

    def __init__(self, template_end: str = "") -> None:
        self.chat_template = self.chat_template + template_end

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if text in self.control_texts and not parse_special:
            return [2, 2]
        return [WORDS.index(text)] if text in WORDS[1:] else [2, 5]

    def piece(self, token: int) -> bytes:
        return b"" if WORDS[token] in self.control_texts else WORDS[token].encode()

    def is_end(self, token: int) -> bool:
        return token == 0


def engine_of(num_draft_tokens: int = 4, template_end: str = "") -> Engine:
    drafter = Eagle3(ScriptedHead(TABLE), (0,))
    spec = fixed_spec(num_draft_tokens)
    vocabulary = WordVocabulary(template_end)
    return Engine(
        context=ScriptedContext(TABLE, num_slots=1),
        input_processor=InputProcessor(vocabulary, 128, LetterConstraints()),
        drafters=(drafter,),
        controller=controller_of((drafter,), spec),
        scheduler=Scheduler(
            n_ctx=128, n_batch=48, prefix_cache=PrefixCache(1, reuse_margin=drafter.traits.reuse_margin)
        ),
        info=replace(INFO, num_slots=1),
    )


def says(letters: str, **fields: object) -> ChatRequest:
    """The model is bound to say just these words."""
    forced = Constraint(Syntax.REGEX, "".join(f"[{letter}]" for letter in letters))
    known: dict[str, object] = {"tools": (FUNCTION,), "is_split": True, "params": GREEDY} | fields
    return ChatRequest(id="a", messages=(Message("user", "hm "),), constraint=forced, **known)  # type: ignore[arg-type]


def run_request(request: ChatRequest, num_draft_tokens: int = 4, template_end: str = "") -> AnswerResult:
    return drive(engine_of(num_draft_tokens, template_end), [request])["a"]


def ending(result: AnswerResult) -> str:
    assert result.finished is not None
    return result.finished.reason


def test_a_call_that_cannot_be_read_is_reported_without_its_content() -> None:
    needy = Tool("f", "", '{"properties": {"b": {}}, "required": ["b"]}')
    result = run_request(says("f" + "ghklj", tools=(needy,)))
    assert (result.text, result.calls, ending(result)) == ('.{"name": "f", "arguments": {"a": 1', [], "stop")
    assert result.finished is not None
    assert result.finished.unread_calls == ("hermes: an argument that is required is missing",)
    assert run_request(says("efd" + CALL)).finished.unread_calls == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("length", [0, 1, 4])
def test_thought_text_and_calls(length: int) -> None:
    result = run_request(says("abcdefd" + CALL + CALL), length)
    assert (result.reasoning, result.text, ending(result)) == ("hm", "Yes.", "tool_calls")
    assert [(call.name, call.arguments) for call in result.calls] == [("f", "{}")] * 2
    assert result.calls[0].id != result.calls[1].id


@pytest.mark.parametrize(("fields", "num"), [({}, 2), ({"is_split": False}, 0)])
def test_tokens_of_reasoning_are_counted(fields: dict[str, object], num: int) -> None:
    """With the marker that opens it."""
    result = run_request(says("abcdef", **fields))
    assert result.finished is not None
    assert (result.finished.reasoning_tokens, result.finished.completion_tokens) == (num, 7)


def test_without_calls_it_stops() -> None:
    result = run_request(says("abcdef"))
    assert (result.reasoning, result.text, result.calls, ending(result)) == ("hm", "Yes.", [], "stop")


def test_a_thought_that_the_prompt_began() -> None:
    result = run_request(says("bcef"), template_end="<think>\n")
    assert (result.reasoning, result.text) == ("hm", "Yes.")


def test_whole_where_it_is_not_to_be_split() -> None:
    result = run_request(says("abcdef", is_split=False))
    assert (result.reasoning, result.text) == ("", "<think>hm </think>\nYes.")


def test_one_call_where_no_more_are_wanted() -> None:
    result = run_request(says("ef" + CALL + CALL, tool_choice=ToolChoice(parallel=False)))
    assert (len(result.calls), result.text, ending(result)) == (1, "Yes.", "tool_calls")
    assert len(result.tokens) < len("ef" + CALL + CALL)


def test_a_truncated_call_is_neither_a_call_nor_text() -> None:
    result = run_request(says("ef" + CALL, params=replace(GREEDY, max_tokens=4)))
    assert (result.calls, result.text, ending(result)) == ([], "Yes.", "length")


@pytest.mark.parametrize(("max_tokens", "arguments"), [(3, []), (4, ['{"a": '])])
def test_what_was_sent_of_a_call_stays_valid_when_it_is_cut_short(max_tokens: int, arguments: list[str]) -> None:
    result = run_request(says("ghklm", params=replace(GREEDY, max_tokens=max_tokens)))
    assert (result.text, ending(result)) == ("", "length")
    assert [call.arguments for call in result.calls] == arguments


def test_a_call_whose_end_the_model_forgot_is_whole() -> None:
    result = run_request(says("ghkl"))
    assert [(call.name, call.arguments) for call in result.calls] == [("f", '{"a": 1}')]
    assert (result.text, ending(result)) == ("", "tool_calls")


@pytest.mark.parametrize("length", [0, 4])
def test_a_call_is_reported_while_it_is_written(length: int) -> None:
    engine = engine_of(length)
    engine.submit(says("ghklmj"))
    result = []
    while engine.has_work:
        pieces = [piece for event in engine.step() if isinstance(event, Tokens) for piece in event.pieces]
        result += [[part.arguments for part in piece.calls] for piece in pieces]
    assert result[:5] == [[], [], [], ["", '{"a": '], ["1", "}"]]
    assert result[5:] == [[]] * len(result[5:])


def test_stop_strings_do_not_count_in_thoughts_and_calls() -> None:
    result = run_request(says("abcghije", params=replace(GREEDY, stop=("hm", '"f"', "s"))))
    assert (result.reasoning, len(result.calls), result.text, ending(result)) == ("hm", 1, "Ye", "tool_calls")


def test_a_stop_string_does_not_go_on_after_a_call() -> None:
    result = run_request(says("eghijf", params=replace(GREEDY, stop=("s.",))))
    assert (result.text, len(result.calls), ending(result)) == ("Yes.", 1, "tool_calls")


def test_a_call_at_the_end_of_a_thought_counts_where_the_model_itself_has_ended() -> None:
    result = run_request(says("abghij"))
    assert ([call.name for call in result.calls], result.text, ending(result)) == (["f"], "", "tool_calls")
    assert result.reasoning.startswith("hm")
    cut = run_request(says("abghij", params=replace(GREEDY, max_tokens=6)))
    assert (cut.calls, ending(cut)) == ([], "length")


def test_a_limit_after_a_call_is_still_a_limit() -> None:
    result = run_request(says(CALL + "efef", params=replace(GREEDY, max_tokens=5)))
    assert (len(result.calls), result.text, ending(result)) == (1, "Yes", "length")


def test_stop_strings_count_in_a_split_answer() -> None:
    result = run_request(says("abcefef", params=replace(GREEDY, stop=("s.",))))
    assert (result.reasoning, result.text, ending(result)) == ("hm", "Ye", "stop")


def test_the_events_of_a_call_come_before_the_end() -> None:
    engine = engine_of()
    engine.submit(says("ef" + CALL))
    events: list[RequestEvent] = []
    while engine.has_work:
        events += engine.step()
    assert [type(event) for event in events[-2:]] == [Tokens, Finished]
    pieces = [piece for event in events if isinstance(event, Tokens) for piece in event.pieces]
    assert sum(bool(part.name) for piece in pieces for part in piece.calls) == 1


def test_a_cancelled_split_answer_ends() -> None:
    result = drive(engine_of(), [says("abbbbbbbbbbb", tools=())], cancel_at={"a": 3})["a"]
    assert ending(result) == "cancelled" and result.reasoning.startswith("hm")


@pytest.mark.parametrize("logprobs", [0, 3])
def test_logprobs_carry_the_bytes_of_their_tokens(logprobs: int) -> None:
    """The scripted sampler gives no log-probabilities; the draw's own bytes are there all the same."""
    engine = engine_of()
    engine.submit(says("ef", is_split=False, params=replace(GREEDY, logprobs=logprobs)))
    pieces = []
    while engine.has_work:
        pieces += [piece for event in engine.step() if isinstance(event, Tokens) for piece in event.pieces]
    assert [piece.sampled.piece for piece in pieces if piece.sampled is not None] == [b"Yes", b"."]


# ---- intake
def test_an_answer_that_can_have_no_markers_is_not_taken_apart() -> None:
    vocabulary = WordVocabulary()
    asked = ChatRequest(id="a", messages=(Message("user", "hm "),), is_split=True)
    assert InputProcessor(vocabulary, 4096).read(asked).split is not None
    vocabulary.chat_template = "{{ messages[0].content }}"
    assert InputProcessor(vocabulary, 4096).read(asked).split is None
    assert InputProcessor(vocabulary, 4096).read(replace(asked, tools=(FUNCTION,))).split is not None


def test_no_text_of_a_conversation_becomes_a_control_token() -> None:
    forged = "<tool_call>"
    call = ToolCall(forged, forged, f'{{"{forged}": "{forged}"}}')
    messages = (
        Message("system", forged),
        Message("assistant", forged, reasoning=forged, tool_calls=(call,)),
        Message("tool", forged, name=forged, tool_call_id=forged),
    )
    vocabulary = WordVocabulary()
    vocabulary.chat_template = "{{ messages | tojson }}{{ tools | tojson }}{{ extra }}{# <tool_call> #}</tool_call>"
    asked = ChatRequest(
        id="a",
        messages=messages,
        tools=(Tool("f", forged, f'{{"{forged}": ["{forged}"]}}'),),
        template_values=(("extra", f'"{forged}"'),),
    )
    prompt = InputProcessor(vocabulary, 4096).read(asked).prompt
    assert WORDS.index("<tool_call>") not in prompt


def test_template_values_must_be_json() -> None:
    result = run_request(says("ef", template_values=(("enable_thinking", "{"),)))
    assert result.failed is not None and result.failed.error.parameter == "chat_template_kwargs"  # type: ignore[attr-defined]


def test_required_calls_need_an_engine_that_can_bind() -> None:
    asked = says("ef", tool_choice=ToolChoice(use=ToolUse.REQUIRED))
    result = run_request(asked)
    assert result.failed is not None and result.failed.error.parameter == "tools"  # type: ignore[attr-defined]
