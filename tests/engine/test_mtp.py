"""Models that draft for themselves with an MTP layer: right drafts, wrong ones, and refusals.

No trained model of the kind is small, so the layers here are built to be right always, sometimes or hardly ever.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.mixed_traffic import MixedTraffic
from doubles.mtp_models import num_layers, write_assistant, write_gemma, write_mtp
from doubles.plain_deepseek4 import PlainDeepseek4
from doubles.plain_mimo import PlainMimo
from doubles.real_engine import ask, real_engine
from doubles.tiers import some_of

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import LlamaHeadContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.backend.top_tokens import MIN_RANKED
from eaglelocal.core.batch import Batch
from eaglelocal.core.draft import ROOT
from eaglelocal.core.request import AUTO_SPEC, MAX_DRAFT_TOKENS, ChatRequest, Spec, fixed_spec
from eaglelocal.drafters.drafter import Committed, Continuation, Node
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.mtp_layers import MtpLayers, TargetCacheDrafter
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.architectures import MTP_ARCHITECTURES, SEVERAL_MTP_ARCHITECTURES, UNUSED_MTP
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import describe_shape, read_shape
from eaglelocal.gguf.mtp import MtpInfo, check_mtp, has_mtp, is_mtp_alone
from eaglelocal.gguf.reader import read_header
from eaglelocal.speculation.policy.step_report import StepReport

pytestmark = pytest.mark.full

PROMPT = tuple(range(30, 60))
OFTEN = ["glm4moe", "nemotron_h_moe", "mimo2", "deepseek4"]  # one of each kind: plain, with state, windows, and both
SELDOM = ["deepseek2", "hy_v3", "step35", "cohere2moe", "bailingmoe3", "deepseek32", "glm-dsa"]
OTHERS = [*OFTEN, *SELDOM]
ARCHITECTURES = ["qwen35", "qwen35moe", *OTHERS]
MOSTLY = ["qwen35", *OFTEN, *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("qwen35moe", *SELDOM))]
WINDOWED = ["mimo2", "step35", "cohere2moe", "deepseek4"]
LIVELY = 4.0  # what makes drafts for Gemma right at times


def texts_of(engine: Engine, requests: list[ChatRequest]) -> dict[str, list[int]]:
    result = drive(engine, requests)
    assert [result[request.id].failed for request in requests] == [None] * len(requests)
    assert engine.miscounted_slots() == []
    return {request.id: result[request.id].tokens for request in requests}


def plain_texts(target: Path, requests: list[ChatRequest], **changes: object) -> dict[str, list[int]]:
    engine = real_engine(target, **changes)
    texts = texts_of(engine, requests)
    engine.close()
    return texts


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_layer_that_knows_the_target_is_always_right(tmp_path: Path, architecture: str) -> None:
    target = write_mtp(tmp_path / "right.gguf", architecture, gain=0.0)
    request = ask("a", PROMPT, max_tokens=41)
    engine = real_engine(target, "mtp", target, spec=fixed_spec(4))
    assert texts_of(engine, [request]) == plain_texts(target, [request])
    stats = engine.snapshot().speculation
    assert stats.draft_tokens == stats.accepted_tokens == 32  # the first token is the prompt's, the others come by five
    engine.close()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_layer_reads_the_state_that_its_token_came_of(tmp_path: Path, architecture: str) -> None:
    """What echoes that state says the token itself again, and so does its own state behind it."""
    library = load_library()
    model = LlamaModel(library, write_mtp(tmp_path / "echo.gguf", architecture, echoes=True), Placement(has_mtp=True))
    taps = (num_layers(architecture),)
    target = LlamaContext(model, ContextParams(n_ctx=256, flash_attn="off"), taps=taps, final_by_nextn=True)
    params = ContextParams(n_ctx=256, n_batch=16, flash_attn="off", is_mtp=True)
    layer = LlamaHeadContext(model, params, target=target, has_encoder=False)
    drafter = Eagle3(layer, taps, name="mtp")
    tokens = list(PROMPT)
    for _ in range(5):
        first = 0 if len(tokens) == len(PROMPT) else len(tokens) - 1
        rows = tokens[first:]
        outputs = target.decode(
            Batch(rows, list(range(first, len(tokens))), [(0,)] * len(rows), [False] * (len(rows) - 1) + [True])
        )
        drafter.commit([Committed(0, first, rows, outputs.features(list(range(len(rows)))))])
        said = target.propose([len(rows) - 1], 1, confident=False).tokens[0][0]
        (drafted,) = drafter.draft([Node(0, ROOT, said, len(tokens))], depth=3)
        assert list(drafted.tokens) == [said] * 3
        tokens.append(said)
    layer.close()
    target.close()
    model.close()


@pytest.mark.parametrize("spec", [fixed_spec(4), AUTO_SPEC], ids=str)
@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("architecture", some_of(["qwen35", "qwen35moe"], rest=pytest.mark.slow))
def test_drafted_texts_are_the_plain_ones(tmp_path: Path, architecture: str, num_slots: int, spec: Spec) -> None:
    target = write_mtp(tmp_path / "model.gguf", architecture, gain=0.03)
    requests = [ask(f"r{i}", (*PROMPT, *range(40 + i, 50)), max_tokens=40 + 10 * i) for i in range(num_slots)]
    engine = real_engine(target, "mtp", target, num_slots=num_slots, spec=spec)
    assert texts_of(engine, requests) == plain_texts(target, requests, num_slots=num_slots)
    stats = engine.snapshot().speculation
    if spec != AUTO_SPEC:  # which on a busy machine may draft nothing
        assert 0 < stats.accepted_tokens < stats.draft_tokens
    engine.close()


@pytest.mark.parametrize("length", some_of([4, 1, 2, 3], rest=pytest.mark.slow))
@pytest.mark.parametrize("architecture", OTHERS)
def test_drafted_texts_of_other_families(tmp_path: Path, architecture: str, length: int) -> None:
    """Two slots, one of whose prompts takes several decodes and leaves every window, and one that begins alike."""
    target = write_mtp(tmp_path / "model.gguf", architecture, gain=0.03)
    long = tuple(20 + (7 * i) % 260 for i in range(180))
    requests = [ask("long", long, max_tokens=40), ask("short", PROMPT, max_tokens=30), ask("alike", long[:170])]
    changes = {"num_slots": 2, "n_batch": 64}
    engine = real_engine(target, "mtp", target, spec=fixed_spec(length), **changes)
    assert texts_of(engine, requests) == plain_texts(target, requests, **changes)
    assert 0 < engine.snapshot().speculation.accepted_tokens < engine.snapshot().speculation.draft_tokens
    engine.close()


@pytest.mark.parametrize("length", [1, 3, 8])
def test_drafts_across_the_end_of_a_row_of_many_tokens(tmp_path: Path, length: int) -> None:
    """DeepSeek V4 keeps 128 tokens as one row, which is written again if some of them were rejected."""
    target = write_mtp(tmp_path / "model.gguf", "deepseek4", gain=0.03)
    requests = [ask(f"r{i}", [20 + (7 * k + i) % 260 for k in range(90 + 11 * i)], max_tokens=60) for i in range(3)]
    engine = real_engine(target, "mtp", target, spec=fixed_spec(length), num_slots=3)
    assert texts_of(engine, requests) == plain_texts(target, requests, num_slots=3)
    assert 0 < engine.snapshot().speculation.accepted_tokens < engine.snapshot().speculation.draft_tokens
    engine.close()


@pytest.mark.parametrize("architecture", WINDOWED)
def test_drafted_texts_where_windows_keep_no_more_than_they_need(tmp_path: Path, architecture: str) -> None:
    target = write_mtp(tmp_path / "model.gguf", architecture, gain=0.03)
    long = tuple(20 + (7 * i) % 260 for i in range(180))
    requests = [ask("long", long, max_tokens=60), ask("short", PROMPT, max_tokens=30)]
    changes = {"num_slots": 2, "n_batch": 64, "n_ctx": 512, "swa_full": False}
    engine = real_engine(target, "mtp", target, spec=fixed_spec(4), **changes)
    assert texts_of(engine, requests) == plain_texts(target, requests, **changes)
    assert engine.snapshot().speculation.accepted_tokens > 0
    engine.close()


@pytest.mark.parametrize("architecture", sorted(SEVERAL_MTP_ARCHITECTURES))
@pytest.mark.parametrize(("wrong", "accepted", "draft_tokens"), [(None, 30, 30), (0, 0, 117), (1, 20, 57), (2, 26, 39)])
def test_each_of_several_layers_drafts_one_token(
    tmp_path: Path, architecture: str, wrong: int | None, accepted: int, draft_tokens: int
) -> None:
    """Of three tokens, the one that the wrong layer drafts is refused, and those after it."""
    target = write_mtp(tmp_path / "three.gguf", architecture, gain=0.0, num_mtp=3, wrong=wrong)
    request = ask("a", PROMPT, max_tokens=41)
    engine = real_engine(target, "mtp", target, spec=fixed_spec(4))
    assert texts_of(engine, [request]) == plain_texts(target, [request])
    stats = engine.snapshot().speculation
    assert stats.accepted_tokens == accepted
    assert stats.draft_tokens == pytest.approx(draft_tokens, abs=3)  # fewer of use at the end
    engine.close()


@pytest.mark.parametrize("architecture", sorted(SEVERAL_MTP_ARCHITECTURES))
def test_what_several_layers_take(tmp_path: Path, architecture: str) -> None:
    files = [write_mtp(tmp_path / f"{num_mtp}.gguf", architecture, num_mtp=num_mtp) for num_mtp in (1, 3)]
    one, three = (describe_shape(MtpInfo.from_header(read_header(path))) for path in files)
    assert three.weights_bytes == 3 * one.weights_bytes
    assert three.active_bytes == one.active_bytes  # of one draft step
    assert (len(one.kv_heads), len(three.kv_heads)) == (1, 3)
    assert (one.max_depth, three.max_depth) == (MAX_DRAFT_TOKENS, 3)


@pytest.mark.parametrize("spec", [fixed_spec(1), fixed_spec(2), fixed_spec(16), AUTO_SPEC], ids=str)
@pytest.mark.parametrize("architecture", sorted(SEVERAL_MTP_ARCHITECTURES))
def test_texts_drafted_by_several_layers_are_the_plain_ones(tmp_path: Path, architecture: str, spec: Spec) -> None:
    target = write_mtp(tmp_path / "three.gguf", architecture, gain=0.03, layer_gain=0.1, num_mtp=3)
    requests = [ask(f"r{i}", (*PROMPT, *range(40 + i, 50)), max_tokens=40 + 10 * i) for i in range(3)]
    engine = real_engine(target, "mtp", target, num_slots=3, spec=spec)
    assert texts_of(engine, requests) == plain_texts(target, requests, num_slots=3)
    assert engine.snapshot().speculation.accepted_tokens > 0 or spec == AUTO_SPEC
    engine.close()


def test_mixed_traffic_for_several_layers(tmp_path: Path) -> None:
    target = write_mtp(tmp_path / "model.gguf", "step35", gain=0.03, num_mtp=3)
    engine = real_engine(target, "mtp", target, num_slots=3, n_ctx=512, cache_ram=64)
    engine.scheduler.prefix_cache.swap.min_rows = 30
    traffic = MixedTraffic(target, engine, seed=2)
    traffic.run(25)
    assert traffic.engine.snapshot().speculation.accepted_tokens > 0
    traffic.close()


class TwoTexts:
    """A target with three random MTP layers, which draft for two texts at once, and the same in plain numpy."""

    def __init__(self, path: Path, *, selects_outputs: bool) -> None:
        self.model = LlamaModel(load_library(), path, Placement(has_mtp=True, repack=False))
        first = num_layers("mimo2")
        sizes = {"n_ctx": 256, "num_sequences": 2, "n_batch": 32, "flash_attn": "off", "kv_type": "f32"}
        params = ContextParams(**sizes)  # type: ignore[arg-type]
        self.target = LlamaContext(self.model, params, taps=(first,), final_by_nextn=True)
        params = ContextParams(is_mtp=True, **sizes)  # type: ignore[arg-type]
        kind = {"has_encoder": False, "num_layers": 3, "selects_outputs": selects_outputs}
        layers = LlamaHeadContext(self.model, params, target=self.target, **kind)  # type: ignore[arg-type]
        self.drafter = MtpLayers(layers, (first,), 3)
        self.plain = PlainMimo(path, first)
        self.tokens: list[list[int]] = [[], []]
        self.roots = [7, 8]
        self.states: list[list[np.ndarray]] = [[], []]  # of the target's rows

    def commit(self, slot: int, further: list[int]) -> None:
        """Commit the root and further tokens, of which the last is the next root."""
        tokens, self.roots[slot] = [self.roots[slot], *further[:-1]], further[-1]
        n, first = len(tokens), len(self.tokens[slot])
        outputs = self.target.decode(Batch(tokens, list(range(first, first + n)), [(slot,)] * n, [True] * n))
        features = outputs.features(list(range(n)))
        self.states[slot] += list(features.copied()[:, 0])
        self.drafter.commit([Committed(slot, first, tokens, features)])
        self.tokens[slot] += tokens

    def draft(self, slots: list[int], depth: int) -> dict[int, Continuation]:
        """Draft after the roots of the slots: in two calls if `depth` is less than three."""
        drafts = self.drafter.draft(
            [Node(slot, ROOT, self.roots[slot], len(self.tokens[slot])) for slot in slots], depth
        )
        nodes = [
            Node(slot, depth - 1, draft.tokens[-1], len(self.tokens[slot]) + depth)
            for slot, draft in zip(slots, drafts, strict=True)
        ]
        rest = self.drafter.draft(nodes, 3)
        pairs = zip(slots, drafts, rest, strict=True)
        return {
            slot: Continuation([*one.tokens, *two.tokens], [*one.confidences, *two.confidences])
            for slot, one, two in pairs
        }

    def expect(self, slot: int) -> Continuation:
        """Return what plain numpy drafts: three tokens, each by a layer of its own."""
        tokens, states = [*self.tokens[slot][1:], self.roots[slot]], list(self.states[slot])
        drafted, confidences = [], []
        for layer in range(3):
            after, logits = self.plain.run(layer, tokens, np.stack(states))
            best = np.sort(logits[-1])[::-1][:MIN_RANKED]
            drafted.append(int(logits[-1].argmax()))
            confidences.append(float(1 / np.exp(best - best[0]).sum()))
            tokens, states = [*tokens, drafted[-1]], [*states, after[-1]]
        return Continuation(drafted, confidences)

    def close(self) -> None:
        self.drafter.close()
        self.target.close()
        self.model.close()


@pytest.mark.parametrize("selects_outputs", [False, True])
def test_each_layer_computes_what_plain_numpy_does(tmp_path: Path, selects_outputs: bool) -> None:
    """Drafts of one text or both, in one call or two, all of them rejected. Windows (96 rows) are left."""
    path = write_mtp(tmp_path / "random.gguf", "mimo2", gain=1.0, num_mtp=3, random=True)
    texts = TwoTexts(path, selects_outputs=selects_outputs)
    rng = random.Random(5)
    for turn in range(12):
        slots = [turn % 2, 1 - turn % 2]
        for slot in slots:
            texts.commit(slot, rng.choices(range(20, 280), k=rng.randrange(2, 24)))
        for slot, draft in texts.draft(slots[: 1 + turn % 3], 1 + turn % 3).items():
            expected = texts.expect(slot)
            assert draft.tokens == expected.tokens
            assert draft.confidences == pytest.approx(expected.confidences, abs=1e-3)
    assert min(map(len, texts.tokens)) > 96
    texts.close()


class ParallelStates:
    """A target whose tokens have four parallel states, with a random MTP layer, and the same layer in plain numpy."""

    def __init__(self, path: Path) -> None:
        self.model = LlamaModel(load_library(), path, Placement(has_mtp=True, repack=False))
        taps = (num_layers("deepseek4"),)
        sizes = {"n_ctx": 256, "num_sequences": 2, "n_batch": 32, "flash_attn": "off", "kv_type": "f32"}
        params = ContextParams(unified=False, num_snapshots=4, **sizes)  # type: ignore[arg-type]
        self.target = LlamaContext(self.model, params, taps=taps, final_by_nextn=True)
        params = ContextParams(is_mtp=True, **sizes)  # type: ignore[arg-type]
        layer = LlamaHeadContext(self.model, params, target=self.target, has_encoder=False)
        self.drafter, self.plain = Eagle3(layer, taps, name="mtp"), PlainDeepseek4(path, *taps)
        self.tokens: list[list[int]] = [[], []]
        self.roots = [7, 8]
        self.states: list[np.ndarray] = [np.empty((0, self.plain.num_parallel, self.model.n_embd))] * 2

    def commit(self, slot: int, further: list[int]) -> None:
        """Commit the root and further tokens, of which the last is the next root.

        What the target says after each follows from the states that were copied.
        """
        tokens, self.roots[slot] = [self.roots[slot], *further[:-1]], further[-1]
        first, n = len(self.tokens[slot]), len(tokens)
        outputs = self.target.decode(Batch(tokens, list(range(first, first + n)), [(slot,)] * n, [True] * n))
        features = outputs.features(list(range(n)))
        states = features.copied().reshape(n, self.plain.num_parallel, -1)
        logits = np.stack([self.target.logits(row) for row in range(n)])
        assert np.abs(self.plain.speak(states) - logits).max() < 1e-3
        self.drafter.commit([Committed(slot, first, tokens, features)])
        self.tokens[slot] += tokens
        self.states[slot] = np.concatenate([self.states[slot], states])

    def draft(self, slots: list[int], depth: int) -> dict[int, Continuation]:
        nodes = [Node(slot, ROOT, self.roots[slot], len(self.tokens[slot])) for slot in slots]
        return dict(zip(slots, self.drafter.draft(nodes, depth), strict=True))

    def expect(self, slot: int, depth: int) -> Continuation:
        """Return what plain numpy drafts, each token with the states behind the one before."""
        tokens, states = [*self.tokens[slot][1:], self.roots[slot]], self.states[slot]
        drafted, confidences = [], []
        for _ in range(depth):
            after, logits = self.plain.run(tokens, states)
            best = np.sort(logits[-1])[::-1][:MIN_RANKED]
            drafted.append(int(logits[-1].argmax()))
            confidences.append(float(1 / np.exp(best - best[0]).sum()))
            tokens, states = [*tokens, drafted[-1]], np.concatenate([states, after[-1:]])
        return Continuation(drafted, confidences)

    def close(self) -> None:
        self.drafter.close()
        self.target.close()
        self.model.close()


def test_a_layer_with_parallel_states_computes_what_plain_numpy_does(tmp_path: Path) -> None:
    """Drafts of one text or both, of one to four tokens, all of them rejected. The window (96 rows) is left."""
    texts = ParallelStates(write_mtp(tmp_path / "random.gguf", "deepseek4", gain=1.0, random=True))
    rng = random.Random(5)
    for turn in range(12):
        slots, depth = [turn % 2, 1 - turn % 2], 1 + turn % 4
        for slot in slots:
            texts.commit(slot, rng.choices(range(20, 280), k=rng.randrange(2, 24)))
        for slot, draft in texts.draft(slots[: 1 + turn % 3], depth).items():
            if turn % 3 != 1:  # the slow reading of numpy: once for each depth, with both texts
                continue
            expected = texts.expect(slot, depth)
            assert list(draft.tokens) == expected.tokens
            assert draft.confidences == pytest.approx(expected.confidences, abs=1e-3)
    assert min(map(len, texts.tokens)) > 96
    texts.close()


def check_conversation(target: Path, draft: Path) -> None:
    """It goes on, is changed, and between its turns one that begins alike is cancelled."""
    engine = real_engine(target, "mtp", draft, n_ctx=1024, num_slots=2)
    history = list(range(20, 260))
    for turn in range(4):
        request = ask(f"turn {turn}", history)
        said = texts_of(engine, [request])[request.id]
        assert said == plain_texts(target, [request], n_ctx=1024, num_slots=2)[request.id]
        engine.submit(ask("cancelled", [*history, *said, 5, 6, 7]))
        for _ in range(turn + 1):
            engine.step()
        engine.cancel("cancelled")
        history += [*said, 7 + turn] if turn % 2 else [*said[2:9], *range(30 + turn, 190)]
    engine.close()


@pytest.mark.parametrize("architecture", MOSTLY)
def test_conversations_go_on_change_and_are_cancelled(tmp_path: Path, architecture: str) -> None:
    target = write_mtp(tmp_path / "model.gguf", architecture, gain=0.03)
    check_conversation(target, target)


def use_steady_times(engine: Engine) -> None:
    """Let all steps take what was calibrated: those of a busy machine would now and then make drafts look cheap."""

    def steady(report: StepReport) -> StepReport:
        calls = [call._replace(seconds=0.1) for call in report.draft_calls]
        return replace(report, decode_s=1.0 + report.num_rows / 2, draft_calls=calls, other_s=0.1)

    learn, learn_plain = engine.controller.learn, engine.controller.learn_plain
    engine.controller.learn = lambda report: learn(steady(report))  # type: ignore[method-assign]
    engine.controller.learn_plain = lambda report: learn_plain(steady(report))  # type: ignore[method-assign]


def test_a_layer_that_is_hardly_ever_right_is_put_to_sleep(tmp_path: Path) -> None:
    target = write_mtp(tmp_path / "model.gguf", gain=1.0)
    request = ask("a", PROMPT, max_tokens=200)
    engine = real_engine(target, "mtp", target, spec=AUTO_SPEC)
    engine.controller.costs.calibrate({rows: [1.0 + rows / 2] for rows in range(1, 9)})
    use_steady_times(engine)
    result = drive(engine, [request])["a"]
    assert result.tokens == plain_texts(target, [request])["a"]
    assert result.finished is not None and result.finished.speculation.state == "asleep"
    engine.close()


class Feeding:
    """A target with its layer, by hand, and a text that is committed in pieces."""

    def __init__(
        self, model: LlamaModel, text: list[int], *, n_batch: int, num_mtp: int = 1, selects_outputs: bool = False
    ) -> None:
        params, taps = ContextParams(n_ctx=256, n_batch=64, flash_attn="off", num_snapshots=8), (model.n_layer,)
        self.target = LlamaContext(model, params, taps=taps, final_by_nextn=True)
        params = ContextParams(n_ctx=256, n_batch=n_batch, flash_attn="off", is_mtp=True)
        kind = {"has_encoder": False, "num_layers": num_mtp, "selects_outputs": selects_outputs}
        head = LlamaHeadContext(model, params, target=self.target, **kind)  # type: ignore[arg-type]
        self.drafter = MtpLayers(head, taps, num_mtp) if num_mtp > 1 else Eagle3(head, taps)
        self.text, self.end = text, 0

    def commit(self, num_rows: int, *, asleep: bool = False) -> None:
        rows, first = self.text[self.end : self.end + num_rows], self.end
        n = len(rows)
        outputs = self.target.decode(Batch(rows, list(range(first, first + n)), [(0,)] * n, [True] * n))
        committed = [Committed(0, first, rows, outputs.features(list(range(n))))]
        (self.drafter.buffer if asleep else self.drafter.commit)(committed)
        self.end += n

    def swap(self) -> None:
        known = self.drafter.swap_out(0)
        self.drafter.rollback(0, 0)
        self.drafter.swap_in(0, known, [])

    def draft(self, depth: int) -> tuple[list[int], list[float]]:
        (said,) = self.drafter.draft([Node(0, ROOT, self.text[self.end], self.end)], depth=depth)
        return list(said.tokens), list(said.confidences)

    def close(self) -> None:
        self.drafter.close()
        self.target.close()


@pytest.mark.parametrize("architecture", MOSTLY)
def test_its_cache_holds_the_text_however_it_came(tmp_path: Path, architecture: str) -> None:
    check_cache(write_mtp(tmp_path / "model.gguf", architecture, gain=1.0, layer_gain=1.0))


@pytest.mark.parametrize("architecture", sorted(SEVERAL_MTP_ARCHITECTURES))
def test_their_caches_hold_the_text_however_it_came(tmp_path: Path, architecture: str) -> None:
    check_cache(write_mtp(tmp_path / "model.gguf", architecture, gain=1.0, num_mtp=3, random=True), num_mtp=3)


def check_cache(path: Path, *, num_mtp: int = 1) -> None:
    """Check that drafts are the same after a text that came in small pieces, with drafts in between that were rejected,
    slept through in part, and swapped out and in again.
    """
    model, rng = LlamaModel(load_library(), path, Placement(has_mtp=True)), random.Random(1)
    selects = MtpInfo.from_header(read_header(path)).selects_outputs
    for trial in range(12):
        text = [rng.randrange(20, 280) for _ in range(100)]
        messy, fresh = (
            Feeding(model, text, n_batch=n_batch, num_mtp=num_mtp, selects_outputs=selects and n_batch < 64)
            for n_batch in (rng.choice([4, 16]), 64)
        )
        while messy.end < 20:
            messy.commit(rng.randrange(1, 9))
            messy.draft(rng.randrange(1, 6))
        while messy.end < 50:
            messy.commit(rng.randrange(1, 9), asleep=trial % 3 == 0)
        if trial % 2:
            messy.swap()
        fresh.commit(messy.end)
        tokens, confidences = messy.draft(4)
        expected, sure = fresh.draft(4)
        assert tokens == expected
        assert confidences == pytest.approx(sure, abs=1e-3)
        messy.close()
        fresh.close()
    model.close()


@pytest.mark.parametrize("kind", some_of(["gemma4", *ARCHITECTURES], 2, rest=pytest.mark.slow))
def test_mixed_traffic_gets_the_plain_texts(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    target = write_gemma(path, gain=LIVELY) if kind == "gemma4" else write_mtp(path, kind, gain=0.03)
    draft = write_assistant(tmp_path / "assistant.gguf", target) if kind == "gemma4" else target
    traffic = MixedTraffic(target, real_engine(target, "mtp", draft, num_slots=3, n_ctx=512), seed=3)
    traffic.run(25)
    assert traffic.engine.snapshot().speculation.accepted_tokens > 0
    traffic.close()


@pytest.mark.parametrize(
    ("kind", "num_slots"),
    [
        ("qwen35", 3),
        ("gemma4", 1),
        pytest.param("qwen35", 1, marks=pytest.mark.slow),
        pytest.param("gemma4", 3, marks=pytest.mark.slow),
        *(pytest.param(kind, 3, marks=pytest.mark.slow) for kind in OTHERS),
    ],
)
def test_mixed_traffic_whose_conversations_wait_in_main_memory(tmp_path: Path, kind: str, num_slots: int) -> None:
    path = tmp_path / "model.gguf"
    target = write_gemma(path, gain=LIVELY) if kind == "gemma4" else write_mtp(path, kind, gain=0.03)
    draft = write_assistant(tmp_path / "assistant.gguf", target) if kind == "gemma4" else target
    engine = real_engine(target, "mtp", draft, num_slots=num_slots, n_ctx=512, cache_ram=64)
    swap = engine.scheduler.prefix_cache.swap
    swap.min_rows = 30
    traffic = MixedTraffic(target, engine, seed=1)
    with mock.patch.object(swap, "put", wraps=swap.put) as put:
        traffic.run(25)
    assert traffic.engine.snapshot().speculation.accepted_tokens > 0
    assert put.call_count > 3
    traffic.close()


def test_sixteen_slots_and_small_batches(tmp_path: Path) -> None:
    target = write_mtp(tmp_path / "model.gguf", gain=0.03)
    requests = [ask(f"r{i}", PROMPT[i:], max_tokens=12) for i in range(16)]
    changes = {"num_slots": 16, "n_batch": 48}
    engine = real_engine(target, "mtp", target, spec=fixed_spec(2), **changes)
    assert texts_of(engine, requests) == plain_texts(target, requests, **changes)
    assert engine.snapshot().speculation.accepted_tokens > 0
    engine.close()


# ---- a file of its own
@pytest.mark.parametrize("architecture", ["qwen35", "nemotron_h_moe", "step35", "deepseek4"])
def test_a_layer_in_a_file_of_its_own_drafts(tmp_path: Path, architecture: str) -> None:
    whole = write_mtp(tmp_path / "whole.gguf", architecture, gain=0.0)
    trunk = write_mtp(tmp_path / "trunk.gguf", architecture, gain=0.0, part="trunk")
    alone = write_mtp(tmp_path / "alone.gguf", architecture, gain=0.0, part="layer")
    assert [has_mtp(read_header(path)) for path in (whole, trunk, alone)] == [True, False, True]
    assert [is_mtp_alone(read_header(path)) for path in (whole, trunk, alone)] == [False, False, True]
    request = ask("a", PROMPT, max_tokens=41)
    engine = real_engine(trunk, "mtp", alone, spec=fixed_spec(4))
    assert texts_of(engine, [request]) == plain_texts(whole, [request])
    stats = engine.snapshot().speculation
    assert stats.draft_tokens == stats.accepted_tokens == 32
    engine.close()
    with pytest.raises(ModelFileError, match=r"alone\.gguf holds an MTP layer, not a model"):
        real_engine(alone)


def test_what_the_layer_takes_is_distinguished_from_the_target(tmp_path: Path) -> None:
    whole = read_header(write_mtp(tmp_path / "whole.gguf"))
    trunk = read_header(write_mtp(tmp_path / "t.gguf", part="trunk"))
    alone = read_header(write_mtp(tmp_path / "alone.gguf", part="layer"))
    assert replace(read_shape(whole), n_layer_ahead=0) == read_shape(trunk)
    layer, own = (describe_shape(MtpInfo.from_header(header)) for header in (whole, alone))
    assert layer.weights_bytes == whole.tensor_bytes - trunk.tensor_bytes
    assert own.weights_bytes == alone.tensor_bytes
    assert layer.active_bytes == own.active_bytes == layer.weights_bytes + read_shape(whole).read_output_bytes
    assert (layer.kv_heads, layer.has_state, layer.num_taps) == ((2,), False, 1)


# ---- Gemma 4: layers in a file of their own that read the target's cache


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    return write_gemma(tmp_path / "gemma.gguf", gain=LIVELY)


@pytest.mark.parametrize("swa_full", [True, False])
def test_layers_that_know_the_target_are_always_right(tmp_path: Path, swa_full: bool) -> None:
    target = write_gemma(tmp_path / "right.gguf", gain=0.0)
    assistant = write_assistant(tmp_path / "assistant.gguf", target)
    request = ask("a", PROMPT, max_tokens=41)
    engine = real_engine(target, "mtp", assistant, spec=fixed_spec(4), swa_full=swa_full)
    assert texts_of(engine, [request]) == plain_texts(target, [request])
    stats = engine.snapshot().speculation
    assert stats.draft_tokens == stats.accepted_tokens == 32
    assert (
        "drafts are chains: gemma4 attends through a sliding window, whose cells cannot be shared" in engine.info.notes
    )
    engine.close()


@pytest.mark.parametrize(
    "spec", some_of([AUTO_SPEC, fixed_spec(1), fixed_spec(4), fixed_spec(16)], 2, rest=pytest.mark.slow), ids=str
)
@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("swa_full", [True, False])
def test_texts_are_the_plain_ones(tmp_path: Path, gemma: Path, num_slots: int, spec: Spec, swa_full: bool) -> None:
    assistant = write_assistant(tmp_path / "assistant.gguf", gemma, gain=LIVELY)
    requests = [ask(f"r{i}", (*PROMPT, *range(40 + i, 50)), max_tokens=40 + 10 * i) for i in range(num_slots)]
    changes = {"num_slots": num_slots, "swa_full": swa_full}
    engine = real_engine(gemma, "mtp", assistant, spec=spec, **changes)
    assert texts_of(engine, requests) == plain_texts(gemma, requests, **changes)
    assert engine.snapshot().speculation.draft_tokens > 0 or spec is AUTO_SPEC  # whether it pays, the machine decides
    engine.close()


def test_their_conversations_go_on_change_and_are_cancelled(tmp_path: Path, gemma: Path) -> None:
    check_conversation(gemma, write_assistant(tmp_path / "assistant.gguf", gemma, gain=LIVELY))


class Reading:
    """A target with its assistant, by hand."""

    def __init__(self, target: Path, assistant: Path) -> None:
        library = load_library()
        self.models = (
            LlamaModel(library, target, Placement(repack=False)),
            LlamaModel(library, assistant, Placement(repack=False)),
        )
        taps = (self.models[0].n_layer,)
        sizes = {"n_ctx": 256, "num_sequences": 2, "unified": False, "flash_attn": "off"}
        self.target = LlamaContext(self.models[0], ContextParams(**sizes), taps=taps, final_by_nextn=True)  # type: ignore[arg-type]
        params = ContextParams(n_batch=16, is_mtp=True, **sizes)  # type: ignore[arg-type]
        layers = LlamaHeadContext(self.models[1], params, target=self.target, has_encoder=False, reads_cache=True)
        self.drafter = TargetCacheDrafter(layers, taps)

    def read(self, slot: int, first: int, tokens: list[int], *, kept: int | None = None) -> int:
        """Decode rows, of which the first `kept` stay; what follows those."""
        n = len(tokens)
        kept = n if kept is None else kept
        outputs = self.target.decode(Batch(tokens, list(range(first, first + n)), [(slot,)] * n, [True] * n))
        self.drafter.commit([Committed(slot, first, tokens[:kept], outputs.features(list(range(kept))))])
        said = self.target.propose([kept - 1], 1, confident=False).tokens[0][0]
        self.target.remove(slot, first + kept)
        return said

    def close(self) -> None:
        self.drafter.close()
        self.target.close()
        for model in self.models:
            model.close()


def test_a_draft_sees_nothing_of_what_was_rejected_before_it(tmp_path: Path, gemma: Path) -> None:
    """Its layers attend to the target's cells, of which rejected rows are removed with the next decode."""
    assistant = write_assistant(tmp_path / "assistant.gguf", gemma, gain=30.0)
    texts = [list(PROMPT), [*range(100, 140), *PROMPT]]
    found = []
    for rejected in ([], [7, 8, 9, 10]):
        reading = Reading(gemma, assistant)
        nodes = []
        for slot, text in enumerate(texts):
            reading.read(slot, 0, text)
            said = reading.read(slot, len(text), [5, 6, *rejected], kept=2)
            nodes.append(Node(slot, ROOT, said, len(text) + 2))
        found.append(reading.drafter.draft(nodes, depth=3))
        reading.close()
    assert [each.tokens for each in found[0]] == [each.tokens for each in found[1]]
    assert found[0][0].tokens != found[0][1].tokens
    for clean, other in zip(*found, strict=True):
        assert clean.confidences == pytest.approx(other.confidences, abs=1e-4)


