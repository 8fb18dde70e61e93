"""Engines over the real llama.cpp with tiny models, and a target's raw logits for exact comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch, Floats
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.engine.step_learning import StepEstimate
from eaglelocal.loading.engine_builder import build
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller

from .random_models import TargetShape

CHUNK = 64  # rows of a decode whose logits are all kept
TINY = TargetShape(n_embd=64, n_layer=4, n_ff=64, layer_gain=0.3)


def real_engine(target: Path, kind: str = "none", draft: Path | None = None, **changes: object) -> Engine:
    """Build an engine with a fixed draft length of 4; `num_draft_tokens` or `spec` changes that.

    Prompts get all free rows beside answers: their number would else depend on the clock, and with it near-ties.
    """
    length = changes.pop("num_draft_tokens", 4)
    assert isinstance(length, int)
    fields: dict[str, object] = {"n_ctx": 256, "n_batch": 128, "threads": 1, "spec": fixed_spec(length)}
    fields |= {"draft_kind": kind, "draft": draft, "draft_label": kind} | changes
    engine = build(Plan(target=target, target_label=target.stem, **fields), lambda _: None)  # type: ignore[arg-type]
    engine._learning._estimate = StepEstimate(
        StepCosts(), engine.scheduler.prefix_cache.num_cached, is_unified=engine.context.is_unified
    )
    return engine


def use_controller(engine: Engine, controller: Controller) -> None:
    """Let another controller decide from now on. Call it before the first request."""
    engine.controller = engine._answers._controller = engine._learning._controller = controller


def ask(name: str, prompt: Sequence[int], **params: object) -> ChatRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True} | params
    return ChatRequest(id=name, tokens=tuple(prompt), params=SamplingParams(**fields))  # type: ignore[arg-type]


def read(context: LlamaContext, slot: int, first: int, tokens: list[int]) -> Floats:
    """Decode tokens and return the logits after the last one."""
    n = len(tokens)
    rows = Batch(tokens, list(range(first, first + n)), [(slot,)] * n, [False] * (n - 1) + [True])
    context.decode(rows)
    return context.logits(n - 1).copy()


class RawLogits:
    """A target that decodes one text at a time, without an engine.

    Its attention is the engine's: without flash attention SmolLM2's logits are off by 0.1, and 3000 draws show it.
    """

    def __init__(self, target: Path, *, n_ctx: int = 256) -> None:
        self._model = LlamaModel(load_library(), target, Placement(repack=False))
        self._context = LlamaContext(self._model, ContextParams(n_ctx=n_ctx, flash_attn="on"))

    def after(self, tokens: Sequence[int]) -> Floats:
        """Return the logits [vocab] after the tokens, as a copy."""
        n = len(tokens)
        self._context.remove(0, 0)
        self._context.decode(Batch(list(tokens), list(range(n)), [(0,)] * n, [False] * (n - 1) + [True]))
        return self._context._logits(n - 1).copy()

    def along(self, tokens: Sequence[int], first: int) -> Floats:
        """Return the logits [len(tokens) - first, vocab] after each of the tokens from number `first` on."""
        self._context.remove(0, 0)
        found = []
        for start in range(0, len(tokens), CHUNK):
            part = list(tokens[start : start + CHUNK])
            n = len(part)
            self._context.decode(Batch(part, list(range(start, start + n)), [(0,)] * n, [True] * n))
            found += [self._context.logits(row) for row in range(n) if start + row >= first]
        return np.stack(found)

    def close(self) -> None:
        self._context.close()
        self._model.close()
