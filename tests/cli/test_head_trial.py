"""The trial of a head: each reading is loaded, the best one is stored in the file, and an unrelated head is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from doubles.eagle_checkpoints import Kind, random_checkpoint, write_checkpoint
from doubles.imported_heads import imported, understood
from doubles.medusa_checkpoints import VLLM, imported_medusa, random_medusa, understood_medusa, write_medusa
from doubles.p_eagle_checkpoints import FLAT, random_parallel_head, write_parallel_head
from doubles.random_models import TargetShape, write_target

from eaglelocal.cli import head_trial
from eaglelocal.cli.head_trial import NUM_TOKENS, HeadTrial, TrialOutcome, trial_lines
from eaglelocal.core.events import EngineSnapshot, Failed, Finished, RequestEvent, TextPiece, Tokens
from eaglelocal.core.request import ChatRequest, fixed_spec
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EngineError, IncompatibleError
from eaglelocal.gguf.eagle_info import ACCEPTANCE_LENGTH_KEY, EagleInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor

SHAPE = TargetShape(n_embd=128, n_layer=6, n_ff=128)
DRAFTS = 20  # of an answer
TOKENS = 60


@dataclass
class Truth:
    """What the head was trained for, and how often each draft is accepted if it is run so, or otherwise."""

    taps: tuple[int, ...] = (1, 2, 3)
    norm_output: bool = True
    right: tuple[int, ...] = (15, 11, 8, 6, 4)
    wrong_recurrence: tuple[int, ...] = (15, 4, 1, 0, 0)
    wrong_taps: tuple[int, ...] = (4, 1, 0, 0, 0)
    shuffled: tuple[int, ...] = (0, 0, 0, 0, 0)

    def accepted(self, head: EagleInfo, *, is_shuffled: bool) -> tuple[int, ...]:
        if is_shuffled:
            return self.shuffled
        if head.target_layers != self.taps:
            return self.wrong_taps
        return self.right if head.norm_output == self.norm_output else self.wrong_recurrence


@dataclass
class Engines:
    """Loads whatever the file says at that moment."""

    truth: Truth
    fails: bool = False
    opened: list[EagleInfo] = field(default_factory=list)
    asked: list[ChatRequest] = field(default_factory=list)
    num_open: int = 0
    first_fc: bytes = b""  # of the file at the first opening

    def open(self, path: Path) -> Engine:
        self.opened.append(EagleInfo.from_header(read_header(path)))
        self.num_open += 1
        fc = read_fc(path)
        self.first_fc = self.first_fc or fc
        return Engine(self, self.truth.accepted(self.opened[-1], is_shuffled=fc != self.first_fc))


def read_fc(path: Path) -> bytes:
    return read_tensor(read_header(path), "fc.weight").tobytes()


@dataclass
class Engine:
    engines: Engines
    accepted: tuple[int, ...]
    restarts: int = 0

    def stream(self, request: ChatRequest) -> Reply:
        self.engines.asked.append(request)
        return Reply(request.id, self.accepted, self.engines.fails)

    def snapshot(self) -> EngineSnapshot:
        raise NotImplementedError

    def close(self) -> None:
        self.engines.num_open -= 1


@dataclass
class Reply:
    id: str
    accepted: tuple[int, ...]
    fails: bool

    def cancel(self) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[RequestEvent]:
        yield Tokens(self.id, tuple(TextPiece(token % 20, "a", False) for token in range(TOKENS)))
        if self.fails:
            yield Failed(self.id, EngineError("the engine ended"))
        stats = SpeculationStats(drafts=DRAFTS, accepted_per_position=self.accepted)
        yield Finished(self.id, "length", "", 5, TOKENS, Timings(), stats)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target.gguf", SHAPE)


def tried(
    engines: Engines, target: Path, folder: Path, *, dialect: str = "SpecForge", says: bool = True
) -> TrialOutcome:
    head = replace(random_checkpoint(Kind()), norm_output=says)
    return tried_folder(engines, target, folder, write_checkpoint(folder / "published", head, dialect))


def tried_folder(engines: Engines, target: Path, folder: Path, published: Path) -> TrialOutcome:
    path = imported(published, target, folder / "head.gguf")
    trial = HeadTrial(
        path,
        understood(published, target),
        has_template=False,
        open_engine=engines.open,
        on_progress=lambda fraction, what: None,
    )
    return trial.run()


def recorded(folder: Path) -> tuple[tuple[int, ...], bool, float]:
    header = read_header(folder / "head.gguf")
    info, length = EagleInfo.from_header(header), header.metadata[ACCEPTANCE_LENGTH_KEY]
    assert isinstance(length, float)
    return info.target_layers, info.norm_output, length


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("is_post_norm", [True, False])
def test_the_recurrence_is_measured_not_believed(says: bool, is_post_norm: bool, target: Path, tmp_path: Path) -> None:
    engines = Engines(Truth(norm_output=is_post_norm))
    outcome = tried(engines, target, tmp_path, says=says)
    assert outcome.is_as_stated is (says is is_post_norm)
    assert recorded(tmp_path) == ((1, 2, 3), is_post_norm, pytest.approx(1 + sum(Truth().right) / DRAFTS))
    assert engines.num_open == 0


@pytest.mark.parametrize("dialect", ["SpecForge", "SafeAILab"])
@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_layer_ids_that_were_counted_otherwise_are_found(
    dialect: str, shift: int, target: Path, tmp_path: Path
) -> None:
    """SpecForge's ids are outputs, but not everybody's: one lower is tried too. Elsewhere one higher is."""
    taps = (1 + shift, 2 + shift, 3 + shift)
    possible = {"SpecForge": (-1, 0), "SafeAILab": (0, 1)}[dialect]
    truth = Truth(taps=taps)
    if shift not in possible:
        truth = replace(truth, wrong_taps=(0, 0, 0, 0, 0))
        with pytest.raises(IncompatibleError, match=r"0\.0% of its first drafted tokens are accepted"):
            tried(Engines(truth), target, tmp_path, dialect=dialect)
        return
    outcome = tried(Engines(truth), target, tmp_path, dialect=dialect)
    assert recorded(tmp_path)[:2] == (taps, True)
    assert outcome.is_as_stated is (shift == 0)


def test_all_readings_answer_the_same_prompts(target: Path, tmp_path: Path) -> None:
    engines = Engines(Truth())
    outcome = tried(engines, target, tmp_path)
    assert len(outcome.tried) == len(engines.opened) == 3
    rounds = [
        engines.asked[i : i + len(engines.asked) // 3] for i in range(0, len(engines.asked), len(engines.asked) // 3)
    ]
    texts = [[(request.id, request.text) for request in answers] for answers in rounds]
    assert texts[0] == texts[1] == texts[2]
    assert (len(texts[0]) - 1) * TOKENS < NUM_TOKENS <= len(texts[0]) * TOKENS
    assert all(request.params.temperature == 0 and request.spec == fixed_spec(5) for request in engines.asked)


def test_a_slow_machine_answers_fewer_prompts(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_trial, "PATIENCE_S", -1.0)
    engines = Engines(Truth())
    tried(engines, target, tmp_path)
    assert len(engines.asked) == 3


def test_a_parallel_head_is_not_tried_with_a_recurrence_that_it_has_not(target: Path, tmp_path: Path) -> None:
    """Both counts of its layer ids are tried, once each."""
    engines = Engines(Truth(taps=(2, 3, 4), norm_output=False))
    published = write_parallel_head(tmp_path / "published", random_parallel_head(Kind()), FLAT)
    outcome = tried_folder(engines, target, tmp_path, published)
    assert [each.target_layers for each in engines.opened] == [(1, 2, 3), (2, 3, 4)]
    assert not any(each.norm_output for each in engines.opened)
    assert not outcome.is_as_stated and not outcome.is_tie
    assert recorded(tmp_path) == ((2, 3, 4), False, pytest.approx(1 + sum(Truth().right) / DRAFTS))


def test_a_medusa_head_has_one_reading(target: Path, tmp_path: Path) -> None:
    opened, head = [], random_medusa(width=SHAPE.n_embd)
    published = write_medusa(tmp_path / "published", head, VLLM)
    path = imported_medusa(published, target, tmp_path / "head.gguf")

    def open_engine(at: Path) -> Engine:
        opened.append(at)
        return Engine(Engines(Truth()), Truth().right)

    trial = HeadTrial(
        path,
        understood_medusa(published, target),
        has_template=False,
        open_engine=open_engine,
        on_progress=lambda fraction, what: None,
    )
    outcome = trial.run()
    assert len(opened) == len(outcome.tried) == 1
    assert outcome.is_as_stated and not outcome.is_tie
    length = read_header(path).metadata[ACCEPTANCE_LENGTH_KEY]
    assert length == pytest.approx(outcome.best.figures.length)
    assert "verdict  it predicts this target" in trial_lines(outcome, path)


@pytest.mark.parametrize("shuffled", [(1, 0, 0, 0, 0), (2, 0, 0, 0, 0)])
def test_a_stranger_is_refused_with_the_figures(shuffled: tuple[int, ...], target: Path, tmp_path: Path) -> None:
    little = (1, 0, 0, 0, 0)
    engines = Engines(Truth(right=little, wrong_recurrence=little, wrong_taps=little, shuffled=shuffled))
    with pytest.raises(IncompatibleError) as raised:
        tried(engines, target, tmp_path)
    assert (
        f"5.0% of its first drafted tokens are accepted (340 drafts), and {shuffled[0] * 5}.0%" in raised.value.message
    )
    assert engines.num_open == 0


def test_a_weak_head_is_known_by_what_it_loses_without_its_states(target: Path, tmp_path: Path) -> None:
    """Fewer first tokens than are asked of a stranger, but more than with states in another order."""
    weak = (1, 1, 0, 0, 0)  # 5 % of first tokens
    engines = Engines(Truth(right=weak, wrong_recurrence=weak, wrong_taps=weak))
    outcome = tried(engines, target, tmp_path)
    assert not outcome.best.figures.is_clear
    assert outcome.shuffled is not None and outcome.shuffled.first == 0.0
    assert "weak: it is of this target" in " ".join(trial_lines(outcome, tmp_path / "head.gguf"))
    assert read_fc(tmp_path / "head.gguf") == engines.first_fc  # as it was
    assert recorded(tmp_path)[2] == pytest.approx(1.1)


def test_an_engine_that_fails_ends_the_trial(target: Path, tmp_path: Path) -> None:
    engines = Engines(Truth(), fails=True)
    with pytest.raises(EngineError, match="the engine ended"):
        tried(engines, target, tmp_path)
    assert engines.num_open == 0


def test_the_trial_is_reported_in_80_columns(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = tried(Engines(Truth(norm_output=False)), target, tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = trial_lines(outcome, Path("head.gguf"))
    assert max(map(len, lines)) <= 80
    assert [line.startswith("         *") for line in lines[1:4]] == [False, False, True]
    assert "different from its configuration" in " ".join(lines)
    assert trial_lines(None, Path("head.gguf"))[0] == "trial    none: its configuration is trusted"
