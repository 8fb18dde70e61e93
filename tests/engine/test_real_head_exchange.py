"""The head is exchanged on the real llama.cpp: texts, acceptance, memory, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from doubles.engine_harness import AnswerResult
from doubles.head_exchanges import HeadExchanges
from doubles.margin import BOUNDS, margin_differences
from doubles.medusa_checkpoints import write_random_medusa
from doubles.random_models import HeadShape, TargetShape, write_head, write_target
from doubles.real_engine import TINY, ask, real_engine, use_controller
from doubles.steady_costs import FreeController, FreeRows
from measures.worse_head import add_noise

from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Message, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError, ResourceError
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.loading import draft_loader
from eaglelocal.probe.machine import MainMemory
from eaglelocal.speculation.policy.slot_policy import DrafterSet

HEAD = HeadShape(width=64, fc_norm=True, norm_output=True)
QUESTION = "816 + 903 ="
HEAD_FORMS = {
    "eagle3": HEAD,
    "small vocabulary": replace(HEAD, draft_vocab=100, own_output=True),
    "p-eagle": replace(HEAD, num_depths=4, norm_output=False),
    "own embeddings": replace(HEAD, own_embeddings=True, own_output=True),
}


@contextmanager
def opened(target: Path, head: Path, **changes: object) -> Iterator[Engine]:
    engine = real_engine(target, "eagle3", head, **changes)
    try:
        yield engine
    finally:
        engine.close()


def write_form(path: Path, form: str, target: Path, *, seed: int) -> Path:
    if form == "medusa":
        return write_random_medusa(path, target, seed=seed)
    return write_head(path, replace(HEAD_FORMS[form], seed=seed), TINY)


def drive(engine: Engine, requests: list[ChatRequest], heads: dict[int, Path]) -> dict[str, AnswerResult]:
    """Step to the end; before the step of a number a head is exchanged."""
    for request in requests:
        engine.submit(request)
    results = {request.id: AnswerResult() for request in requests}
    step, exchanges = 0, HeadExchanges(engine)
    while engine.has_work:
        if step in heads:
            exchanges.begin(heads[step], step)
        for event in exchanges.step():
            results[event.request_id].add(event)
        step += 1
    return results


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("form", [*HEAD_FORMS, "medusa"])
def test_no_exchange_changes_a_text(tmp_path: Path, form: str, num_slots: int) -> None:
    target = write_target(tmp_path / "target.gguf", TINY)
    heads = [write_form(tmp_path / f"{seed}.gguf", form, target, seed=seed) for seed in (1, 2)]
    requests = [ask(str(n), range(10 + n, 40 + 25 * n), max_tokens=40) for n in range(num_slots + 1)]
    with opened(target, heads[0], num_slots=num_slots, spec=AUTO_SPEC if num_slots == 1 else fixed_spec(3)) as engine:
        traits = engine.drafters[-1].traits
        names = DrafterSet(traits.name, ("ngram",), traits.block_size, max_depth=traits.max_depth)
        use_controller(engine, FreeController(engine.controller.spec, names, FreeRows(), leveled=num_slots > 1))
        results = drive(engine, requests, {1: heads[1], 6: heads[0], 7: heads[1], 19: heads[0]})
        assert engine.snapshot().draft_version == 19
        assert engine.snapshot().speculation.draft_tokens > 0
        assert engine.miscounted_slots() == []
    plain = real_engine(target)
    for request in requests:
        assert len(results[request.id].tokens) == 40
        margin_differences(plain, request, results[request.id].tokens, BOUNDS["F32"])
    plain.close()


def test_a_better_head_is_accepted_more_in_the_same_answer(tmp_path: Path) -> None:
    """The embedded head replaces a copy with noise in the middle of an answer."""
    target, head = demo_sources()
    worse = tmp_path / "worse.gguf"
    shutil.copyfile(head, worse)
    add_noise(worse, 1.0)
    params = SamplingParams(temperature=0.0, max_tokens=200)
    request = ChatRequest(id="a", messages=(Message("user", QUESTION),), params=params)
    with opened(target, worse, n_ctx=512) as engine:
        engine.submit(request)
        result, before, exchanges = AnswerResult(), None, HeadExchanges(engine)
        while engine.has_work:
            if len(result.tokens) == 1:
                exchanges.begin(head, 1)
            for event in exchanges.step():
                result.add(event)
            if before is None and engine.snapshot().draft_version == 1:
                before = engine.snapshot().speculation
        total = engine.snapshot().speculation
    assert before is not None
    first = before.accepted_tokens / before.draft_tokens
    second = (total.accepted_tokens - before.accepted_tokens) / (total.draft_tokens - before.draft_tokens)
    assert first < 0.3 and second > 0.6, (first, second)
    plain = real_engine(target, n_ctx=512)
    assert result.tokens == drive(plain, [request], {})["a"].tokens
    plain.close()


def test_exchanges_free_the_memory_of_the_old_heads(tmp_path: Path) -> None:
    shape = replace(HEAD, width=512, n_ff=8192, own_embeddings=True, own_output=True)
    target = write_target(tmp_path / "target.gguf", TINY)
    heads = [write_head(tmp_path / f"{seed}.gguf", replace(shape, seed=seed), TINY) for seed in (1, 2)]
    head_bytes = heads[0].stat().st_size
    assert head_bytes > 40e6
    with opened(target, heads[0]) as engine:
        drive(engine, [ask("before", range(10, 30))], {1: heads[1], 3: heads[0]})
        before = psutil.Process().memory_info().rss
        for n in range(20):
            drive(engine, [ask(str(n), range(10, 30), max_tokens=8)], {2: heads[(n + 1) % 2]})
        grown = psutil.Process().memory_info().rss - before
    assert grown < head_bytes, f"{grown / 1e6:.0f} MB more after 20 exchanges of a head of {head_bytes / 1e6:.0f} MB"


def write(**shape: object) -> Callable[[Path, Path], object]:
    """Return what writes a head that differs from HEAD in these fields."""
    return lambda path, target: write_head(path, replace(HEAD, **shape), TINY)  # type: ignore[arg-type]


def cut_short(path: Path, target: Path) -> None:
    head = write_head(path, HEAD, TINY)
    head.write_bytes(head.read_bytes()[: head.stat().st_size // 2])


def write_text(path: Path, target: Path) -> None:
    path.write_text("not a model")


@pytest.mark.parametrize(
    ("write_other", "kind", "message"),
    [
        (lambda path, target: None, ModelFileError, "no.*gguf|missing|not"),
        (write_text, ModelFileError, "GGUF"),
        (cut_short, ModelFileError, "."),
        (write(taps=(0, 2, 3)), IncompatibleError, "layers"),
        (write(num_depths=4, norm_output=False), IncompatibleError, "one pass"),
        (
            lambda path, target: write_head(path, replace(HEAD, draft_vocab=80, own_output=True), TINY),
            IncompatibleError,
            "vocabulary",
        ),
        (lambda path, target: write_random_medusa(path, target), IncompatibleError, "another kind"),
        (lambda path, target: write_target(path, TINY), EagleLocalError, "."),
        (
            lambda path, target: write_head(path, HEAD, TargetShape(n_embd=128, n_layer=4)),
            IncompatibleError,
            "does not fit|width|embd|hidden",
        ),
    ],
)
def test_what_cannot_replace_the_head_is_one_error_and_the_old_one_drafts_on(
    tmp_path: Path, write_other: Callable[[Path, Path], object], kind: type[EagleLocalError], message: str
) -> None:
    target, head = write_target(tmp_path / "target.gguf", TINY), write_head(tmp_path / "head.gguf", HEAD, TINY)
    other = tmp_path / "other.gguf"
    write_other(other, target)
    with opened(target, head) as engine:
        engine.submit(ask("a", range(10, 40), max_tokens=30))
        for _ in range(4):
            engine.step()
        drafted = engine.snapshot().speculation.draft_tokens
        with pytest.raises(kind, match=message):
            engine.prepare_head(other, 1)
        while engine.has_work:
            engine.step()
        assert engine.snapshot().speculation.draft_tokens > drafted
        assert engine.snapshot().draft_version == 0


def test_a_head_for_which_memory_is_missing_is_refused_with_both_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, head = write_target(tmp_path / "target.gguf", TINY), write_head(tmp_path / "head.gguf", HEAD, TINY)
    with opened(target, head) as engine:
        monkeypatch.setattr(draft_loader, "read_memory", lambda: MainMemory(available_bytes=100_000))
        with pytest.raises(ResourceError, match=r"for a second head do not fit the .* that are free in RAM"):
            engine.prepare_head(head, 1)
        monkeypatch.undo()
        HeadExchanges(engine).begin(head, 2)
        assert engine.snapshot().draft_version == 2


def test_an_engine_without_a_head_refuses(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", TINY)
    head = write_head(tmp_path / "head.gguf", HEAD, TINY)
    engine = real_engine(target, "ngram")
    with pytest.raises(IncompatibleError, match="here ngram drafts"):
        engine.prepare_head(head, 1)
    engine.close()
