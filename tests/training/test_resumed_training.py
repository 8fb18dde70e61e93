"""A run that was stopped and resumed takes the steps of one that never was, and training learns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")

from eaglelocal.training.data import Batch, Pieces  # noqa: E402
from eaglelocal.training.head import Head, shape_beside  # noqa: E402
from eaglelocal.training.loop import Recipe, Run, load_weights, lr_share, optimizers_for, restore, save, train  # noqa: E402
from eaglelocal.training.loop import take_step as step_of  # noqa: E402
from eaglelocal.training.muon import orthogonalised  # noqa: E402
from eaglelocal.training.next_token import NextToken  # noqa: E402
from eaglelocal.training.progress import Progress  # noqa: E402
from eaglelocal.training.shards import Shards, ShardWriter, Stage, write_missing  # noqa: E402
from eaglelocal.training.target import Target, TargetShape  # noqa: E402
from eaglelocal.training.tokenizer import train_tokenizer  # noqa: E402
from eaglelocal.training.ttt import ChainPlan, TrainingTimeTest, draw_chains  # noqa: E402

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
STAGES = (Stage("short", 64, 64 * 4 * 6, tokens_per_step=256), Stage("long", 128, 128 * 2 * 4, tokens_per_step=256))
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


def small_target() -> Target:
    torch.manual_seed(0)
    return Target(TargetShape(vocab=300, width=64, num_layers=4, num_heads=2, num_kv_heads=1, head_size=32, ffn=96))


def run_of(target: Target, shards: Shards, checkpoint: Path) -> Run:
    objective = NextToken(target, compiled=False)
    recipe = Recipe(warmup_steps=2)
    return Run(objective, STAGES, shards.batch, checkpoint, recipe, lambda done: None)


def losses_of(run: Run, first: int, last: int, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    order = [(stage, step) for stage in STAGES for step in range(stage.num_steps)]
    return [step_of(run, optimizers, run.batches(*order[done]), done) for done in range(first, last)]


def test_a_resumed_run_repeats_the_losses_exactly(shards: Shards, tmp_path: Path) -> None:
    whole = run_of(small_target(), shards, tmp_path / "whole")
    expected = losses_of(whole, 0, NUM_STEPS, optimizers_for(whole.objective.trained, whole.recipe))

    first = run_of(small_target(), shards, tmp_path / "halves")
    optimizers = optimizers_for(first.objective.trained, first.recipe)
    losses = losses_of(first, 0, 4, optimizers)
    save(first.checkpoint, first.objective.trained, optimizers, done=4)

    torch.manual_seed(99)
    second = run_of(Target(small_target().shape), shards, tmp_path / "halves")
    optimizers = optimizers_for(second.objective.trained, second.recipe)
    assert restore(second.checkpoint, second.objective.trained, optimizers) == 4
    assert losses + losses_of(second, 4, NUM_STEPS, optimizers) == expected


def test_train_runs_all_stages_and_leaves_its_last_state(shards: Shards, tmp_path: Path) -> None:
    run = run_of(small_target(), shards, tmp_path / "state")
    with Progress("test") as progress:
        train(run, progress)
    again = small_target()
    assert load_weights(run.checkpoint, again) == run.num_steps == NUM_STEPS
    trained = run.objective.trained.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in again.state_dict().items())


def test_target_and_head_learn(shards: Shards, tmp_path: Path) -> None:
    target, recipe = small_target(), Recipe(warmup_steps=2)
    run = run_of(target, shards, tmp_path / "unused")
    losses = [loss for _ in range(8) for loss in losses_of(run, 0, 6, optimizers_for(target, recipe))]
    assert sum(losses[-6:]) < 0.5 * sum(losses[:6])

    objective = TrainingTimeTest(_head(target), target, ChainPlan(num_steps=4), compiled=False)
    run = Run(objective, STAGES, shards.batch, tmp_path / "unused", recipe, lambda done: None)
    before = [value.clone() for value in target.parameters()]
    losses = [loss for _ in range(8) for loss in losses_of(run, 0, 6, optimizers_for(objective.trained, recipe))]
    assert sum(losses[-6:]) < 0.7 * sum(losses[:6])
    assert all(torch.equal(now, then) for now, then in zip(target.parameters(), before, strict=True))


def _head(target: Target) -> Head:
    return Head(shape_beside(target.shape, taps=(0, 1, 2), num_heads=2, num_kv_heads=1, ffn=96))


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


def _states(head: Head, target: Target, row: torch.Tensor, anchors: list[int]) -> list[torch.Tensor]:
    _, taps = target.forward_with_taps(row, head.shape.taps)
    return head(target.embedding(row), head.fuse(taps), torch.tensor([anchors]), 4)


def test_chains_count_only_inside_one_answer(shards: Shards) -> None:
    batch: Batch = shards.batch(STAGES[0], 0)
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
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)).float())
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
