"""The conversations of agents with every family's template: each text stands in its speaker's part, and in order.

A conversation is written as words. `u`, `s` and `d` are messages of the user, the system and the developer; `a:` is one
of the assistant, with a text (t), a thought (r) and calls (c); `t1` is the result of the first call, `t?` one of a call
that nobody made. Each text is a word of its own, and a family's delimiters tell whose part it stands in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from doubles import chat_templates as templates
from doubles.inprocess_templates import render_in_process

from eaglelocal.core.request import Message
from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.text.templates.chat_template import CHATML

LOOK = Tool("look_up", "", '{"type": "object", "properties": {"word": {"type": "string"}}}')
ROLES = {"u": "user", "s": "system", "d": "developer"}
WORD = re.compile(r"w[0-9]{2}w")
CONVERSATIONS = (
    # questions and answers
    *("u", "u a:t u", "s u a:t u", "u u", "u a:t u u", "u a:t a:t u", "u a: u", "s s u", "d s u"),
    # developers and systems anywhere
    *("u s", "s u d", "s d u a:t d u s", "u a:c t1 d", "u a:c t1 s u", "u a:c d t1", "d u a:tc t1 d a:tc t2"),
    # a call, its result, and what stands beside it
    *("u a:c t1", "u a:tc t1", "u a:rc t1", "u a:rtc t1", "s u a:rtc t1", "u a:t a:c t1", "u a:c t1 a:t u"),
    *("u a:t a:rc t1", "u a:rt a:c t1", "u a:rt a:rc t1", "u a:rt a:rtc t1 u"),
    # interrupted: after the result, before it, instead of it
    *("u a:c t1 u", "u a:tc t1 u", "u a:rtc t1 u", "u a:c u", "u a:tc u", "u a:c u t1", "u a:c t1 u a:c t2 u"),
    *("u a:c t1 a: u", "u a:c t1 u d u", "u a:c t1 a:c t2 u u"),
    # several calls: all answered, out of order, one failed, one never answered, in messages of their own
    *("u a:cc t1 t2", "u a:cc t2 t1", "u a:rtcc t2 t1 u", "u a:cc t1 u", "u a:cc u", "u a:c a:c t1 t2"),
    *("u a:tc a:tc t1 t2 u", "u a:c t1 t1"),
    # results of calls that were never made
    *("u t?", "u a:c t?", "u a:t t? u"),
    # long
    *("s u a:c t1 a:tc t2 a:t u a:c t3", "u a:rtc t1 a:rtc t2 a:t u", "u a:rtc t1 a:rtcc t3 t2 a:t u a:rtc t4 u"),
)


@dataclass(frozen=True)
class Conversation:
    """Messages, and the speaker of each word; `order` has the words as they follow each other, results after calls."""

    messages: tuple[Message, ...]
    speakers: dict[str, str]
    order: list[str] = field(default_factory=list)


def read_conversation(text: str) -> Conversation:
    messages, speakers = list[Message](), dict[str, str]()
    places, owners = dict[str, tuple[float, ...]](), list[tuple[int, int]]()

    def say(speaker: str, *place: float) -> str:
        word = f"w{len(speakers):02}w"
        speakers[word], places[word] = speaker, place
        return word

    for index, one in enumerate(text.split()):
        if one in ROLES:
            messages.append(Message(ROLES[one], say(ROLES[one], index)))
        elif one.startswith("a:"):
            thought = say("thought", index, 0) if "r" in one else ""
            said = say("assistant", index, 1) if "t" in one else ""
            calls = []
            for at in range(one.count("c")):
                owners.append((index, at))
                calls.append(ToolCall(f"call_{len(owners)}", "look_up", f'{{"word": "{say("call", index, 2, at)}"}}'))
            messages.append(Message("assistant", said, reasoning=thought, tool_calls=tuple(calls)))
        else:
            owner = owners[int(one[1:]) - 1] if one != "t?" else None
            place = (index,) if owner is None else (owner[0], 3, owner[1], index)
            messages.append(Message("tool", say("tool", *place), tool_call_id=f"call_{one[1:]}"))
    return Conversation(tuple(messages), speakers, sorted(places, key=lambda word: places[word]))


@dataclass(frozen=True)
class Family:
    """A template, its delimiters with the speaker of what follows each, and how it asks the model."""

    source: str
    delimiters: dict[str, str]
    ending: str | tuple[str, ...]
    is_one_call: bool = False


def begin(before: str, names: dict[str, str], after: str = "") -> dict[str, str]:
    """Return the delimiters of speakers, by the names that they have in a template."""
    return {f"{before}{name}{after}": speaker for name, speaker in names.items()}


USUAL = {"system": "system", "user": "user", "assistant": "assistant"}
RESULTS = {"<tool_response>": "tool", "</tool_response>": "user"}
THINK = {"<think>": "thought", "</think>": "assistant"}
IM = begin("<|im_start|>", USUAL) | RESULTS | {"<tool_call>": "call", "</tool_call>": "assistant"}
MISTRAL = {
    "[SYSTEM_PROMPT]": "system", "[/SYSTEM_PROMPT]": "", "[INST]": "user", "[/INST]": "assistant",
    "[TOOL_CALLS]": "call", "[TOOL_RESULTS]": "tool", "[/TOOL_RESULTS]": "assistant", "</s>": "assistant",
}  # fmt: skip
ASKS = ("[/INST]", "[/TOOL_RESULTS]")
GEMMA_2 = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
HEADER, HY = "<|start_header_id|>", ":opensource>"
FAMILIES = {
    "chatml": Family(CHATML, IM, "<|im_start|>assistant\n"),
    "qwen": Family(templates.QWEN, IM | THINK, "<|im_start|>assistant\n"),
    "minicpm": Family(
        templates.MINICPM,
        IM | THINK | {'<function name="': "call", "</function>": "assistant"},
        "<|im_start|>assistant\n",
    ),
    "llama": Family(
        templates.LLAMA,
        begin(HEADER, USUAL | {"ipython": "tool"})
        | {f'{HEADER}assistant<|end_header_id|>\n\n{{"name"': "call"}
        | RESULTS,
        f"{HEADER}assistant<|end_header_id|>\n\n",
        is_one_call=True,
    ),
    "mistral": Family(templates.MISTRAL, MISTRAL, ASKS),
    "mistral small": Family(templates.MISTRAL_SMALL, MISTRAL, ASKS),
    "ministral": Family(templates.MINISTRAL, MISTRAL, ASKS),
    "gemma": Family(
        templates.GEMMA,
        begin("<|turn>", {"system": "system", "user": "user", "model": "assistant"})
        | {"<|tool_call>": "call", "<tool_call|>": "assistant", "<|channel>": "thought", "<channel|>": "assistant"}
        | {"<|tool_response>": "tool", "<tool_response|>": "assistant"}
        | RESULTS,
        ("<|turn>model\n<|channel>thought\n<channel|>", "<tool_response|>"),
    ),
    "gemma 2": Family(
        GEMMA_2, begin("<start_of_turn>", {"user": "user", "model": "assistant"}) | RESULTS, "<start_of_turn>model\n"
    ),
    "deepseek": Family(
        templates.DEEPSEEK,
        {"<s>": "system", "<User>": "user", "<Assistant>": "assistant"} | RESULTS | THINK,
        "<Assistant><think>\n",
    ),
    "deepseek 3.1": Family(
        templates.DEEPSEEK_31,
        {"<s>": "system", "<｜User｜>": "user", "<｜Assistant｜>": "assistant"}
        | {"<｜tool▁call▁begin｜>": "call", "<｜tool▁calls▁end｜>": "assistant"}
        | {"<｜tool▁output▁begin｜>": "tool", "<｜tool▁output▁end｜>": "assistant"}
        | RESULTS,
        "<｜Assistant｜></think>",
    ),
    "harmony": Family(
        templates.HARMONY,
        begin("<|start|>", USUAL | {"developer": "system", "assistant to=": "call", "functions": "tool"})
        | {"<|channel|>analysis": "thought"}
        | RESULTS,
        "<|start|>assistant",
        is_one_call=True,
    ),
    "muse": Family(
        templates.MUSE,
        begin("<|start|>", USUAL | {"assistant to=self": "thought", "assistant to=look_up": "call", "tool": "tool"})
        | RESULTS,
        "<|start|>assistant",
    ),
    "solar": Family(
        templates.SOLAR,
        begin(
            "<|begin|>", USUAL | {"tool": "tool", "assistant<|think|>": "thought", "assistant<|tool_calls|>": "call"}
        ),
        "<|begin|>assistant",
    ),
    "hy": Family(
        templates.HY,
        {f"<｜hy_User{HY[:-1]}｜>": "user", f"<｜hy_Assistant{HY[:-1]}｜>": "assistant"}
        | {f"<think{HY}": "thought", f"</think{HY}": "assistant"}
        | {f"<tool_call{HY}": "call", f"</tool_call{HY}": "assistant"}
        | {f"<tool_response{HY}": "tool", f"</tool_response{HY}": ""},
        f"</think{HY}",
    ),
    "apertus": Family(
        templates.APERTUS,
        begin("<|", USUAL | {"developer": "system"}, "_start|>")
        | {"<|tools_prefix|>": "call", "<|tools_suffix|>": "tool"}
        | RESULTS,
        "<|assistant_start|>",
    ),
}
MAY_BE = {  # a call in a form that the template does not know is a text of the assistant
    "developer": ("system", "user"),
    "system": ("system", "user"),
    "call": ("call", "assistant"),
}


def find_speakers(family: Family, prompt: str) -> list[tuple[str, str]]:
    """Return each word of a prompt with its speaker, by the last delimiter before it."""
    names = sorted(family.delimiters, key=len, reverse=True)
    found, speaker = list[tuple[str, str]](), ""
    for match in re.finditer("|".join([WORD.pattern, *map(re.escape, names)]), prompt):
        if WORD.fullmatch(match[0]):
            found.append((match[0], speaker))
        else:
            speaker = family.delimiters[match[0]]
    return found


def order_by_calls(order: list[str], talk: Conversation) -> list[str]:
    """Return the order of words where a turn has one call: each call, then its result."""
    ids = {
        word: call.id
        for message in talk.messages
        for call in message.tool_calls
        for word in WORD.findall(call.arguments)
    }
    results = {message.content: message.tool_call_id for message in talk.messages if message.role == "tool"}
    ordered: list[str] = []
    for word in order:
        if results.get(word) in ids.values():
            continue
        ordered += [word, *(result for result in order if word in ids and results.get(result) == ids[word])]
    return ordered


@pytest.mark.parametrize("name", FAMILIES)
def test_each_text_stands_in_its_speakers_part_and_the_model_is_asked(name: str) -> None:
    family = FAMILIES[name]
    template = render_in_process(family.source, bos_text="<s>", eos_text="</s>")
    for text in CONVERSATIONS:
        talk = read_conversation(text)
        prompt = template.render(talk.messages, tools=(LOOK,))
        found = find_speakers(family, prompt)
        for word, speaker in found:
            wanted = talk.speakers[word]
            assert speaker in MAY_BE.get(wanted, (wanted,)), (text, word, wanted, speaker, prompt)
        shown = [word for word, speaker in found if speaker != "thought"]  # which may be left out
        order = order_by_calls(talk.order, talk) if family.is_one_call else talk.order
        assert shown == [word for word in order if talk.speakers[word] != "thought"], (text, prompt)
        assert prompt.endswith(family.ending), (text, prompt)