def test_assistants_that_do_not_fit_are_refused(tmp_path: Path, gemma: Path) -> None:
    assistant = write_assistant(tmp_path / "assistant.gguf", gemma)
    qwen = write_mtp(tmp_path / "qwen.gguf", part="trunk")
    with pytest.raises(IncompatibleError, match="it was made for the architecture gemma4, the target is of qwen35"):
        real_engine(qwen, "mtp", assistant)
    with pytest.raises(ModelFileError, match=r"assistant\.gguf holds an MTP layer"):
        real_engine(assistant)
    narrow = write_assistant(tmp_path / "narrow.gguf", gemma, kv_heads=1)
    with pytest.raises(
        IncompatibleError, match="layers with a window read 64 values of a token, the target's keep 128"
    ):
        real_engine(gemma, "mtp", narrow)


# ---- refusals
@pytest.mark.parametrize(
    ("keys", "without", "words"),
    [
        ({"nextn_predict_layers": 2}, " ", "has 2 MTP layers, where one can draft"),
        ({}, "nextn.hnorm", r"lacks the tensor blk\.8\.nextn\.hnorm\.weight"),
        ({"embedding_length_out": 128}, " ", "its states are 256 wide, its rows 128"),
        ({"embedding_length_out": 100000}, " ", "its states are 256 wide, its rows 100000"),
        ({"attention.head_count_kv": [2] * 8 + [4]}, " ", "head_count_kv is 4 in it and 2 in the first layer"),
        ({"attention.head_count_kv": [2] * 8 + [0]}, " ", "head_count_kv is 0 in it and 2 in the first layer"),
    ],
    ids=str,
)
@pytest.mark.parametrize("part", ["whole", "layer"])
def test_layers_that_llama_cpp_would_abort_on(
    tmp_path: Path, part: str, keys: dict[str, object], without: str, words: str
) -> None:
    target = write_mtp(tmp_path / "target.gguf", part="trunk")
    layer = write_mtp(tmp_path / "layer.gguf", part=part, keys=keys, without=without)
    assert not has_mtp(read_header(layer))
    with pytest.raises(IncompatibleError, match=words):
        real_engine(target if part == "layer" else layer, "mtp", layer)


