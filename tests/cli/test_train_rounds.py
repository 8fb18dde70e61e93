"""A run of `eaglelocal train` in several rounds, in this process: what is stopped in any of them goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from eaglelocal.cli import train as train_command
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import label_text, standard_output
from eaglelocal.cli.train import run_training
from eaglelocal.cli.train_options import TrainFlags, TrainOptions, TrainQuestions, load_questions, resolve_options
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import UsageError
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.training import gathering, rounds, trainer
from eaglelocal.training.training_folder import ANSWERS, TARGET

pytestmark = pytest.mark.full

TOKENS = 3000  # in rounds of 1000, 1000 and 1000


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainOptions:
    monkeypatch.setattr(rounds, "FIRST_ROUND", 1000)
    monkeypatch.setattr(rounds, "LONGEST_ROUND", 1000)
    monkeypatch.setattr(gathering, "MAX_USELESS", 0)  # given questions alone: the demo model's own are long nonsense
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    target = shutil.copy(demo_sources()[0], tmp_path / "guide.gguf")
    settings = load_settings({"target": str(target), "ctx": 256, "threads": 1, "parallel": 4})
    given = TrainFlags(start="none", work=str(tmp_path / "work"), out=str(tmp_path / "head.gguf"))
    return resolve_options(settings, standard_output(colour="never"), "cpu", given)


def ask(options: TrainOptions) -> TrainQuestions:
    params = SamplingParams(temperature=0.7, max_tokens=60)
    return load_questions(None, params, has_template=options.found.info.chat_template is not None, least=40)


def train(options: TrainOptions) -> train_command.TrainResult:
    return run_training(options, ask(options), tokens=TOKENS, epochs=2, seed=1)


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str, *, stop_at: int | None = None) -> list[tuple[object, ...]]:
    """Record the calls of a function of the command, and stop the run instead of one of them."""
    called: list[tuple[object, ...]] = []
    function: Callable[..., object] = getattr(train_command, name)

    def recorded(*args: object, **named: object) -> object:
        called.append((*args, named))
        if len(called) == stop_at:
            raise KeyboardInterrupt
        return function(*args, **named)

    monkeypatch.setattr(train_command, name, recorded)
    return called


def keys(options: TrainOptions) -> list[str]:
    return [json.loads(line)["key"] for line in (options.folder / ANSWERS).read_text().split("\n") if line]


def test_rounds_follow_each_other_and_leave_only_answers(
    options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected, trained = count_calls(monkeypatch, "collect_answers"), count_calls(monkeypatch, "train_round")
    told, describe = list[str](), train_command.describe_round
    monkeypatch.setattr(train_command, "describe_round", lambda curve: told.append(describe(curve)) or told[-1])
    result = train(options)
    assert [call[-1]["max_answer_tokens"] for call in collected] == [1000, 2000, 3000]
    drafts = [Path(call[-1]["draft"]).name for call in collected]
    assert drafts == ["auto", "moment.gguf", "moment.gguf"]
    assert [share for _, share, *_ in trained] == pytest.approx([0.35, 0.7, 1.0], abs=0.05)
    assert result.is_kept and result.held_out_after.length > result.held_out_before.length
    assert len(set(keys(options))) == len(keys(options))
    assert sorted(path.name for path in options.folder.iterdir()) == [ANSWERS, TARGET]
    assert ["; as long again: about" in each for each in told] == [False, True]
    assert all("acceptance length" in each for each in told)
    assert all(len(line) <= 80 for each in told for line in label_text("round", each))


@pytest.mark.parametrize(
    ("name", "stop_at"), [("collect_answers", 2), ("train_round", 2), ("write_head", 1), ("try_draft", 1)]
)
def test_a_run_that_is_stopped_goes_on(
    name: str, stop_at: int, options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        count_calls(patch, name, stop_at=stop_at)
        train(options)
    before = keys(options)
    steps = []
    update = trainer.Imitation.loss
    monkeypatch.setattr(trainer.Imitation, "loss", lambda self, batch: steps.append(batch) or update(self, batch))
    trained = count_calls(monkeypatch, "train_round")
    assert train(options).is_kept
    assert keys(options)[: len(before)] == before
    assert len(trained) == {"collect_answers": 2, "train_round": 2, "write_head": 2, "try_draft": 1}[name]
    assert bool(steps) == (name != "try_draft")


def test_a_curve_without_its_checkpoint_is_forgotten(options: TrainOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        count_calls(patch, "train_round", stop_at=2)
        train(options)
    (checkpoint,) = options.folder.glob("*.checkpoint")
    assert checkpoint.with_suffix(".curve").exists()
    checkpoint.unlink()
    trained = count_calls(monkeypatch, "train_round")
    train(options)
    assert len(trained) == 3


def test_a_flat_curve_ends_with_the_next_round(options: TrainOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds.LearningCurve, "is_flat", property(lambda curve: len(curve.points) == 1))
    trained = count_calls(monkeypatch, "train_round")
    train(options)
    assert [share for _, share, *_ in trained] == pytest.approx([0.35, 1.0], abs=0.05)


def test_without_a_head_of_its_own_the_current_draft_goes_on(
    options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of a minute drafts worse than one that is used."""
    collected = count_calls(monkeypatch, "collect_answers")
    with pytest.raises(UsageError), monkeypatch.context() as patch:
        patch.setattr(train_command, "keep_if_better", lambda *_: (_ for _ in ()).throw(UsageError("enough")))
        train(replace(options, current_draft="mtp"))
    assert [call[-1]["draft"] for call in collected] == ["auto"] * 3
