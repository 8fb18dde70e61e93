"""The real engine over scripted models, driven step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from doubles.rendered_here import RenderedHere

from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.events import EngineInfo, Failed, Finished, RequestEvent, Started, Tokens
from eaglelocal.core.ports import ImageReader
from eaglelocal.core.request import OFF, ChatRequest, Spec, fixed_spec
from eaglelocal.core.tools import CallPart, ToolCall, join_calls
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.input_processor import InputProcessor
from eaglelocal.engine.input_queue import INLINE, InputExecutors
from eaglelocal.scheduler.host_swap import HostSwap
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.scheduler import Scheduler
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DrafterSet
from eaglelocal.text.templates.chat_template import chat_template

from .scripted_context import LetterConstraints, LetterVocabulary, ScriptedContext, Table
from .steady_costs import FreeController, FreeRows, SteadyController

INFO = EngineInfo("scripted", "scripted", "switched off", 128, 1, 24, False, 1, 0, 0.0, "none")


@dataclass
class AnswerResult:
    """The events of one request, collected."""

    started: Started | None = None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    drafted: list[bool] = field(default_factory=list)
    finished: Finished | None = None
    failed: Failed | None = None
    reasoning: str = ""
    parts: list[CallPart] = field(default_factory=list)

    @property
    def calls(self) -> list[ToolCall]:
        return join_calls(self.parts)

    def add(self, event: RequestEvent) -> None:
        match event:
            case Started():
                self.started = event
            case Tokens():
                self.tokens.extend(piece.token for piece in event.pieces)
                self.drafted.extend(piece.drafted for piece in event.pieces)
                self.text += event.text
                self.reasoning += "".join(piece.reasoning for piece in event.pieces)
                self.parts += [part for piece in event.pieces for part in piece.calls]
            case Finished():
                assert self.finished is None
                self.finished = event
                self.text += event.text
                self.reasoning += event.reasoning
            case Failed():
                self.failed = event


class EngineHarness:
    """An engine over scripted models with one drafter and a fixed length, or several and a spec."""

    def __init__(
        self,
        table: Table,
        drafter: Drafter | Sequence[Drafter],
        *,
        num_draft_tokens: int = 4,
        spec: Spec | None = None,
        num_slots: int = 1,
        n_ctx: int = 128,
        n_batch: int = 48,
        branches: int = 0,
        context_kind: type[ScriptedContext] = ScriptedContext,
        vocabulary: LetterVocabulary | None = None,
        min_fork: int | None = 3,
        image_reader: ImageReader | None = None,
        swap: HostSwap | None = None,
        input_executors: InputExecutors = INLINE,
        adapters: Sequence[AdapterFile] = (),
        controller: Controller | None = None,
        shared: tuple[int, ...] = (),
        most_drafted: int | None = None,
    ) -> None:
        """min_fork: copy prefixes between slots if that spares so many rows. shared: a beginning that owners share.

        branches: of each slot's trees; if there are any, the cache is a unified one, and rows cost nothing.
        """
        drafters = tuple(drafter) if isinstance(drafter, Sequence) else (drafter,)
        spec = fixed_spec(num_draft_tokens) if spec is None else spec
        self.context = context_kind(
            table, n_ctx=n_ctx, n_batch=n_batch, num_slots=num_slots, num_branches=num_slots * branches
        )
        margin = max(one.traits.reuse_margin for one in drafters)
        prefix_cache = PrefixCache(num_slots, reuse_margin=margin, min_fork=min_fork, swap=swap)
        self.scheduler = Scheduler(n_ctx=n_ctx, n_batch=n_batch, prefix_cache=prefix_cache, most_drafted=most_drafted)
        vocabulary = vocabulary or LetterVocabulary(table.n_vocab)
        template = chat_template(vocabulary, RenderedHere())
        reader = InputProcessor(vocabulary, n_ctx, LetterConstraints(), image_reader=image_reader, template=template)
        reader.offer_adapters(adapters)
        reader.shared = [shared]
        self.engine = Engine(
            context=self.context,
            input_processor=reader,
            input_executors=input_executors,
            drafters=drafters if spec != OFF else (),
            controller=controller or controller_of(drafters, spec, branches=branches),
            scheduler=self.scheduler,
            info=dataclasses.replace(INFO, num_slots=num_slots),
        )

    def run(
        self, requests: Sequence[ChatRequest], cancel_at: Mapping[str, int] | None = None
    ) -> dict[str, AnswerResult]:
        return drive(self.engine, requests, cancel_at)


def fixed_controller(drafter: Drafter, num_draft_tokens: int) -> Controller:
    return controller_of((drafter,), fixed_spec(num_draft_tokens))


def controller_of(drafters: Sequence[Drafter], spec: Spec, *, branches: int = 0) -> Controller:
    """Return a controller whose primary drafter is the last one."""
    *lookups, primary = [drafter.traits.name for drafter in drafters]
    traits = drafters[-1].traits
    names = DrafterSet(primary, tuple(lookups), traits.block_size, traits.num_branches)
    if branches:
        return FreeController(spec, names, FreeRows(), max_siblings=branches)
    return SteadyController(spec, names, StepCosts(), leveled=True)


def drive(
    engine: Engine, requests: Sequence[ChatRequest], cancel_at: Mapping[str, int] | None = None
) -> dict[str, AnswerResult]:
    """Submit all, step until nothing is left; cancel requests before the step with the given number."""
    result = {request.id: AnswerResult() for request in requests}
    for request in requests:
        engine.submit(request)
    step = 0
    while engine.has_work:
        for name, when in (cancel_at or {}).items():
            if when == step:
                engine.cancel(name)
        for event in engine.step():
            result.setdefault(event.request_id, AnswerResult()).add(event)  # earlier requests may still run
        step += 1
        assert step < 10_000, "the engine does not come to an end"
    return result


def plain_text(table: Table, request: ChatRequest, n_ctx: int = 128) -> list[int]:
    """Return the tokens of greedy decoding, without an engine."""
    tokens = list(request.tokens)
    most = min(request.params.max_tokens or n_ctx, n_ctx - len(tokens))
    while len(tokens) - len(request.tokens) < most:
        token = int(np.argmax(table.after(tokens, request.adapters or ())))
        tokens.append(token)
        if token == 0 and not request.params.ignore_eos:
            break
    return tokens[len(request.tokens) :]
