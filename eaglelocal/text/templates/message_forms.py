"""The forms of a conversation that templates may want, the usual one first.

Templates differ in what they accept: several leading system messages, one after the first question, any at all, two
turns of one side in a row. Some refuse what they do not accept, others silently leave it out: `sketch_of` detects
that. This file has the order of the forms; template_messages.py makes each of them, and rendering.py tries them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eaglelocal.text.templates.literal_text import CLOSE, OPEN
from eaglelocal.text.templates.template_messages import (
    SYSTEMS,
    Turn,
    with_argument_objects,
    with_argument_texts,
    with_joined_systems,
    with_joined_turns,
    with_remarks_in_results,
    with_system_for_developer,
    with_system_for_user,
    with_users_for_systems,
    without_empty_contents,
)


def ways_of(turns: Sequence[Turn], *, wants_none: bool) -> Iterator[list[Turn]]:
    """Yield the forms of a conversation; conversations with the same roles have equally many.

    `wants_none`: an empty content may have to be None.
    """
    joined = with_joined_systems(with_system_for_developer(turns))
    # in place: moving them to the front would change the prompt from its beginning
    asked = [joined[0], *with_users_for_systems(joined[1:])]
    placed = [list(turns), with_system_for_developer(turns), joined, asked]
    contents = [way for one in placed for way in ([without_empty_contents(one), one] if wants_none else [one])]
    for plain in (*contents, *map(with_system_for_user, contents), *map(with_joined_turns, contents)):
        yield plain
        yield with_argument_texts(plain)
        yield with_argument_objects(plain)
    unled = with_joined_turns(with_users_for_systems(joined))
    yield unled
    for plain in (list(turns), with_system_for_user(turns), with_joined_turns(asked), unled):
        yield with_remarks_in_results(plain)


def sketch_of(turns: Sequence[Turn]) -> tuple[list[Turn], list[str]]:
    """Return the turns with a mark in each system message, and the marks; other contents are short, to render fast.

    A mark is more reliable than the text: templates trim and quote, and the same text may occur elsewhere.
    """
    sketch, marks = list[Turn](), list[str]()
    for index, turn in enumerate(turns):
        said = str(turn["content"])
        if turn["role"] in SYSTEMS and said.strip():
            marks.append(f"{OPEN}system {index}{CLOSE}")
            sketch.append({**turn, "content": said + marks[-1]})
        else:
            sketch.append({**turn, "content": said and "x"})
    return sketch, marks
