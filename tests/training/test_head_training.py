"""A head learns from its target's answers, and a resumed run ends exactly as an uninterrupted one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from doubles.eagle_files import head_source
from doubles.engine_harness import drive
from doubles.layered_heads import add_upper_layers
from doubles.random_models import HeadShape, write_head, write_target
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal.core.plan import Plan
from eaglelocal.core.request import OFF
from eaglelocal.errors import IncompatibleError, UsageError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.heads.head_store import write_head_file
from eaglelocal.training.conversations import TrainingConversation

torch = pytest.importorskip("torch")

from eaglelocal.training import draft_head, loop  # noqa: E402
from eaglelocal.training.batches import HeadBatch, Imitation, Unrolling  # noqa: E402
from eaglelocal.training.head_file import make_head_entries, make_head_tensors  # noqa: E402
from eaglelocal.training.loop import Recipe, TrainingRun, train  # noqa: E402
from eaglelocal.training.progress import TrainingProgress  # noqa: E402
from eaglelocal.training.trainer import HeadTraining, TrainedHead, fit_to_context, train_head  # noqa: E402

pytestmark = pytest.mark.full

SHAPE = replace(TINY, layer_gain=0.1)
QUESTIONS = [ask(str(number), [3, number, 7 * number % 290], max_tokens=24) for number in range(5, 45)]
RECIPE = Recipe(warmup_steps=5, checkpoint_every_s=-1.0)  # after every step
NUM_STEPS = 8  # of a short training


@dataclass(frozen=True)
class TrainingSetup:
    target: Path
    said: tuple[TrainingConversation, ...]

    def training(self, checkpoint: Path, *, epochs: int, head: Path | None = None) -> HeadTraining:
        undrafted = {"draft_kind": "none", "draft_label": "none", "spec": OFF}
        plan = Plan(target=self.target, target_label="random", n_ctx=64, threads=1, **undrafted)
        return HeadTraining(
            plan=plan,
            source=head_source(self.target, head),
            train_set=self.said[8:],
            held_out=self.said[:8],
            checkpoint=checkpoint,
            epochs=epochs,
            rows_per_step=8,
            recipe=RECIPE,
            device="cpu",
            unrolling=Unrolling(num_steps=3, chains=32),
        )


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """What is learned here is too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def training_setup(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    target = write_target(tmp_path_factory.mktemp("target") / "target.gguf", SHAPE)
    engine = real_engine(target, spec=OFF, num_slots=4)
    result = drive(engine, QUESTIONS)
    engine.close()
    said = (
        TrainingConversation(each.id, (*each.tokens, *result[each.id].tokens), len(each.tokens)) for each in QUESTIONS
    )
    return TrainingSetup(target, tuple(said))


def test_a_head_foresees_more_than_before(training_setup: TrainingSetup, tmp_path: Path) -> None:
    """Held out, and in the engine: from a new head, nothing is right before."""
    training = training_setup.training(tmp_path / "state", epochs=8)
    learned = train_head(training)
    assert learned.before.drafts == learned.after.drafts == 8 * 21
    assert learned.before.length < 1.2
    assert learned.after.length > learned.before.length + 0.5
    new = draft_head.make_draft_head(training.source, learned.vocabulary, max_context=64)
    accepted = [
        accepted_with(training_setup, replace(learned, draft_head=each), training, tmp_path / f"{number}.gguf")
        for number, each in enumerate((new, learned.draft_head))
    ]
    assert accepted[1] > accepted[0] + 50


@pytest.mark.parametrize(("begins_with", "least"), [("nothing", 0.5), ("a head with its own output", 0.1)])
def test_a_parallel_head_foresees_more_than_before(
    begins_with: str, least: float, training_setup: TrainingSetup, tmp_path: Path
) -> None:
    """All its tokens come from one pass; from an EAGLE head of half the tokens it has far to go."""
    training = parallel(training_setup.training(tmp_path / "state", epochs=8, head=head_of(begins_with, tmp_path)))
    learned = train_head(training)
    assert learned.after.length > learned.before.length + least
    assert learned.after.per_position[2] > 0
    shape = learned.draft_head.head.shape
    assert shape.mask is not None and not any(shape.mask in one.tokens for one in training.train_set)
    path = tmp_path / "head.gguf"
    assert accepted_with(training_setup, learned, training, path) > 100 * least
    info = EagleInfo.from_header(read_header(path))
    assert (info.method, info.mask, info.num_depths, info.norm_output) == ("P-EAGLE", shape.mask, 3, False)


def test_rounds_learn_on_and_a_stop_between_them_changes_nothing(
    training_setup: TrainingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second round gets the answers of the first too; the tokens of a new head are those of the first."""
    whole = replace(training_setup.training(tmp_path / "whole", epochs=2), round_ends=(16, 32), planned_steps=16)
    first, second = whole.stages()
    assert (first.num_steps, second.num_steps, whole.num_steps) == (4, 4, 8)
    assert (len(first.conversations), len(second.conversations), second.num_new) == (16, 32, 16)
    alone = replace(whole, checkpoint=tmp_path / "parts", train_set=whole.train_set[:16], round_ends=(16,))
    steps = counted(monkeypatch)
    train_head(alone)
    assert len(steps) == 4
    check_equal(train_head(replace(whole, checkpoint=tmp_path / "parts")), train_head(whole))
    assert len(steps) == 4 + 4 + 8


def test_kept_states_teach_as_those_read_again(training_setup: TrainingSetup, tmp_path: Path) -> None:
    """Up to the rounding of what is kept."""
    training = training_setup.training(tmp_path / "read", epochs=3)
    kept = replace(training, checkpoint=tmp_path / "kept", states=tmp_path)
    once, again = train_head(training), train_head(kept)
    assert len(list(tmp_path.glob("*.states"))) == len(QUESTIONS)
    assert again.after.length == pytest.approx(once.after.length, abs=0.05)


def test_a_head_of_several_layers_does_not_learn_on(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    small = write_head(tmp_path / "small.gguf", HeadShape(width=64, n_ff=64, num_depths=3), SHAPE)
    head = add_upper_layers(small, target, tmp_path / "head.gguf", num_layers=2)
    with pytest.raises(IncompatibleError, match="has 2 layers, and those of one are trained here") as raised:
        draft_head.choose_head_shape(head_source(target, head), max_context=64)
    assert raised.value.hint == "`--from none` trains a new one"


def test_a_parallel_head_learns_on(training_setup: TrainingSetup, tmp_path: Path) -> None:
    """It keeps its mask, and begins where it was."""
    training = parallel(training_setup.training(tmp_path / "state", epochs=2))
    first = train_head(training)
    accepted_with(training_setup, first, training, path := tmp_path / "head.gguf")
    again = train_head(parallel(training_setup.training(tmp_path / "again", epochs=1, head=path)))
    assert again.draft_head.head.shape.mask == first.draft_head.head.shape.mask
    assert again.before == first.after
    with pytest.raises(IncompatibleError, match="begins with a P-EAGLE head") as raised:
        train_head(training_setup.training(tmp_path / "eagle", epochs=1, head=path))
    assert raised.value.hint == "--kind p-eagle"


def test_a_medusa_head_foresees_more_than_before(training_setup: TrainingSetup, tmp_path: Path) -> None:
    """New, it says the root again, which this target often does too."""
    training = training_setup.training(tmp_path / "state", epochs=40)
    training = replace(training, source=replace(training.source, num_depths=3, is_medusa=True))
    learned = train_head(training)
    assert learned.after.length > learned.before.length + 0.3
    assert learned.after.per_position[1] > 0
    path = tmp_path / "head.gguf"
    assert accepted_with(training_setup, learned, training, path) > 50
    info = MedusaInfo.from_header(read_header(path))
    assert (info.method, info.num_parts, info.num_layers, info.target_layers) == ("Medusa", 3, 1, (5,))
    assert info.num_biases == 3 * 64 and not info.has_own_output


def test_a_medusa_head_over_fewer_tokens_has_an_output(training_setup: TrainingSetup, tmp_path: Path) -> None:
    training = replace(training_setup.training(tmp_path / "state", epochs=2), draft_vocab=128)
    source, unrolling = replace(training.source, num_depths=2, is_medusa=True), Unrolling(num_steps=2, chains=32)
    training = replace(training, source=source, unrolling=unrolling)
    accepted_with(training_setup, train_head(training), training, path := tmp_path / "head.gguf")
    info = MedusaInfo.from_header(read_header(path))
    assert (info.draft_vocab, info.has_own_output, info.has_own_outputs) == (128, True, False)


def parallel(training: HeadTraining) -> HeadTraining:
    return replace(training, source=replace(training.source, num_depths=3))


def accepted_with(training_setup: TrainingSetup, learned: TrainedHead, training: HeadTraining, path: Path) -> int:
    """Drafted tokens that the target took, in answers to what was held out."""
    entries = make_head_entries(learned.draft_head.head, training.source, name="head", kind="f32")
    with write_head_file(
        path,
        entries,
        make_head_tensors(learned.draft_head, learned.vocabulary, "f32"),
        on_progress=lambda fraction: None,
    ):
        pass
    engine = real_engine(training_setup.target, "eagle3", path, num_draft_tokens=3)
    result = drive(engine, QUESTIONS[:8])
    engine.close()
    finished = [one.finished for one in result.values()]
    return sum(one.speculation.accepted_tokens for one in finished if one)


@pytest.mark.parametrize("begins_with", ["nothing", "a head with its own output", "a head that lends its output"])
def test_a_resumed_training_equals_one_without_a_stop(
    begins_with: str, training_setup: TrainingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = head_of(begins_with, tmp_path)
    whole = train_head(training_setup.training(tmp_path / "whole", epochs=2, head=head))
    halves = training_setup.training(tmp_path / "halves", epochs=2, head=head)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        counted(patch, stop_at=NUM_STEPS // 2 + 1)
        train_head(halves)
    resumed = counted(monkeypatch)
    again = train_head(halves)
    assert len(resumed) == NUM_STEPS - NUM_STEPS // 2
    assert again.after == whole.after
    check_equal(again, whole)
    check_equal(train_head(halves), whole)  # it has ended: nothing is left to be done
    assert len(resumed) == NUM_STEPS - NUM_STEPS // 2


def head_of(begins_with: str, folder: Path) -> Path | None:
    if begins_with == "nothing":
        return None
    own = begins_with == "a head with its own output"
    shape = HeadShape(width=64, n_ff=64, own_output=own, draft_vocab=150 if own else None, fc_norm=True)
    return write_head(folder / "head.gguf", shape, SHAPE)


def check_equal(one: TrainedHead, other: TrainedHead) -> None:
    state, expected = one.draft_head.state_dict(), other.draft_head.state_dict()
    assert state.keys() == expected.keys()
    assert [name for name in state if not torch.equal(state[name], expected[name])] == []


def counted(patch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[int]:
    """The steps from now on, by the seeds of their batches."""
    steps, loss = list[int](), Imitation.loss

    def counting(self: Imitation, batch: HeadBatch) -> torch.Tensor:
        if len(steps) + 1 == stop_at:
            raise KeyboardInterrupt
        steps.append(batch.seed)
        return loss(self, batch)

    patch.setattr(Imitation, "loss", counting)
    return steps


# ---- what fits
def test_longer_conversations_lose_their_end(training_setup: TrainingSetup, tmp_path: Path) -> None:
    lengths = ((10, 40), (10, 80), (60, 4), (61, 9), (70, 9))
    train_set = tuple(TrainingConversation(f"{n} {m}", tuple(range(n + m)), n) for n, m in lengths)
    training = replace(training_setup.training(tmp_path / "state", epochs=1), train_set=train_set, held_out=train_set)
    fits = fit_to_context(training)
    assert [(one.num_prompt, one.num_answer_tokens) for one in fits.train_set] == [(10, 40), (10, 54), (60, 4)]
    assert fits.held_out == fits.train_set
    with pytest.raises(UsageError, match="within 64 tokens"):
        train_head(replace(training, train_set=train_set[3:]))


def test_a_study_whose_context_shrank(training_setup: TrainingSetup, tmp_path: Path) -> None:
    training = training_setup.training(tmp_path / "state", epochs=1)
    short = train_head(replace(training, plan=replace(training.plan, n_ctx=16)))
    assert short.after.drafts == 8 * (16 - 3 - 3)


# ---- the words of a new head


def test_a_new_head_says_what_was_said_most(
    training_setup: TrainingSetup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = replace(training_setup.training(tmp_path / "state", epochs=1), draft_vocab=60)
    words = train_head(training).vocabulary
    said = [token for one in training.train_set for token in one.tokens[one.num_prompt :]]
    counts = np.bincount(said, minlength=SHAPE.n_vocab)
    assert words.tokens is not None
    missed = np.setdiff1d(np.flatnonzero(counts), words.tokens)
    assert not len(missed) or counts[missed].max() <= counts[words.tokens].min()
    assert words.tokens.tolist() == sorted(set(words.tokens.tolist()))
    answers = [token for one in training.held_out for token in one.tokens[one.num_prompt :]]
    share = sum(token in set(words.tokens.tolist()) for token in answers) / len(answers)
    assert 0.2 < share < 1.0
    assert f"the head predicts 60 tokens: {share:.1%} of the held-out answers" in capsys.readouterr().err


# ---- examinations


class Clock:
    """Time passes only when the test advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def strftime(self, _format: str) -> str:
        return "now"


@dataclass(frozen=True)
class Stretch:
    num_steps: int = 200
    step_tokens: int = 1


class Nothing:
    """An objective that is there already."""

    def __init__(self) -> None:
        self.trained = torch.nn.Linear(2, 2)

    def loss(self, batch: Sequence[float]) -> torch.Tensor:
        return self.trained(torch.ones(2)).sum()


@pytest.mark.parametrize(("milestone_s", "expected"), [(0.0, 5), (3.0, 5), (100.0, 1)])
def test_examinations_take_a_small_part_of_the_time(
    milestone_s: float, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = Clock(), list[int]()
    monkeypatch.setattr(loop, "time", clock)

    def step(stage: Stretch, number: int) -> Sequence[float]:
        clock.now += 1.0
        return ()

    def milestone(done: int) -> None:
        clock.now += milestone_s
        seen.append(done)

    recipe = Recipe(milestone_every_s=39.0, checkpoint_every_s=1e9)
    with TrainingProgress("test") as progress:
        train(TrainingRun(Nothing(), (Stretch(),), step, tmp_path / "state", recipe, milestone), progress)
    assert len(seen) == expected
