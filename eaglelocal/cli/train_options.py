"""The options of a run of `eaglelocal train`, and the check whether memory and disk suffice.

Errors that would otherwise only show after hours of collecting or training are raised here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.flags import flag
from eaglelocal.cli.import_head import check_layer_inputs, find_head_target, resolve_out
from eaglelocal.cli.load_model import make_run_options, plan_run
from eaglelocal.cli.output import Output
from eaglelocal.conversation.conversation_file import list_names, load_conversation
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.training.device import DEVICES

if TYPE_CHECKING:
    from eaglelocal.core.plan import Plan
    from eaglelocal.hub.target_resolver import FoundTarget
    from eaglelocal.settings import Settings
    from eaglelocal.training.draft_head import HeadSource

MEDUSA = "medusa"
HEAD_KINDS = {"eagle": 1, "p-eagle": 8, MEDUSA: 4}  # and the tokens that one pass drafts
SELF = "self"  # --prompts
TRAINING_CTX = 2048  # tokens of a conversation that is learned from; longer ones cost memory and add little


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of a training run: target, starting head, current draft, files and devices."""

    found: FoundTarget
    source: HeadSource
    current_draft: str | None  # the draft used now, or the head that training starts from; the result must be better
    settings: Settings
    output: Output
    folder: Path
    device: str  # torch's
    path: Path  # of the new head
    is_named: bool  # --out is given: the head is written even if it is no better
    kind: str  # type of the head's weights
    draft_vocab: int | None  # tokens that a new head predicts; None: chosen by the texts

    def plan(self, draft: str, *, ctx: int, parallel: int = 1, spec: str | int = "auto") -> Plan:
        """Return a plan with this draft, as --draft takes it; a head's weights are not quantized further."""
        from eaglelocal.gguf.writer import AS_IN_FILE

        options = make_run_options(self.settings, parallel=parallel)
        options = dataclasses.replace(options, mmproj="none", draft=draft, draft_type=AS_IN_FILE, ctx=ctx, spec=spec)
        return plan_run(options, self.output)

    def reading_plan(self) -> Plan:
        """Return the plan of the target alone, as training runs it to read the conversations."""
        return self.plan("none", ctx=self.ctx, spec="off")

    @property
    def is_drafted_anew(self) -> bool:
        """True if the head in training is the draft that is used, or better than it."""
        return self.current_draft is None or self.source.start is not None

    @property
    def ctx(self) -> int:
        return min(self.settings.ctx or TRAINING_CTX, self.found.info.context_length or TRAINING_CTX)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFlags:
    """The flags that only `train` has, as typed."""

    start: str = flag("auto", "auto|none|REF", "Head to train further; none: a new one.", "--from")
    method: str = flag("eagle", "eagle|p-eagle|medusa", "Kind of head; p-eagle and medusa draft in one pass.", "--kind")
    prompts: str | None = flag(
        None,
        "FILE|self",
        "Questions, as for `bench`; self: your target's own; unset: these, your chats' and built-in ones.",
    )
    tokens: int = flag(200_000, "N", "Tokens to learn from, of answers and of its own questions.", min=1000)
    epochs: int = flag(4, "N", "Times that an answer is learned from.", min=1)
    seed: int = flag(1, "N", "Seed of the questions that the target asks itself, and of all answers.", min=0)
    draft_vocab: int | None = flag(
        None, "N", "Tokens that a new head predicts; unset: those that its texts have.", min=256
    )
    taps: str | None = flag(None, "N|L,L,...", "Layers that a new head reads: 1 to 8, or their numbers. Unset: three.")
    out: flags.HeadOut = None
    type: flags.HeadType = "bf16"
    work: str | None = flag(None, "FOLDER", "Folder for the answers and the state of a stopped run.")
    torch_device: str = flag("auto", "|".join(DEVICES), "Device to train on.")


