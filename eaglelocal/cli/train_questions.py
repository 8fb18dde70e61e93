"""The questions of a training run: from a file, or from saved chats and built-in tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

from eaglelocal import locations
from eaglelocal.bench.bench_prompts import read_prompts, training_questions
from eaglelocal.conversation.conversation_file import list_names, load_conversation
from eaglelocal.core.byte_sizes import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.training.conversations import question_key


@dataclass(frozen=True, slots=True)
class TrainQuestions:
    """The requests of a training run, without ids, and their source in words."""

    requests: tuple[ChatRequest, ...]
    source: str


def load_questions(prompts: str | None, params: SamplingParams, *, has_template: bool, least: int) -> TrainQuestions:
    """Return the questions of a file, or those of the user's saved chats and then built-in tasks.

    Raises UsageError on a bad file, or one with images or with fewer than `least` different questions.
    """
    if prompts is not None:
        found = read_prompts(expand_path(prompts))
        if any(each.has_images for each in found):
            raise UsageError(
                f"{prompts} has images, and heads are trained on text only", hint="leave those prompts out"
            )
        requests = [_make_request(each.messages, params, has_template, tokens=each.tokens) for each in found]
        num = len(set(map(question_key, requests)))
        if num < least:
            hint = f"{least} or more; without --prompts there are built-in ones"
            raise UsageError(f"too few different questions in {prompts} to train on: {num}", hint=hint)
        return TrainQuestions(tuple(requests), f"{num} questions of {prompts}")
    own = [_make_request(messages, params, has_template) for messages in _iter_saved_questions()]
    built_in = [_make_request(messages, params, has_template) for messages in iter_builtin_questions()]
    source = (
        f"{count_noun(len(own), 'question')} of your saved chats, then built-in ones" if own else "built-in questions"
    )
    return TrainQuestions((*own, *built_in), source)


def _make_request(
    messages: tuple[Message, ...], params: SamplingParams, has_template: bool, *, tokens: tuple[int, ...] = ()
) -> ChatRequest:
    """Return a request: token ids, a conversation, or without a chat template the question as text to complete."""
    if tokens:
        return ChatRequest(id="", tokens=tokens, params=params)
    if has_template:
        return ChatRequest(id="", messages=messages, params=params)
    return ChatRequest(id="", text=messages[-1].content, params=params)


def _iter_saved_questions() -> Iterator[tuple[Message, ...]]:
    """Yield each question of each saved chat with the messages before it, skipping unreadable files.

    A chat ends at its first picture: heads are trained on text only.
    """
    folder = locations.conversations_dir()
    for name in list_names(folder):
        with suppress(EagleLocalError):
            chat = load_conversation(folder, name)
            turns = itertools.takewhile(lambda turn: not turn.pictures, chat.turns)
            for number, turn in enumerate(turns):
                system = (Message("system", chat.system),) if chat.system else ()
                past = tuple(message for before in chat.turns[:number] for message in before.messages())
                yield (*system, *past, Message("user", turn.question))


def iter_builtin_questions() -> Iterator[tuple[Message, ...]]:
    """Yield built-in questions of all categories, alternating between them."""
    return (prompt.messages for prompt in training_questions())
