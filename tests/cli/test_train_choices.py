"""How `eaglelocal train` uses collected answers: which fit, which are held out, whether there are enough."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from eaglelocal.catalog.reference import EmbeddedModel
from eaglelocal.cli.train import (
    check_enough,
    choose_recipe,
    format_time_left,
    keep_weak_head,
    seed_request,
)
from eaglelocal.cli.train_options import find_current_draft, find_head_source
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import UsageError
from eaglelocal.gguf.eagle_info import ACCEPTANCE_LENGTH_KEY
from eaglelocal.hub import draft_resolver
from eaglelocal.hub.draft_resolver import FoundDraft
from eaglelocal.hub.heads import head_store
from eaglelocal.hub.heads.version_records import TrialAcceptance
from eaglelocal.hub.target_resolver import NATIVE, find_target
from eaglelocal.training.conversations import Collected, TrainingConversation
from eaglelocal.training.device import choose_device
from eaglelocal.training.rounds import MIN_CONVERSATIONS
from eaglelocal.training.training_folder import WEAK


def conversations(num: int, *, num_prompt: int = 10, num_answer_tokens: int = 20) -> tuple[TrainingConversation, ...]:
    tokens = tuple(range(num_prompt + num_answer_tokens))
    return tuple(TrainingConversation(f"{num_prompt}-{number}", tokens, num_prompt) for number in range(num))


@pytest.mark.parametrize(
    ("num", "num_asked", "hint"),
    [(20, 500, "--tokens 4000"), (0, 500, "--tokens 80000"), (20, 27, "more questions, or --ctx 4096")],
)
def test_too_few_answers_are_reported_with_what_helps(num: int, num_asked: int, hint: str) -> None:
    with pytest.raises(
        UsageError, match=rf"{num} answers are too few .*\(5 questions did not fit, 2 answers"
    ) as raised:
        check_enough(Collected(conversations(num), 5, 2), num_questions=num_asked, max_answer_tokens=1000, ctx=2048)
    assert raised.value.hint == hint
    check_enough(
        Collected(conversations(MIN_CONVERSATIONS), 5, 2), num_questions=num_asked, max_answer_tokens=1000, ctx=2048
    )


@pytest.mark.parametrize(
    ("done", "rest", "spent_s", "raised"),
    [(100, 200, 60.0, ", 2 min 0 s left"), (0, 200, 60.0, ""), (100, 200, 1.0, ""), (100, 0, 60.0, "")],
)
def test_the_time_left_is_reported_from_the_pace_so_far(done: int, rest: int, spent_s: float, raised: str) -> None:
    assert format_time_left(done, rest, spent_s) == raised


@pytest.mark.parametrize(
    ("draft", "current_draft"),
    [
        (FoundDraft("eagle3", Path("/head.gguf")), "/head.gguf"),
        (FoundDraft("dflash", Path("/block.gguf")), "/block.gguf"),
        (FoundDraft("draft_model", Path("/small.gguf")), "/small.gguf"),
        (FoundDraft("mtp", Path("/target.gguf")), "mtp"),
        (FoundDraft("ngram"), None),
        (FoundDraft(), None),
    ],
)
def test_a_head_must_be_better_than_the_one_it_replaces(
    draft: FoundDraft, current_draft: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--draft auto` takes a head before a model's own layer, so a poor head would slow it down."""
    asked = []
    monkeypatch.setattr(draft_resolver, "find_draft", lambda reference, found: asked.append(reference) or draft)
    found = find_target(EmbeddedModel(NATIVE), on_progress=lambda fraction, what: None)
    assert find_current_draft("none", found) == current_draft
    assert asked == ["auto"]


