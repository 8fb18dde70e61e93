"""The forms of a conversation that templates may accept, the usual one first.

Templates differ in what they accept: several leading system messages, a later system message, any at all, two turns of
one side in a row. Some refuse other conversations; others silently drop or move messages, which `make_sketch` and
`count_lost` detect. This file defines the order of the forms; turn_changes.py makes each of them, and rendering.py
tries them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from eaglelocal.text.templates import turn_changes
from eaglelocal.text.templates.literal_text import CLOSE, OPEN
from eaglelocal.text.templates.template_messages import SYSTEMS, Turn
from eaglelocal.text.tool_calls.lenient_literals import dump_json

_MARK = re.compile(f"{OPEN}turn [0-9.]+{CLOSE}")


def iter_forms(turns: Sequence[Turn]) -> Iterator[list[Turn]]:
    """Yield the forms of a conversation; conversations with the same roles have the same number of forms."""
    joined = turn_changes.join_systems(turn_changes.rename_developers(turns))
    # later system messages stay in place: moving them to the front would change the prompt from its beginning
    with_users = [joined[0], *turn_changes.convert_systems_to_users(joined[1:])]
    placed = [list(turns), turn_changes.rename_developers(turns), joined, with_users]
    without_systems = turn_changes.join_user_turns(turn_changes.convert_systems_to_users(joined))
    forms = [
        *placed,
        *map(turn_changes.merge_system_into_user, placed),
        *map(turn_changes.join_user_turns, placed),
        without_systems,
    ]
    yield from forms
    yield from map(turn_changes.convert_orphans_to_users, forms)
    yield from map(turn_changes.alternate_turns, forms)


def needs_sketch(turns: Sequence[Turn]) -> bool:
    """Return whether a template might silently drop a message: a system message, or a result without its call."""
    return any(turn["role"] in SYSTEMS for turn in turns) or turn_changes.convert_orphans_to_users(turns) != turns


def make_sketch(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with a mark in each content and in each call; texts are short, to render fast.

    A mark is more reliable than the text: templates trim and quote, and the same text may occur elsewhere.
    """
    return [_sketch_turn(turn, index) for index, turn in enumerate(turns)]


def _sketch_turn(turn: Turn, index: int) -> Turn:
    text, mark = str(turn["content"]), f"{OPEN}turn {index}{CLOSE}"
    if text.strip():
        turn = {**turn, "content": text + mark if turn["role"] in SYSTEMS else mark}
    if calls := turn_changes.list_calls(turn):
        turn = {**turn, "tool_calls": [_sketch_call(call, f"{index}.{at}") for at, call in enumerate(calls)]}
    return turn


def _sketch_call(call: Turn, number: str) -> Turn:
    function, mark = call["function"], f"{OPEN}turn {number}{CLOSE}"
    assert isinstance(function, dict)
    arguments = mark if isinstance(function["arguments"], str) else {"at": mark}
    return {**call, "function": {**function, "arguments": arguments}}


def make_call_probe(text: str, arguments: object) -> list[Turn]:
    """Return a conversation with one call and a text beside it; its id is one that any template accepts."""
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
    return _MARK.findall(f"{turn['content']}{dump_json(turn_changes.list_calls(turn))}")
