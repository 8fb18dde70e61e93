"""The real engine over a scripted model that can read and write any ASCII text, for servers; no llama.cpp.

A character is a token. Drafts come from a head that is always right, in the slots of the plan.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from eaglelocal.core.batch import Floats
from eaglelocal.core.events import Report
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import fixed_spec
from eaglelocal.core.sampling import Sampled, SamplingParams, TokenLogprob
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.engine.input_queue import InputExecutors
from eaglelocal.worker.process import EngineLoop

from .engine_harness import EngineHarness
from .scripted_context import LetterVocabulary, ScriptedContext, ScriptedHead, ScriptedSampler, Table, softmax

BUILDER = "doubles.server_engine:build"
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
N_VOCAB = 1 + len(CHARACTERS)
N_CTX = 512
NUM_SLOTS = 4
CUTTER = "cutter"  # the label of a model with a CutVocabulary


def plan(label: str = "typist") -> Plan:
    return Plan(target=Path("none"), target_label=label, n_ctx=N_CTX, num_slots=NUM_SLOTS, spec=fixed_spec(4))


def token_of(character: str) -> int:
    """Return the token of a character; that of a question mark if it has none."""
    return 1 + (CHARACTERS.find(character) if character in CHARACTERS else CHARACTERS.find("?"))


class CharacterVocabulary(LetterVocabulary):
    """A vocabulary in which token n is the n-th of CHARACTERS and token 0 ends generation."""

    def __init__(self) -> None:
        super().__init__(N_VOCAB)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [token_of(character) for character in text]

    def piece(self, token: int) -> bytes:
        return b"" if token == 0 else CHARACTERS[token - 1].encode()


class CutVocabulary(CharacterVocabulary):
    """A vocabulary in which each token ends one emoji and begins the next, so that each answer is cut in one."""

    def piece(self, token: int) -> bytes:
        return b"" if token == 0 else b"\x80ok \xf0\x9f\x98"


class TellingSampler(ScriptedSampler):
    """A sampler that reports log-probabilities if they are asked for."""

    def sample(self, row: int) -> Sampled:
        drawn = super().sample(row)
        if self._params.logprobs is None:
            return drawn
        logprobs: Floats = np.log(softmax(self.context.logits_of(row)))
        best = np.argsort(-logprobs, kind="stable")[: self._params.logprobs]
        top = tuple(TokenLogprob(int(token), float(logprobs[token])) for token in best)
        return dataclasses.replace(drawn, logprob=float(logprobs[drawn.token]), top=top)


class TellingContext(ScriptedContext):
    def sampler(self, params: SamplingParams, *more: object) -> ScriptedSampler:
        self.samplers.append(TellingSampler(self, params, *more))  # type: ignore[call-arg] # constraints, if there are
        return self.samplers[-1]


def build(plan: Plan, report: Report) -> EngineLoop:
    """Build the engine, as an engine.process.Builder."""
    table = Table(N_VOCAB, seed=3, end_bias=-6.0)
    harness = EngineHarness(
        table,
        Eagle3(ScriptedHead(table, n_ctx=plan.n_ctx), (0,)),
        spec=plan.spec,
        num_slots=plan.num_slots,
        n_ctx=plan.n_ctx,
        n_batch=64,
        input_executors=InputExecutors(report=report),
        context_kind=TellingContext,
        vocabulary=CutVocabulary() if plan.target_label == CUTTER else CharacterVocabulary(),
    )
    harness.engine.info = dataclasses.replace(
        harness.engine.info, target=plan.target_label, n_ctx=plan.n_ctx, n_vocab=N_VOCAB
    )
    return harness.engine