def resolve_options(settings: Settings, output: Output, device: str, given: TrainFlags) -> TrainOptions:
    """Resolve the flags of a run. Raises UsageError, IncompatibleError or ResourceError for what cannot work."""
    if given.method not in HEAD_KINDS:
        raise UsageError(f"--kind must be one of {', '.join(HEAD_KINDS)}, not {given.method!r}")
    found = find_head_target(settings, output)
    num_depths, is_medusa = HEAD_KINDS[given.method], given.method == MEDUSA
    if not is_medusa:
        check_layer_inputs(found, settings)
    source = find_head_source(given.start, found, num_depths=num_depths, is_medusa=is_medusa)
    check_draft_vocab(given.draft_vocab, source)
    source = dataclasses.replace(source, taps=choose_taps(given.taps, source))
    parts = [str(found.path.resolve())]
    folder = expand_path(given.work) if given.work else locations.training_dir() / hash_parts(parts)
    return TrainOptions(
        found=found,
        source=source,
        current_draft=find_current_draft(given.start, found),
        settings=settings,
        output=output,
        folder=folder,
        device=device,
        path=choose_path(source, given.type, given.out),
        is_named=given.out is not None,
        kind=given.type,
        draft_vocab=given.draft_vocab,
    )


def check_draft_vocab(num: int | None, source: HeadSource) -> None:
    """Check how many tokens a head is to predict. Raises UsageError: an existing head keeps its vocabulary."""
    if num is None or (source.start is not None and source.start.draft_vocab == num):
        return
    if source.start is not None:
        raise UsageError(f"{source.start.name} keeps its vocabulary", hint="`--from none` trains a new head")
    if num > source.target.n_vocab:
        what = f"the target has {source.target.n_vocab} tokens, not {num}"
        raise UsageError(what, hint=f"--draft-vocab {source.target.n_vocab}")


def choose_taps(text: str | None, source: HeadSource) -> tuple[int, ...]:
    """Return the layers that a new head is to read: those named, or so many, evenly spread; empty: not stated.

    Raises UsageError if they cannot be had, or for a head that has its own.
    """
    from eaglelocal.gguf.tap_row import MAX_TAPS, spread_taps

    if text is None:
        return ()
    try:
        numbers = tuple(int(part) for part in text.removesuffix(",").split(","))
    except ValueError:
        raise UsageError(f"--taps takes a number of layers, or layers, not {text!r}", hint="--taps 2,14,27") from None
    n_layer, is_count = source.target.n_layer, "," not in text
    last = n_layer - (source.target.final_state is None)
    taps = spread_taps(max(numbers[0], 1), n_layer) if is_count else numbers
    if source.start is not None and source.start.target_layers == taps:
        return ()
    if source.start is not None or source.is_medusa:
        name = source.start.name if source.start else "a Medusa head"
        raise UsageError(f"{name} keeps the layers that it reads", hint="`--from none` trains a new EAGLE head")
    if is_count and not 1 <= numbers[0] <= MAX_TAPS:
        raise UsageError(
            f"--taps takes 1 to {MAX_TAPS} layers, not {numbers[0]}", hint=f"`--taps {numbers[0]},` is a layer"
        )
    if not (len(taps) <= MAX_TAPS and taps[0] >= 1 and taps[-1] <= last and all(a < b for a, b in pairwise(taps))):
        if is_count:
            raise UsageError(
                f"{n_layer} layers are too few to spread {text} taps", hint="fewer, or their numbers: --taps 1,2"
            )
        what = f"--taps takes up to {MAX_TAPS} layers of 1 to {last}, each after the one before, not {text!r}"
        raise UsageError(what, hint="--taps 4")
    return taps


def find_head_source(start: str, found: FoundTarget, *, num_depths: int, is_medusa: bool = False) -> HeadSource:
    """Return the target with the head to start from: `start` names it, or auto: as `--draft auto` but a weak head too,
    or none: a new one.

    A Medusa head is always a new one. Before answers are collected, raises UsageError if it is no EAGLE head, and
    IncompatibleError if it cannot be trained.
    """
    from eaglelocal.gguf import medusa_info
    from eaglelocal.gguf.eagle_info import EagleInfo
    from eaglelocal.gguf.reader import read_header
    from eaglelocal.hub.draft_resolver import find_draft
    from eaglelocal.hub.heads.head_store import list_fitting_heads
    from eaglelocal.training.draft_head import HeadSource, choose_head_shape

    source = HeadSource(found.info, num_depths=num_depths, is_medusa=is_medusa)
    if is_medusa and start not in ("auto", "none"):
        raise UsageError("a Medusa head is trained anew, not from another head", hint="--from none")
    draft = None if start == "none" or is_medusa else find_draft(start, found)
    path = draft.path if draft is not None and draft.kind == "eagle3" else None
    if path is None and draft is not None and start == "auto":
        path = next((head.path for head in list_fitting_heads(found.info)), None)
    header = read_header(path) if path is not None else None
    if header is not None and not medusa_info.is_medusa(header):
        source = dataclasses.replace(source, start=EagleInfo.from_header(header))
    elif start not in ("auto", "none"):
        raise UsageError(f"--from {start} is no EAGLE head", hint="use a head in GGUF, or `--from none`")
    choose_head_shape(source, max_context=1)
    return source


