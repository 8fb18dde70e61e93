"""Changes of a conversation's turns, each for templates that do not accept the usual form, and their order.

Each function returns new turns and leaves those it was given unchanged. rendering.py tries them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from eaglelocal.core.tools import CallForm
from eaglelocal.text.templates.literal_text import CLOSE, OPEN, POSITION
from eaglelocal.text.templates.template_messages import SYSTEMS, Turn
from eaglelocal.text.tool_calls.call_forms import write_calls
from eaglelocal.text.tool_calls.lenient_literals import dump_json

SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
ARGUMENTS_KEY = "arguments"  # for arguments that are no object
LEAD = "lead"  # key of a text to be written before the calls of its turn
SHORT_ANSWER = "OK."

HERMES_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def split_into_parts(turns: Sequence[Turn]) -> list[Turn]:
    """Make each content a list of parts, for templates that take no string."""
    changed: list[Turn] = []
    for turn in turns:
        text = turn.get("content")
        parts = [{"type": "text", "text": text}] if text else []
        changed.append({**turn, "content": parts} if isinstance(text, str) else turn)
    return changed


def stringify_arguments(turns: Sequence[Turn]) -> list[Turn]:
    """Make arguments strings, for the few templates that concatenate them."""
    return _change_arguments(turns, lambda arguments: arguments if isinstance(arguments, str) else dump_json(arguments))


def wrap_arguments(turns: Sequence[Turn]) -> list[Turn]:
    """Wrap arguments that are not an object in one, for templates that read their members."""
    return _change_arguments(turns, _wrap)


def _change_arguments(turns: Sequence[Turn], change: Callable[[object], object]) -> list[Turn]:
    changed: list[Turn] = []
    for turn in turns:
        calls = [
            {**call, "function": {**function, "arguments": change(function["arguments"])}}
            for call in list_calls(turn)
            if isinstance(function := call["function"], dict)
        ]
        changed.append({**turn, "tool_calls": calls} if calls else turn)
    return changed


def rename_developers(turns: Sequence[Turn]) -> list[Turn]:
    """Rename developer messages (OpenAI's newer name) to system messages, for templates without them."""
    return [{**turn, "role": "system"} if turn["role"] == "developer" else turn for turn in turns]


def merge_system_into_user(turns: Sequence[Turn]) -> list[Turn]:
    """Put the system message in front of the first question, for templates without system messages."""
    if len(turns) < 2 or turns[0]["role"] not in SYSTEMS or turns[1]["role"] != "user":
        return list(turns)
    return [{**turns[1], "content": f"{turns[0]['content']}\n\n{turns[1]['content']}"}, *turns[2:]]


def join_systems(turns: Sequence[Turn]) -> list[Turn]:
    """Join the leading system messages into one, for templates that show only one."""
    leading = list(takewhile(lambda turn: turn["role"] in SYSTEMS, turns))
    if len(leading) < 2:
        return list(turns)
    texts = [str(turn["content"]) for turn in leading if turn["content"]]
    return [{**leading[0], "content": "\n\n".join(texts)}, *turns[len(leading) :]]


def convert_systems_to_users(turns: Sequence[Turn]) -> list[Turn]:
    """Make system messages user messages in the same place, for templates that show none there."""
    return [{**turn, "role": "user"} if turn["role"] in SYSTEMS else turn for turn in turns]


def join_user_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Join consecutive user messages into one, for templates that require alternating turns."""
    return _join_turns(turns, lambda last, turn: last["role"] == turn["role"] == "user")


def join_assistant_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Join an assistant's message without calls and the assistant's message after it into one.

    Some templates begin no turn for the second.
    """
    return _join_turns(turns, lambda last, turn: last["role"] == turn["role"] == "assistant" and not list_calls(last))


def _join_turns(
    turns: Sequence[Turn], belong_together: Callable[[Turn, Turn], bool], *, joint: str = "\n\n"
) -> list[Turn]:
    """Append the content of each turn to the turn before it, if both belong together."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and belong_together(joined[-1], turn):
            texts = [str(one["content"]) for one in (joined[-1], turn) if one["content"]]
            joined[-1] = {**joined[-1], **turn, "content": joint.join(texts)}
        else:
            joined.append(turn)
    return joined


def order_results(turns: Sequence[Turn]) -> list[Turn]:
    """Put the results of each turn's calls after it, in the order of the calls.

    Many templates show results without the ids of their calls, and some only those that follow the calls. A result of
    an unknown call stays where it is.
    """
    owners, last = dict[int, tuple[int, int]](), dict[object, tuple[int, int]]()
    for index, turn in enumerate(turns):
        last |= {call["id"]: (index, at) for at, call in enumerate(list_calls(turn))}
        if turn["role"] == "tool" and turn.get("tool_call_id") in last:
            owners[index] = last[turn["tool_call_id"]]
    results = sorted(owners, key=lambda index: (owners[index], index))
    ordered: list[Turn] = []
    for index, turn in enumerate(turns):
        if index not in owners:
            ordered += [turn, *(turns[result] for result in results if owners[result][0] == index)]
    return ordered


def convert_orphans_to_users(turns: Sequence[Turn]) -> list[Turn]:
    """Make results of unknown calls user messages in Hermes form, for templates that show none without its call."""
    converted: list[Turn] = []
    known: list[object] = []
    for turn in turns:
        is_orphan = turn["role"] == "tool" and turn.get("tool_call_id") not in known
        converted.append(_convert_turn_to_hermes(turn) if is_orphan else turn)
        if turn["role"] != "tool":
            known = [call["id"] for call in list_calls(turn)]
    return converted


def alternate_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Make user and assistant alternate, for templates that require it.

    A user who speaks right after a call or its result did not wait for an answer, so a short answer is inserted.
    """
    spoken = [turn for turn in convert_orphans_to_users(turns) if turn["content"] or list_calls(turn)]
    answered: list[Turn] = []
    for turn in spoken:
        if turn["role"] == "user" and answered and (answered[-1]["role"] == "tool" or list_calls(answered[-1])):
            answered.append({"role": "assistant", "content": SHORT_ANSWER})
        answered.append(turn)
    return join_assistant_turns(join_user_turns(answered))


def separate_texts(turns: Sequence[Turn]) -> list[Turn]:
    """Move text that accompanies tool calls into a turn before them, for templates that show only one of both.

    `thinking` stays with the calls: gpt-oss's template shows it only there, and refuses it beside a text.
    """
    moved = ("tool_calls", "thinking")
    separated: list[Turn] = []
    for turn in turns:
        if not list_calls(turn) or not turn["content"]:
            separated.append(turn)
            continue
        calls = {"role": turn["role"], "content": "", **{key: turn[key] for key in moved if key in turn}}
        separated += [{key: turn[key] for key in turn if key not in moved}, calls]
    return separated


def mark_leads(turns: Sequence[Turn]) -> list[Turn]:
    """Take texts beside calls out of the contents, for templates that show them after the results or not at all.

    A mark in the name of the first call shows `place_leads` where each belongs.
    """
    marked: list[Turn] = []
    for index, turn in enumerate(turns):
        calls = list_calls(turn)
        if calls and turn["content"]:
            function = calls[0]["function"]
            assert isinstance(function, dict)
            first = {**calls[0], "function": {**function, "name": f"{_lead_mark(index)}{function['name']}"}}
            turn = {**turn, "content": "", LEAD: turn["content"], "tool_calls": [first, *calls[1:]]}
        marked.append(turn)
    return marked


def _lead_mark(index: int) -> str:
    return f"{POSITION}{index}{POSITION}"


def place_leads(text: str, turns: Sequence[Turn], form: CallForm) -> str:
    """Write each text that `mark_leads` took out before the marker that opens its turn's calls."""
    gap = form.around[1] if form.around[1].isspace() else ""
    for index, lead in ((index, turn[LEAD]) for index, turn in enumerate(turns) if LEAD in turn):
        before, mark, after = text.partition(_lead_mark(index))
        start = before.rfind(form.opening)
        if mark and start >= 0:
            before = f"{before[:start]}{lead}{gap}{before[start:]}"
        text = before + after.replace(mark, "") if mark else before
    return text


def split_calls(turns: Sequence[Turn]) -> list[Turn]:
    """Give each call a turn of its own, for templates that show one call per turn; `order_results` comes after."""
    split: list[Turn] = []
    for turn in turns:
        calls = list_calls(turn)
        split.append({**turn, "tool_calls": calls[:1]} if calls else turn)
        split += ({"role": turn["role"], "content": "", "tool_calls": [call]} for call in calls[1:])
    return split


def shorten_ids(turns: Sequence[Turn]) -> list[Turn]:
    """Replace ids of calls and results that are not nine letters and digits, for templates that accept no others."""
    shortened: list[Turn] = []
    for turn in turns:
        short: Turn = {**turn}
        if "tool_call_id" in turn:
            short["tool_call_id"] = _shorten_id(str(turn["tool_call_id"]))
        if calls := list_calls(turn):
            short["tool_calls"] = [{**call, "id": _shorten_id(str(call["id"]))} for call in calls]
        shortened.append(short)
    return shortened


def _shorten_id(call_id: str) -> str:
    return call_id if SHORT_ID.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def write_calls_into_content(turns: Sequence[Turn], form: CallForm) -> list[Turn]:
    """Write calls into the content as the model writes them, for templates that do not show calls."""
    written: list[Turn] = []
    for turn in turns:
        functions = [function for call in list_calls(turn) if isinstance(function := call["function"], dict)]
        if functions:
            text = write_calls(form, [(str(one["name"]), _wrap(one["arguments"])) for one in functions])
            rest = {key: turn[key] for key in turn if key != "tool_calls"}
            turn = {**rest, "content": f"{turn['content']}{text}"}
        written.append(turn)
    return written


def add_tools_to_system(turns: Sequence[Turn], tools: Sequence[Turn]) -> list[Turn]:
    """Add the tools as JSON to the system message, for templates that find them there."""
    described = {"tools": dump_json([tool["function"] for tool in tools])}
    if turns[0]["role"] == "system":
        return [{**turns[0], **described}, *turns[1:]]
    return [{"role": "system", "content": "", **described}, *turns]


def clear_empty_contents(turns: Sequence[Turn]) -> list[Turn]:
    """Set an empty content of a turn with calls to None, for templates that recognize such turns by it."""
    return [{**turn, "content": None} if list_calls(turn) and turn["content"] == "" else turn for turn in turns]


def convert_to_hermes(turns: Sequence[Turn], tools: Sequence[Turn]) -> list[Turn]:
    """Write tools, calls and results as ordinary text. The description joins the system message, or becomes one."""
    converted = _join_turns(
        [_convert_turn_to_hermes(turn) for turn in turns],
        lambda last, turn: last.get("is_result") is turn.get("is_result") is True,
        joint="\n",
    )
    if not tools:
        return converted
    described = HERMES_TOOLS.format(tools="\n".join(dump_json(tool) for tool in tools))
    if converted[0]["role"] in SYSTEMS:
        first = {**converted[0], "content": f"{converted[0]['content']}\n\n{described}"}
        return [first, *converted[1:]]
    return [{"role": "system", "content": described}, *converted]


def _convert_turn_to_hermes(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>", "is_result": True}
    calls = [f"<tool_call>\n{dump_json(call['function'])}\n</tool_call>" for call in list_calls(turn)]
    if not calls:
        return turn
    texts = [turn["content"], *calls] if turn["content"] else calls
    return {**{key: turn[key] for key in turn if key != "tool_calls"}, "content": "\n".join(map(str, texts))}


def list_calls(turn: Turn) -> list[Turn]:
    calls = turn.get("tool_calls", [])
    assert isinstance(calls, list)
    return calls


def _wrap(arguments: object) -> dict[str, object]:
    return arguments if isinstance(arguments, dict) else {ARGUMENTS_KEY: arguments}


# ---- order: the forms of a conversation that templates may accept, the usual one first
#
# Templates differ in what they accept: several leading system messages, a later system message, any at all, two turns
# of one side in a row. Some refuse other conversations; others silently drop or move messages, which `make_sketch` and
# `count_lost` detect.
_MARK = re.compile(f"{OPEN}turn [0-9.]+{CLOSE}")


def iter_forms(turns: Sequence[Turn]) -> Iterator[list[Turn]]:
    """Yield the forms of a conversation; conversations with the same roles have the same number of forms."""
    joined = join_systems(rename_developers(turns))
    # later system messages stay in place: moving them to the front would change the prompt from its beginning
    with_users = [joined[0], *convert_systems_to_users(joined[1:])]
    placed = [list(turns), rename_developers(turns), joined, with_users]
    without_systems = join_user_turns(convert_systems_to_users(joined))
    forms = [
        *placed,
        *map(merge_system_into_user, placed),
        *map(join_user_turns, placed),
        without_systems,
    ]
    yield from forms
    yield from map(convert_orphans_to_users, forms)
    yield from map(alternate_turns, forms)


def needs_sketch(turns: Sequence[Turn]) -> bool:
    """Return whether a template might silently drop a message: a system message, or a result without its call."""
    return any(turn["role"] in SYSTEMS for turn in turns) or convert_orphans_to_users(turns) != turns


def make_sketch(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with a mark in each content and in each call; texts are short, to render fast.

    A mark is more reliable than the text: templates trim and quote, and the same text may occur elsewhere.
    """
    return [_sketch_turn(turn, index) for index, turn in enumerate(turns)]


def _sketch_turn(turn: Turn, index: int) -> Turn:
    text, mark = str(turn["content"]), f"{OPEN}turn {index}{CLOSE}"
    if text.strip():
        turn = {**turn, "content": text + mark if turn["role"] in SYSTEMS else mark}
    if calls := list_calls(turn):
        turn = {**turn, "tool_calls": [_sketch_call(call, f"{index}.{at}") for at, call in enumerate(calls)]}
    return turn


def _sketch_call(call: Turn, number: str) -> Turn:
    function, mark = call["function"], f"{OPEN}turn {number}{CLOSE}"
    assert isinstance(function, dict)
    arguments = mark if isinstance(function["arguments"], str) else {"at": mark}
    return {**call, "function": {**function, "arguments": arguments}}


def make_call_probe(text: str, arguments: object) -> list[Turn]:
    """Return a conversation with one call and a text beside it; any template accepts the call's id."""
    call = {"id": "callprobe", "type": "function", "function": {"name": "probe", "arguments": arguments}}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "callprobe", "name": "probe"},
    ]


def count_lost(sketch: Sequence[Turn], rendered: str) -> int:
    """Return how many marks of a sketch the rendered text lacks or shows out of order.

    Leading system messages may stand anywhere: some templates show them with the last question.
    """
    leading = list(takewhile(lambda turn: turn["role"] in SYSTEMS, sketch))
    num_lost = sum(mark not in rendered for turn in leading for mark in _list_marks(turn))
    end = 0
    for mark in (mark for turn in sketch[len(leading) :] for mark in _list_marks(turn)):
        found = rendered.find(mark, end)
        num_lost += found < 0
        end = end if found < 0 else found
    return num_lost


def _list_marks(turn: Turn) -> list[str]:
    return _MARK.findall(f"{turn['content']}{dump_json(list_calls(turn))}")
