"""A run that was stopped and resumed takes the steps of one that never was, and training learns."""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")

from guide.build import make_embedded_head_shape  # noqa: E402
from guide.document_packing import PackedBatch, Pieces  # noqa: E402
from guide.head_objective import ChainPlan, TrainingTimeTest, draw_chains  # noqa: E402
from guide.llama_target import LlamaTarget, TargetShape  # noqa: E402
from guide.next_token import NextToken  # noqa: E402
from guide.token_shards import Shards, ShardWriter, Stage, write_missing  # noqa: E402
from guide.tokenizer import train_tokenizer  # noqa: E402

from eaglelocal.errors import ResourceError  # noqa: E402
from eaglelocal.training import loop  # noqa: E402
from eaglelocal.training.eagle_head import EagleHead  # noqa: E402
from eaglelocal.training.loop import (  # noqa: E402
    Recipe,
    TrainingRun,
    accumulate_gradients,
    lr_share,
    make_optimizers,
    orthogonalize,
    restore_checkpoint,
    save_checkpoint,
    train,
    update,
)
from eaglelocal.training.progress import TrainingProgress  # noqa: E402

pytestmark = pytest.mark.full

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
STAGES = (
    Stage("short", 64, 64 * 4 * 6, tokens_per_step=256),
    Stage("long", 128, 128 * 2 * 4, tokens_per_step=256),
)
NUM_STEPS = 10


def counting(seed: int) -> Iterator[Pieces]:
    """Answers that follow from the question: the three words after the one that was asked for."""
    rng = Random(seed)
    for _ in range(200):
        at = rng.randrange(len(WORDS))
        answer = " ".join(WORDS[(at + i) % len(WORDS)] for i in (1, 2, 3))
        yield [
            (f"<|im_start|>user\n{WORDS[at]}<|im_end|>\n<|im_start|>assistant\n", False),
            (f"{answer}<|im_end|>", True),
        ]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("rows")
    texts = ("".join(text for text, _ in pieces) for pieces in counting(0))
    train_tokenizer(islice(texts, 50), 300).save(folder / "tokenizer.json")
    made = Shards(folder / "rows", STAGES, seed=2)
    write_missing(made, folder / "tokenizer.json", counting)
    return made


def small_target() -> LlamaTarget:
    torch.manual_seed(0)
    return LlamaTarget(
        TargetShape(vocab=300, width=64, num_layers=4, num_heads=2, num_kv_heads=1, head_size=32, ffn=96)
    )


def whole_steps(shards: Shards) -> Callable[[Stage, int], tuple[PackedBatch]]:
    """Each step in one part."""
    return lambda stage, step: (shards.batch(stage, step),)


def run_of(target: LlamaTarget, shards: Shards, checkpoint: Path) -> TrainingRun:
    objective = NextToken(target, compiled=False)
    recipe = Recipe(warmup_steps=2)
    return TrainingRun(objective, STAGES, whole_steps(shards), checkpoint, recipe, lambda done: None)


