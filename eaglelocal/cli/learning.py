"""`--learn`: open learning by the settings, and describe what is kept."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.cli.output import path_text
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.core.amounts import format_disk

if TYPE_CHECKING:
    from eaglelocal.learning.idle_learning import IdleLearning
    from eaglelocal.settings import Settings

GIGABYTE = 1_000_000_000
DAY_S = 86_400.0
NUM_GENERAL = 400  # built-in questions that a head rehearses; about half of them are answered
THIS_MACHINE = "this machine"  # owner of the chat's requests, where a server has keys


def open_learning(settings: Settings, owners: Iterable[str], output: MessageOutput) -> IdleLearning | None:
    """Return the learning of this process, after saying what it keeps; None without --learn. Close it at the end.

    owners  who agreed that their answers are learned from
    """
    if not settings.learn:
        return None
    from eaglelocal.cli.train_options import iter_builtin_questions
    from eaglelocal.learning.idle_learning import IdleLearning, LearningOptions

    single = (messages[0].content for messages in iter_builtin_questions() if len(messages) == 1)
    options = LearningOptions(
        max_bytes=int(settings.learn_gb * GIGABYTE),
        max_age_s=settings.learn_days * DAY_S,
        idle_s=settings.learn_after,
        owners=frozenset(owners),
        general=tuple(islice(single, NUM_GENERAL)),  # of all kinds in turn
    )
    for line in learning_lines(settings, options.owners, options.max_bytes):
        output.note(line)
    return IdleLearning(options)


class LazyLearning:
    """The learning of a chat, which is opened if it loads a model of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._learning: IdleLearning | None = None

    def open(self, output: MessageOutput) -> IdleLearning | None:
        if self._learning is None:
            self._learning = open_learning(self._settings, ("",), output)
        return self._learning

    def close(self) -> None:
        if self._learning is not None:
            self._learning.close()


def learning_lines(settings: Settings, owners: frozenset[str], max_bytes: int) -> list[str]:
    """Return the messages with which learning begins."""
    lines = [
        f"learning is on: {describe_owners(owners)} are kept as token ids in {path_text(locations.learning_dir())}, "
        f"for {settings.learn_days:g} days and up to {format_disk(max_bytes)} of each model; "
        "`eaglelocal forget` deletes them"
    ]
    if find_spec("torch") is None:
        from eaglelocal.core.own_package import suggest_extra

        lines.append(f"answers are only kept: learning needs torch: {suggest_extra('train')}")
    return lines


def describe_owners(owners: frozenset[str]) -> str:
    """Return whose answers are kept.

    >>> describe_owners(frozenset({"this machine"}))
    "only answers to this machine's chat (no key ends with the word learn)"
    >>> describe_owners(frozenset({"this machine", "ben", "anna"}))
    "answers to anna, ben and this machine's chat"
    """
    if THIS_MACHINE not in owners:
        return "answers"
    keys = sorted(owners - {THIS_MACHINE})
    if not keys:
        return "only answers to this machine's chat (no key ends with the word learn)"
    return f"answers to {', '.join(keys)} and this machine's chat"