@pytest.mark.parametrize(
    ("architecture", "keys", "without", "words"),
    [
        ("glm4moe", {"nextn_predict_layers": 2}, " ", "has 2 MTP layers, where one can draft"),
        ("glm4moe", {"leading_dense_block_count": 5}, " ", "leading_dense_block_count is 5, which makes it dense"),
        ("glm4moe", {"attention.head_count_kv": [2] * 4 + [4]}, " ", "head_count_kv is 4 in it and 2 in the first"),
        ("glm-dsa", {"leading_dense_block_count": 5}, " ", "leading_dense_block_count is 5, which makes it dense"),
        ("glm4moe", {"rope.dimension_sections": [8, 12, 12, 0]}, " ", r"its positions have sections \(M-RoPE\)"),
        ("deepseek2", {"attention.temperature_scale": 0.1}, " ", "it scales attention by position"),
        ("deepseek2", {"attention.q_lora_rank": 0}, " ", "its queries have no latent form"),
        ("deepseek2", {"attention.key_length_mla": 0}, " ", r"lacks deepseek2\.attention\.key_length_mla"),
        ("hy_v3", {}, "blk.4.ffn_gate_exps", r"lacks the tensor blk\.4\.ffn_gate_exps\.weight"),
        ("mimo2", {}, "attn_qkv", r"lacks the tensor blk\.4\.attn_qkv\.weight"),
        ("mimo2", {}, "blk.4.ffn_up", r"lacks the tensor blk\.4\.ffn_up\.weight"),
        ("mimo2", {"attention.head_count_kv": [2, 4, 4, 2, 0]}, " ", "head_count_kv is 0 in it"),
        ("deepseek4", {"nextn_predict_layers": 2}, " ", "has 2 MTP layers, where one can draft"),
        ("deepseek4", {"attention.compress_ratios": [0, 4, 128, 4, 4]}, " ", "it keeps 4 tokens as one"),
        ("deepseek4", {"hash_layer_count": 5}, " ", r"a table chooses its experts \(hash_layer_count is 5\)"),
        ("deepseek4", {"attention.indexer.key_length": 128}, " ", "its keys and those of its indexer are 128 wide"),
        ("step35", {}, "blk.4.ffn_down", r"lacks the tensor blk\.4\.ffn_down\.weight"),
        ("step35", {}, "output.weight", r"lacks the tensor output\.weight"),
        ("step35", {"embedding_length_out": 128}, " ", "its states are 256 wide, its rows 128"),
    ],
    ids=str,
)
def test_layers_of_other_families_that_llama_cpp_would_abort_on(
    tmp_path: Path, architecture: str, keys: dict[str, object], without: str, words: str
) -> None:
    target = write_mtp(tmp_path / "target.gguf", architecture, part="trunk")
    layer = write_mtp(tmp_path / "layer.gguf", architecture, part="layer", keys=keys, without=without)
    assert not has_mtp(read_header(layer))
    with pytest.raises(IncompatibleError, match=words):
        real_engine(target, "mtp", layer)


