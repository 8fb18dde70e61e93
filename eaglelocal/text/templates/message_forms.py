"""The forms of a conversation that templates may accept, the usual one first.

Templates differ in what they accept: several leading system messages, one after the first question, any at all, two
turns of one side in a row. Some refuse what they do not accept, others silently leave it out, which `make_sketch`
detects. This file has the order of the forms; turn_changes.py makes each of them, and rendering.py tries them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eaglelocal.text.templates.literal_text import CLOSE, OPEN
from eaglelocal.text.templates.template_messages import SYSTEMS, Turn
from eaglelocal.text.templates.turn_changes import (
    clear_empty_contents,
    convert_systems_to_users,
    join_systems,
    join_user_turns,
    merge_remarks_into_results,
    merge_system_into_user,
    rename_developers,
    stringify_arguments,
    wrap_arguments,
)


def iter_forms(turns: Sequence[Turn], *, wants_none: bool) -> Iterator[list[Turn]]:
    """Yield the forms of a conversation; conversations with the same roles have equally many.

    `wants_none`: an empty content may have to be None.
    """
    joined = join_systems(rename_developers(turns))
    # later system messages stay in place: moving them to the front would change the prompt from its beginning
    with_users = [joined[0], *convert_systems_to_users(joined[1:])]
    placed = [list(turns), rename_developers(turns), joined, with_users]
    contents = [content for one in placed for content in ([clear_empty_contents(one), one] if wants_none else [one])]
    for plain in (*contents, *map(merge_system_into_user, contents), *map(join_user_turns, contents)):
        yield plain
        yield stringify_arguments(plain)
        yield wrap_arguments(plain)
    without_systems = join_user_turns(convert_systems_to_users(joined))
    yield without_systems
    for plain in (list(turns), merge_system_into_user(turns), join_user_turns(with_users), without_systems):
        yield merge_remarks_into_results(plain)


def make_sketch(turns: Sequence[Turn]) -> tuple[list[Turn], list[str]]:
    """Return the turns with a mark in each system message, and the marks; other contents are short, to render fast.

    A mark is more reliable than the text: templates trim and quote, and the same text may occur elsewhere.
    """
    sketch, marks = list[Turn](), list[str]()
    for index, turn in enumerate(turns):
        text = str(turn["content"])
        if turn["role"] in SYSTEMS and text.strip():
            marks.append(f"{OPEN}system {index}{CLOSE}")
            sketch.append({**turn, "content": text + marks[-1]})
        else:
            sketch.append({**turn, "content": text and "x"})
    return sketch, marks