def losses_of(run: TrainingRun, first: int, last: int, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    order = [(stage, step) for stage in STAGES for step in range(stage.num_steps)]
    losses = []
    for done in range(first, last):
        losses.append(accumulate_gradients(run, run.batches(*order[done])))
        update(run, optimizers, done, losses[-1])
    return losses


def test_a_resumed_run_repeats_the_losses_exactly(shards: Shards, tmp_path: Path) -> None:
    whole = run_of(small_target(), shards, tmp_path / "whole")
    expected = losses_of(whole, 0, NUM_STEPS, make_optimizers(whole.objective.trained, whole.recipe))

    first = run_of(small_target(), shards, tmp_path / "halves")
    optimizers = make_optimizers(first.objective.trained, first.recipe)
    losses = losses_of(first, 0, 4, optimizers)
    save_checkpoint(first.checkpoint, first.objective.trained, optimizers, done=4)

    torch.manual_seed(99)
    second = run_of(LlamaTarget(small_target().shape), shards, tmp_path / "halves")
    optimizers = make_optimizers(second.objective.trained, second.recipe)
    assert restore_checkpoint(second.checkpoint, second.objective.trained, optimizers) == 4
    assert losses + losses_of(second, 4, NUM_STEPS, optimizers) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("place", ["reading", "update", "milestone"])
def test_training_stopped_anywhere_loses_and_repeats_no_step(
    number: int, place: str, shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(small_target(), shards, tmp_path / "state")
    whole = [value.clone() for value in trained_by(replace(run, checkpoint=tmp_path / "whole"))]
    taken: list[int] = []

    def stop_at_4(step: int) -> None:
        if len(taken) == 4 and stops:
            stops.pop()
            os.kill(os.getpid(), number)

    def reading(stage: Stage, step: int) -> tuple[PackedBatch]:
        stop_at_4(step)
        return (shards.batch(stage, step),)

    def updating(run: TrainingRun, optimizers: list[torch.optim.Optimizer], done: int, loss: float) -> bool:
        taken.append(done)
        is_sound = update(run, optimizers, done, loss)
        if place == "update":
            stop_at_4(done)
        return is_sound

    handlers = {signal.SIGTERM: _end, signal.SIGHUP: _end, signal.SIGINT: signal.default_int_handler}  # perhaps ignored
    handled = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    monkeypatch.setattr(loop, "update", updating)
    stops = [True]
    recipe = replace(run.recipe, milestone_every_s=0.0)
    run = replace(
        run,
        objective=NextToken(small_target(), compiled=False),
        batches=reading if place == "reading" else whole_steps(shards),
        recipe=recipe,
        on_milestone=stop_at_4 if place == "milestone" else lambda done: None,
    )
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            trained_by(run)
        parts = trained_by(replace(run, objective=NextToken(small_target(), compiled=False)))
    finally:
        for known, handler in handled.items():
            signal.signal(known, handler)
    assert taken == list(range(NUM_STEPS))
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "whole"]


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def trained_by(run: TrainingRun) -> list[torch.Tensor]:
    with TrainingProgress("test") as progress:
        train(run, progress)
    return list(run.objective.trained.parameters())


def cut(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


@pytest.mark.parametrize("damage", [cut, lambda whole: b"", lambda whole: b"PK" + whole[:99]])
def test_a_damaged_checkpoint_is_reported(damage: Callable[[bytes], bytes], shards: Shards, tmp_path: Path) -> None:
    run = run_of(small_target(), shards, tmp_path / "state")
    save_checkpoint(run.checkpoint, run.objective.trained, make_optimizers(run.objective.trained, run.recipe), done=4)
    run.checkpoint.write_bytes(damage(run.checkpoint.read_bytes()))
    with pytest.raises(ResourceError, match="it is damaged") as raised:
        trained_by(run)
    assert f"rm {run.checkpoint}" in raised.value.hint


def test_the_checkpoint_of_another_head_is_reported(shards: Shards, tmp_path: Path) -> None:
    other = LlamaTarget(
        TargetShape(vocab=300, width=32, num_layers=4, num_heads=1, num_kv_heads=1, head_size=32, ffn=96)
    )
    save_checkpoint(tmp_path / "state", other, make_optimizers(other, Recipe()), done=4)
    with pytest.raises(ResourceError, match="it is damaged"):
        trained_by(run_of(small_target(), shards, tmp_path / "state"))


def test_where_the_disk_is_full_the_checkpoint_before_stays(shards: Shards, tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk."""
    run = run_of(small_target(), shards, tmp_path / "state")
    optimizers = make_optimizers(run.objective.trained, run.recipe)
    save_checkpoint(run.checkpoint, run.objective.trained, optimizers, done=4)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(ResourceError, match="cannot write"):
            save_checkpoint(run.checkpoint, run.objective.trained, optimizers, done=5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert restore_checkpoint(run.checkpoint, run.objective.trained, optimizers) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_train_runs_all_stages_and_leaves_its_last_state(shards: Shards, tmp_path: Path) -> None:
    run = run_of(small_target(), shards, tmp_path / "state")
    with TrainingProgress("test") as progress:
        train(run, progress)
    again = small_target()
    assert restore_checkpoint(run.checkpoint, again, make_optimizers(again, run.recipe)) == run.num_steps == NUM_STEPS
    trained = run.objective.trained.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in again.state_dict().items())


def test_target_and_head_learn(shards: Shards, tmp_path: Path) -> None:
    target, recipe = small_target(), Recipe(warmup_steps=2)
    run = run_of(target, shards, tmp_path / "unused")
    losses = [loss for _ in range(8) for loss in losses_of(run, 0, 6, make_optimizers(target, recipe))]
    assert sum(losses[-6:]) < 0.5 * sum(losses[:6])

    objective = TrainingTimeTest(_head(target), target, ChainPlan(num_steps=4), compiled=False)
    run = TrainingRun(objective, STAGES, whole_steps(shards), tmp_path / "unused", recipe, lambda done: None)
    before = [value.clone() for value in target.parameters()]
    losses = [loss for _ in range(8) for loss in losses_of(run, 0, 6, make_optimizers(objective.trained, recipe))]
    assert sum(losses[-6:]) < 0.7 * sum(losses[:6])
    assert all(torch.equal(now, then) for now, then in zip(target.parameters(), before, strict=True))


def _head(target: LlamaTarget) -> EagleHead:
    return EagleHead(make_embedded_head_shape(target.shape, taps=(0, 1, 2), num_heads=2, num_kv_heads=1, ffn=96))


def test_a_chain_step_is_what_a_plain_forward_over_the_same_cells_gives(shards: Shards) -> None:
    """Unrolling all anchors at once equals unrolling each alone over a row cut after its chain."""
    target = small_target()
    head = _head(target)
    batch = shards.batch(STAGES[0], 0)
    row = torch.from_numpy(batch.tokens[:1])
    with torch.no_grad():
        together = _states(head, target, row, [10, 20, 30])
        for index, anchor in enumerate((10, 20, 30)):
            alone = _states(head, target, row[:, : anchor + 6], [anchor])
            for step in range(4):
                assert torch.allclose(together[step][0, index], alone[step][0, 0], atol=1e-5)


def _states(head: EagleHead, target: LlamaTarget, row: torch.Tensor, anchors: list[int]) -> list[torch.Tensor]:
    _, taps = target.forward_with_taps(row, head.shape.taps)
    return head(target.embedding(row), head.fuse(taps), torch.tensor([anchors]), 4)


def test_chains_count_only_inside_one_answer(shards: Shards) -> None:
    batch: PackedBatch = shards.batch(STAGES[0], 0)
    chains = draw_chains(batch, ChainPlan(num_steps=4))
    is_answer = torch.zeros(batch.tokens.size, dtype=torch.bool)
    is_answer[torch.from_numpy(batch.scored[batch.is_assistant] + 1)] = True
    is_answer = is_answer.reshape(batch.tokens.shape)
    assert chains.counts[0].sum() > 0
    for step, row, chain in chains.counts.nonzero().tolist():
        first = int(chains.anchors[row, chain]) + 1
        assert is_answer[row, first : first + step + 2].all()


def test_the_learning_rate_rises_stays_and_falls() -> None:
    recipe = Recipe(warmup_steps=10, decay_share=0.5, final_lr_share=0.02)
    shares = [lr_share(done, 100, recipe) for done in range(101)]
    assert shares[0] == 0.1
    assert shares[10:50] == [1.0] * 40
    assert math.isclose(shares[75], 0.5)
    assert shares[100] == 0.02


def test_orthogonalised_updates_have_singular_values_near_one() -> None:
    torch.manual_seed(1)
    for shape in ((3, 64, 32), (2, 32, 96)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)).float())
        assert values.min() > 0.3
        assert values.max() < 1.6


def test_the_background_writer_writes_what_the_direct_one_does(shards: Shards, tmp_path: Path) -> None:
    elsewhere = Shards(tmp_path / "rows", STAGES[:1], seed=2)
    writer = ShardWriter(elsewhere, shards.folder.parent / "tokenizer.json", counting)
    try:
        writer.wait_for(STAGES[0], 0)
    finally:
        writer.close()
    assert (elsewhere.batch(STAGES[0], 3).tokens == shards.batch(STAGES[0], 3).tokens).all()
