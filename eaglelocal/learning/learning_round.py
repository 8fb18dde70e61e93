"""Choose the answers that a round learns from, and the answers that judge its result. Pure decisions.

One in HELD_BACK_EVERY questions, chosen by a hash, is never learned from. A round learns from the new answers since the
previous round and from as many older ones, so that nothing is forgotten. Every owner contributes equally many answers,
if they have enough, so that no owner alone decides what is learned.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

from eaglelocal.client.client import Client
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_object, read_record
from eaglelocal.core.own_files import hold_lock, read_own
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import ResourceError
from eaglelocal.gguf.reader import read_header
from eaglelocal.learning.judgement import SUFFIX as JUDGED
from eaglelocal.learning.kept_answers import KeptAnswer
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.gathering import AnswerGoal, gather_answers

HELD_BACK_EVERY = 8
NEWEST_EVERY = 10  # one in so many new answers, the newest ones, is left for judging
MIN_NEW = 64  # answers for a round
MAX_NEW = 512
MAX_HELD_BACK, MAX_NEWEST = 48, 24  # answers that judge a round
MIN_PROMPT = 64  # tokens of a prompt that stay, where a text is too long


@dataclass(frozen=True, slots=True)
class LearningRound:
    """A round: keys of the answers to learn from, and where it begins.

    start     version of the head with which it begins
    until     answers kept up to this time are learned from or judge this round; later ones are new to the next
    """

    start: int
    keys: tuple[str, ...]
    until: float


def is_held_back(answer: KeptAnswer) -> bool:
    return int(answer.prompt_key[:8], 16) % HELD_BACK_EVERY == 0


def find_new(answers: Iterable[KeptAnswer], learned_until: float) -> list[KeptAnswer]:
    """Return the answers that a round may learn from and no round has used, the oldest first."""
    return [each for each in answers if each.kept_at > learned_until and not is_held_back(each)]


def choose_round(
    answers: Sequence[KeptAnswer], *, start: int, learned_until: float, min_new: int = MIN_NEW
) -> LearningRound | None:
    """Return the next round; None if there are not enough new answers. `answers`: by time."""
    new = find_new(answers, learned_until)
    if len(new) < min_new:
        return None
    newest = max(len(new) // NEWEST_EVERY, 1)
    learned = share_equally(new[:-newest], MAX_NEW)
    older = [each for each in answers if each.kept_at <= learned_until and not is_held_back(each)]
    replayed = share_equally(older, len(learned))
    return LearningRound(start, tuple(each.key for each in (*learned, *replayed)), answers[-1].kept_at)


def share_equally(answers: Sequence[KeptAnswer], most: int) -> tuple[KeptAnswer, ...]:
    """Return up to `most` answers, taking one random answer of each owner in turn.

    With several owners, no owner contributes more than twice the average of the others.
    """
    by_owner = group_by_owner(answers)
    drawn: list[KeptAnswer] = []
    for owner, own in by_owner.items():
        others = len(answers) - len(own)
        limit = max(2 * others // (len(by_owner) - 1), 1) if others else len(own)
        drawn += random.Random(owner).sample(own, min(limit, len(own)))
    return take_turns(drawn, most)


def choose_judges(answers: Sequence[KeptAnswer], round: LearningRound, learned_until: float) -> tuple[KeptAnswer, ...]:
    """Return the answers that judge the round's head: those held back for good, and newer ones than all that were
    learned from; the newest of both.
    """
    keys = set(round.keys)
    held_back = [each for each in answers if is_held_back(each)]
    newest = [each for each in find_new(answers, learned_until) if each.key not in keys]
    return (*take_turns(held_back[::-1], MAX_HELD_BACK), *take_turns(newest[::-1], MAX_NEWEST))


def choose_since(
    answers: Sequence[KeptAnswer], since: float, *, min_tokens: int, min_answers: int
) -> tuple[KeptAnswer, ...]:
    """Return the first answers after a time that reach both minimums together; () if there are not enough yet."""
    chosen, num_tokens = [], 0
    for answer in answers:
        if answer.kept_at > since:
            chosen.append(answer)
            num_tokens += answer.num_answer_tokens
            if num_tokens >= min_tokens and len(chosen) >= min_answers:
                return tuple(chosen)
    return ()


def take_turns(answers: Sequence[KeptAnswer], most: int) -> tuple[KeptAnswer, ...]:
    """Return up to `most` answers, taking the next one of each owner in turn."""
    groups = list(group_by_owner(answers).values())
    longest = max(map(len, groups), default=0)
    turns = (group[turn] for turn in range(longest) for group in groups if turn < len(group))
    return tuple(islice(turns, most))


def group_by_owner(answers: Sequence[KeptAnswer]) -> dict[str, list[KeptAnswer]]:
    groups: dict[str, list[KeptAnswer]] = defaultdict(list)
    for answer in answers:
        groups[answer.owner].append(answer)
    return groups


def fit_window(answer: KeptAnswer, max_tokens: int) -> tuple[tuple[int, ...], int]:
    """Return at most `max_tokens` tokens of an answer, and how many of them are its prompt.

    A long prompt loses its beginning, but not below MIN_PROMPT tokens; then the answer loses its end.
    """
    missing = max(len(answer.tokens) - max_tokens, 0)
    dropped = min(missing, max(answer.num_prompt - MIN_PROMPT, 0))
    return tuple(answer.tokens[dropped : dropped + max_tokens]), answer.num_prompt - dropped


# ---- rehearsal: rehearsal: the target's answers to general questions, learned beside what people asked
#
# A head that learns only from current questions would forget the rest. The target itself generates the answers once, in
# the learning process; they contain no user's text. A killed process continues where it stopped.
REHEARSAL = "rehearsal.jsonl"
MAX_TOKENS = 24_000  # of all answers: about 200 of them
MAX_ANSWER = 160  # tokens
TEMPERATURE = 0.7


def gather_rehearsal(plan: Plan, questions: Sequence[str], folder: Path) -> tuple[TrainingConversation, ...]:
    """Return the target's answers to these questions; generate the missing ones.

    plan  of the target alone

    Raises EagleLocalError.
    """

    @contextmanager
    def open_client() -> Iterator[Client]:
        with EngineClient(plan) as client:
            client.start()
            yield client

    gathered = gather_answers(
        make_requests(plan, questions),
        folder / REHEARSAL,
        open_client,
        concurrency=plan.num_slots,
        goal=AnswerGoal(MAX_TOKENS),
        on_progress=lambda num_tokens, num_conversations: None,
    )
    return gathered.conversations


def make_requests(plan: Plan, questions: Sequence[str]) -> list[ChatRequest]:
    """Return the questions as messages, or as texts to continue if the model has no chat template."""
    has_template = "tokenizer.chat_template" in read_header(plan.target).metadata
    requests = []
    for number, question in enumerate(questions):
        params = SamplingParams(temperature=TEMPERATURE, max_tokens=MAX_ANSWER, seed=number)
        request = ChatRequest(id="", params=params)
        asked = {"messages": (Message("user", question),)} if has_template else {"text": question}
        requests.append(replace(request, **asked))
    return requests


# ---- learning state: the state of one head's learning between its processes: the round in progress, and the version
# on watch
#
# Every change is one atomic write. A state that cannot be read counts as none: then a new round begins.
STATE, LOCK = "learning.json", ".lock"
CHECKPOINT, PARTIAL = ".checkpoint", ".partial"


@dataclass(frozen=True, slots=True)
class VersionWatch:
    """A version that became current, until it has proved itself on live answers.

    before  the version that it replaced
    since   only later answers count, in seconds since 1970
    """

    version: int
    before: int
    since: float


@dataclass(frozen=True, slots=True)
class LearningState:
    """The state of one head.

    learned_until  answers kept up to this time are no longer new
    candidate      number of the version that the round has made
    """

    learned_until: float = 0.0
    round: LearningRound | None = None
    candidate: int | None = None
    watch: VersionWatch | None = None


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which ends with the process. Raises ResourceError while another process has it."""
    with ExitStack() as held:
        try:
            held.enter_context(hold_lock(folder / LOCK, waits=False))
        except BlockingIOError:
            raise ResourceError("another process learns from these answers") from None
        yield


def read_state(folder: Path) -> LearningState:
    """Return the state of a folder; an empty one if there is none, or it is damaged."""
    with suppress(OSError, ValueError):
        return read_record(LearningState, read_object(read_own(folder / STATE)))
    return LearningState()


def write_state(folder: Path, state: LearningState) -> None:
    """Write the state. Raises OSError."""
    write_atomically(folder / STATE, json.dumps(asdict(state)))


def delete_checkpoints(folder: Path) -> None:
    """Delete the files of a round or comparison in progress."""
    for path in [*folder.glob(f"*{CHECKPOINT}"), *folder.glob(f"*{PARTIAL}"), *folder.glob(f"*{JUDGED}")]:
        with suppress(OSError):
            path.unlink()