def find_current_draft(start: str, found: FoundTarget) -> str | None:
    """Return the draft that the new head would replace, as --draft takes it: the one of `--draft auto`, or `start`.

    None if it has no file: a head does not replace a lookup.
    """
    from eaglelocal.hub.draft_resolver import find_draft
    from eaglelocal.training.training_folder import WEAK

    is_weak_start = expand_path(start).name == WEAK  # of a run that learned too little: it is nobody's draft
    draft = find_draft("auto" if start == "none" or is_weak_start else start, found)
    if draft.path is None:
        return None
    return "mtp" if draft.kind == "mtp" else str(draft.path.resolve())


def choose_path(source: HeadSource, kind: str, out: str | None) -> Path:
    """Return the file of the new head. Raises UsageError or ResourceError if it cannot be written."""
    from eaglelocal.hub.heads.head_store import check_writable, make_head_path
    from eaglelocal.training.head_file import make_head_name

    default_path = make_head_path(source.target, make_head_name(source), kind)
    path = resolve_out(out, default_path.name) if out else default_path
    check_writable(path)
    return path


def check_resources(options: TrainOptions) -> None:
    """Raise ResourceError if memory or disk do not suffice; called before answers are collected."""
    from eaglelocal.training.memory_check import check_memory_and_disk

    check_memory_and_disk(
        options.source,
        options.reading_plan(),
        options.folder,
        options.device,
        draft_vocab=options.draft_vocab,
    )


def hash_parts(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


# ---- the questions: from a file, or from saved chats and built-in tasks
@dataclass(frozen=True, slots=True)
class TrainQuestions:
    """The requests of a training run, without ids, and their source in words.

    params        of all answers
    asks_itself   the target asks itself too, until there are enough answers
    """

    requests: tuple[ChatRequest, ...]
    source: str
    params: SamplingParams
    has_template: bool
    asks_itself: bool = False

    def add(self, talks: Iterable[tuple[Message, ...]]) -> TrainQuestions:
        return dataclasses.replace(self, requests=(*self.requests, *map(self.make_request, talks)))

    def make_request(self, talk: tuple[Message, ...]) -> ChatRequest:
        return _make_request(talk, self.params, self.has_template)


def load_questions(prompts: str | None, params: SamplingParams, *, has_template: bool, least: int) -> TrainQuestions:
    """Return the questions of a file, or those of the user's saved chats and built-in tasks; SELF: none.

    Raises UsageError on a bad file, or one with images or with fewer than `least` different questions.
    """
    from eaglelocal.bench.bench_prompts import read_prompts
    from eaglelocal.training.conversations import question_key

    if prompts == SELF:
        return TrainQuestions((), "those that the target asks itself", params, has_template, asks_itself=True)
    if prompts is not None:
        found = read_prompts(expand_path(prompts))
        if any(each.has_images for each in found):
            what = f"{prompts} has images, and heads are trained on text only"
            raise UsageError(what, hint="leave those prompts out")
        requests = [_make_request(each.messages, params, has_template, tokens=each.tokens) for each in found]
        num = len(set(map(question_key, requests)))
        if num < least:
            hint = f"{least} or more; without --prompts there are built-in ones"
            raise UsageError(f"too few different questions in {prompts} to train on: {num}", hint=hint)
        return TrainQuestions(tuple(requests), f"{num} questions of {prompts}", params, has_template)
    own, built_in = [*_iter_saved_questions()], [*iter_builtin_questions()]
    saved = f"{count_noun(len(own), 'question')} of your saved chats, built-in ones"
    source = f"{saved if own else 'built-in ones'} and the target's own, half of each"
    return TrainQuestions((), source, params, has_template, asks_itself=True).add((*own, *built_in))


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
    from eaglelocal.bench.bench_prompts import training_questions

    return (prompt.messages for prompt in training_questions())