@pytest.mark.parametrize(("said", "wanted"), [(None, "1000"), ("5", "5")])
def test_threads_of_torch_soon_leave_a_busy_machine_its_cores(
    said: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", said or "")
    if said is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    assert choose_device("cpu") == "cpu"
    assert os.environ["GOMP_SPINCOUNT"] == wanted


@pytest.mark.parametrize(("start", "num_depths", "share"), [("none", 1, 1), ("auto", 1, 0.25), ("auto", 8, 1)])
def test_only_a_head_that_drafts_in_the_same_way_learns_slowly(start: str, num_depths: int, share: float) -> None:
    found = find_target(EmbeddedModel(NATIVE), on_progress=None)
    new = choose_recipe(find_head_source("none", found, num_depths=1), 1000)
    recipe = choose_recipe(find_head_source(start, found, num_depths=num_depths), 1000)
    assert recipe.muon_lr == share * new.muon_lr and recipe.adam_lr == share * new.adam_lr


@pytest.mark.parametrize(("length", "share"), [(0.0, 0.25), (1.1, 1), (1.5, 0.25)])
def test_a_head_that_has_learned_little_learns_on_as_fast_as_a_new_one(length: float, share: float) -> None:
    """A length of 0 was never measured: most imported heads have none."""
    found = find_target(EmbeddedModel(NATIVE), on_progress=None)
    source = find_head_source("auto", found, num_depths=1)
    assert source.start is not None
    header = source.start.header
    header = replace(header, metadata={**header.metadata, ACCEPTANCE_LENGTH_KEY: length})
    weak = replace(source, start=replace(source.start, header=header))
    assert choose_recipe(weak, 1000).muon_lr == share * choose_recipe(replace(source, start=None), 1000).muon_lr


@pytest.mark.parametrize("is_medusa", [False, True])
def test_a_run_that_learned_too_little_says_how_to_go_on(is_medusa: bool, tmp_path: Path) -> None:
    """From a copy of its head, or where such heads are not trained further, with the state of the run."""
    head, checkpoint = tmp_path / "head.gguf", tmp_path / "a.checkpoint"
    for file in (head, checkpoint):
        file.write_bytes(b"weights")
    options = SimpleNamespace(folder=tmp_path, source=SimpleNamespace(is_medusa=is_medusa))
    figures, training = TrialAcceptance(100, (7, 1), 300, 0.05), SimpleNamespace(checkpoint=checkpoint)
    error = keep_weak_head(head, options, figures, training, 3000)  # type: ignore[arg-type]
    assert error.message.startswith("7% of the new head's first tokens are accepted so far (100 drafts)")
    assert error.hint == ("--tokens 6000" if is_medusa else f"--from {tmp_path / WEAK} --tokens 6000")
    assert checkpoint.exists() is is_medusa
    assert is_medusa or (tmp_path / WEAK).read_bytes() == b"weights"


def test_a_weak_head_that_auto_passes_by_is_trained_further(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_target(EmbeddedModel(NATIVE), on_progress=None)
    own = find_head_source("auto", found, num_depths=1).start
    assert own is not None
    monkeypatch.setattr(draft_resolver, "find_draft", lambda start, found: FoundDraft(reason="no head is known"))
    assert find_head_source("auto", found, num_depths=1).start is None
    monkeypatch.setattr(head_store, "list_fitting_heads", lambda info: [SimpleNamespace(path=own.header.path)])
    start = find_head_source("auto", found, num_depths=1).start
    assert start is not None and start.name == own.name
    assert find_head_source("none", found, num_depths=1).start is None


def test_a_weak_head_is_nobodys_draft(tmp_path: Path) -> None:
    """What begins with it must be better than the draft that is used now, not than it."""
    found = find_target(EmbeddedModel(NATIVE), on_progress=None)
    assert find_current_draft(str(tmp_path / WEAK), found) == find_current_draft("auto", found)


def test_an_answer_follows_from_its_question_and_the_seed() -> None:
    one, other = (ChatRequest(id="", text=text) for text in ("one", "other"))
    seeds = [seed_request(request, seed).params.seed for request in (one, other) for seed in (1, 2)]
    assert len(set(seeds)) == 4 and None not in seeds
    assert seed_request(replace(one, id="again"), 1).params.seed == seeds[0]
    given = replace(one, params=SamplingParams(seed=5))
    assert seed_request(given, 1) is given