def test_layers_of_architectures_that_llama_cpp_does_not_run_are_refused_with_the_reason(tmp_path: Path) -> None:
    header = read_header(write_mtp(tmp_path / "model.gguf"))
    layer, target = MtpInfo.from_header(header), ModelInfo.from_header(header)
    check_mtp(layer, target)
    for architecture, why in (*UNUSED_MTP.items(), ("new", "they have not been tested")):
        with pytest.raises(IncompatibleError, match=re.escape(f"{architecture} cannot draft: {why}")):
            check_mtp(replace(layer, architecture=architecture), target)
    assert not MTP_ARCHITECTURES & UNUSED_MTP.keys()


def test_small_deepseek_models_whose_queries_llama_cpp_reads_as_whole_are_refused(tmp_path: Path) -> None:
    path = write_mtp(tmp_path / "model.gguf", "deepseek2", keys={"block_count": 27})
    assert "no latent form" in MtpInfo.from_header(read_header(path)).abort_reason


def test_what_cannot_draft_is_refused_with_the_reason(tmp_path: Path) -> None:
    trunk = write_mtp(tmp_path / "trunk.gguf", part="trunk")
    with pytest.raises(IncompatibleError, match=r"trunk\.gguf has no MTP layer"):
        real_engine(trunk, "mtp", trunk)
    moe = write_mtp(tmp_path / "moe.gguf", "qwen35moe", part="layer")
    with pytest.raises(IncompatibleError, match="it was made for the architecture qwen35moe, the target is of qwen35"):
        real_engine(trunk, "mtp", moe)
