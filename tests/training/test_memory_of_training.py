"""What training takes of memory, disk and time beside learning, and what it does when something there goes wrong."""

from __future__ import annotations

import math
import tracemalloc
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from doubles.random_models import HeadShape, TargetShape, write_head, write_target  # noqa: E402

from eaglelocal.core.plan import Plan  # noqa: E402
from eaglelocal.errors import EagleLocalError, ResourceError  # noqa: E402
from eaglelocal.gguf.draft_pairing import read_model  # noqa: E402
from eaglelocal.gguf.eagle_info import EagleInfo  # noqa: E402
from eaglelocal.gguf.reader import read_header  # noqa: E402
from eaglelocal.gguf.tensors import read_rows, read_tensor  # noqa: E402
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind  # noqa: E402
from eaglelocal.training import device, loop, trainer  # noqa: E402
from eaglelocal.training.batches import HeadBatch, Imitation, Unrolling  # noqa: E402
from eaglelocal.training.conversations import TrainingConversation  # noqa: E402
from eaglelocal.training.draft_head import HeadSource, choose_vocabulary, make_draft_head  # noqa: E402
from eaglelocal.training.loop import (  # noqa: E402
    Recipe,
    TrainingRun,
    accumulate_gradients,
    make_optimizers,
    orthogonalize,
    restore_checkpoint,
    save_checkpoint,
    train,
    update,
)
from eaglelocal.training.memory_check import MemoryNeed, check_disk, check_memory, estimate_need, token_bytes  # noqa: E402
from eaglelocal.training.progress import TrainingProgress  # noqa: E402
from eaglelocal.training.trainer import HeadTraining, TrainedHead, train_head  # noqa: E402

pytestmark = pytest.mark.full

GIB = 2**30
SHAPE = TargetShape(n_layer=5, n_embd=128, n_vocab=600)


# ---- steps
class Stretch:
    num_steps, step_tokens = 30, 1


class Line(torch.nn.Module):
    """The objective is its own module: the loss of a part is what lies on a line through its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.ones(2, 2))

    @property
    def trained(self) -> torch.nn.Module:
        return self

    def loss(self, part: torch.Tensor) -> torch.Tensor:
        return (self.matrix * part).sum()


def run_of(batches, tmp_path: Path, objective: Line | None = None) -> TrainingRun:
    recipe = Recipe(warmup_steps=1)
    return TrainingRun(objective or Line(), (Stretch(),), batches, tmp_path / "state", recipe, lambda done: None)


def take_step(
    run: TrainingRun, optimizers: list[torch.optim.Optimizer], parts: Iterable[torch.Tensor], done: int
) -> float:
    """The loss; NaN where nothing was learned."""
    loss = accumulate_gradients(run, parts)
    return loss if update(run, optimizers, done, loss) else math.nan


def test_parts_of_a_step_add_up(tmp_path: Path) -> None:
    parts = [torch.rand(2, 2) for _ in range(3)]
    moved = []
    for batch in (parts, [sum(parts)]):
        run = run_of(lambda stage, step: [], tmp_path)
        loss = take_step(run, make_optimizers(run.objective.trained, run.recipe), batch, 0)
        moved.append((loss, run.objective.matrix.detach()))
    assert moved[0][0] == pytest.approx(moved[1][0])
    torch.testing.assert_close(moved[0][1], moved[1][1])


def test_a_part_is_forgotten_before_the_next_is_made(tmp_path: Path) -> None:
    alive: list[bool] = []

    def parts() -> Iterator[torch.Tensor]:
        known = []
        for _ in range(3):
            alive.append(any(part() is not None for part in known))
            made = torch.rand(2, 2)
            known.append(weakref.ref(made))
            yield made
            del made

    run = run_of(lambda stage, step: [], tmp_path)
    take_step(run, make_optimizers(run.objective.trained, run.recipe), parts(), 0)
    assert alive == [False, False, False]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_with_a_nan_loss_changes_nothing(bad: float, tmp_path: Path) -> None:
    run = run_of(lambda stage, step: [], tmp_path)
    optimizers = make_optimizers(run.objective.trained, run.recipe)
    assert math.isnan(take_step(run, optimizers, [torch.ones(2, 2), torch.full((2, 2), bad)], 0))
    assert torch.equal(run.objective.matrix.detach(), torch.ones(2, 2))
    assert take_step(run, optimizers, [torch.ones(2, 2)], 1) == 4.0
    assert torch.isfinite(run.objective.matrix).all() and not torch.equal(run.objective.matrix, torch.ones(2, 2))


def test_one_bad_step_is_reported_and_many_end_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad_steps = {3}
    run = run_of(lambda stage, step: [torch.full((2, 2), math.nan if step in bad_steps else 1.0)], tmp_path)
    with TrainingProgress("test") as progress:
        train(run, progress)
        assert "step 4 is skipped" in capfd.readouterr().err
        run.checkpoint.unlink()
        bad_steps |= set(range(5, 30))
        with pytest.raises(EagleLocalError, match="20 steps in a row"):
            train(run, progress)


# ---- checkpoints
def test_a_checkpoint_is_read_once_and_into_main_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Line()
    optimizers = make_optimizers(module, Recipe())
    save_checkpoint(tmp_path / "state", module, optimizers, done=7)
    places, load = [], torch.load

    def recorded(path: Path, **options: object) -> object:
        places.append(options.get("map_location"))
        return load(path, **options)

    monkeypatch.setattr(loop.torch, "load", recorded)
    assert restore_checkpoint(tmp_path / "state", module, optimizers) == 7
    assert places == ["cpu"]


def test_a_checkpoint_that_cannot_be_written_is_a_plain_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    save_checkpoint(path, Line(), [], done=1)

    def full(state: object, partial: Path) -> None:
        partial.write_bytes(b"some")
        raise RuntimeError("PytorchStreamWriter failed writing file")

    monkeypatch.setattr(loop.torch, "save", full)
    with pytest.raises(ResourceError, match="cannot write"):
        save_checkpoint(path, Line(), [], done=2)
    assert [each.name for each in tmp_path.iterdir()] == ["state"] and restore_checkpoint(path, Line(), []) == 1


# ---- types
def test_bfloat16_is_for_processors_that_are_faster_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_cpu_has_tiles", lambda: False)
    assert device.fast_dtype("cpu") is torch.float32 and device.fast_dtype("mps") is torch.float32
    with device.autocast("cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    assert orthogonalize(torch.rand(1, 4, 4)).dtype is torch.float32
    monkeypatch.setattr(device, "_cpu_has_tiles", lambda: True)
    with device.autocast("cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16


@pytest.mark.parametrize(("capability", "kind"), [((7, 5), "float32"), ((8, 0), "bfloat16"), ((8, 9), "bfloat16")])
def test_bfloat16_is_for_cards_that_have_it(
    capability: tuple[int, int], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert device.fast_dtype("cuda") is getattr(torch, kind)


# ---- matrices from files
def test_decoding_takes_little_more_than_what_comes_out(tmp_path: Path) -> None:
    path = write_target(tmp_path / "t.gguf", TargetShape(n_vocab=8000, n_embd=256, type="Q4_0"))
    header = read_header(path)
    read_rows(header, "output.weight", [0])  # imports the decoder
    tracemalloc.start()
    values = read_tensor(header, "output.weight")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.6 * values.nbytes
    rows = [7999, 3, 3, 0]
    assert np.array_equal(read_rows(header, "output.weight", rows), values[rows])


def test_a_lent_output_never_is_float32_as_a_whole(source: HeadSource) -> None:
    words = choose_vocabulary(source, None)
    first = words.make_output()
    header = source.target.header
    assert first.dtype is torch.bfloat16
    assert torch.equal(first, torch.from_numpy(read_tensor(header, "output.weight")).bfloat16())
    own = choose_vocabulary(source, np.array([5, 17, 599])).make_output()
    assert own.dtype is torch.float32 and own.shape == (3, 128)


# ---- what fits
@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> HeadSource:
    header = read_header(write_target(tmp_path_factory.mktemp("target") / "t.gguf", SHAPE))
    return HeadSource(read_model(header))


@pytest.fixture(scope="module")
def going_on(source: HeadSource, tmp_path_factory: pytest.TempPathFactory) -> HeadSource:
    shape = HeadShape(draft_vocab=200, own_output=True, fc_norm=True, norm_output=True)
    header = read_header(write_head(tmp_path_factory.mktemp("head") / "h.gguf", shape, SHAPE))
    return HeadSource(source.target, EagleInfo.from_header(header))


@pytest.mark.parametrize("which", ["source", "going_on"])
def test_the_checkpoint_is_as_large_as_estimated(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source: HeadSource = request.getfixturevalue(which)
    need = estimate_need(source, Unrolling(), max_tokens=64, device="cpu")
    draft_head = make_draft_head(source, choose_vocabulary(source, None), max_context=64)
    optimizers = make_optimizers(draft_head, Recipe())
    for weight in draft_head.parameters():
        weight.grad = torch.ones_like(weight)
    for optimizer in optimizers:
        optimizer.step()
    save_checkpoint(tmp_path / "state", draft_head, optimizers, done=1)
    assert need.checkpoint_bytes < (tmp_path / "state").stat().st_size < 1.05 * need.checkpoint_bytes + 50_000


@pytest.mark.parametrize(("tokens", "chains"), [(200, 8), (1200, 96)])
def test_a_step_keeps_no_more_than_estimated(source: HeadSource, tokens: int, chains: int) -> None:
    plan = Unrolling(chains=chains)
    draft_head = make_draft_head(source, choose_vocabulary(source, None), max_context=tokens).move_to("cpu")
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        alive.append(tensor)
        return tensor

    alive: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), device.autocast("cpu"):
        Imitation(draft_head, plan).loss(made_up(tokens, tokens // 2))
    weights = sum(weight.untyped_storage().nbytes() for weight in draft_head.parameters())
    learned = sum(kept.values()) - weights
    need = estimate_need(source, plan, max_tokens=tokens, device="cpu")
    assert 0.15 * need.step_bytes < learned < need.step_bytes
    assert need.step_bytes > tokens * token_bytes(draft_head.head.shape, plan)


def made_up(tokens: int, answer: int) -> HeadBatch:
    return HeadBatch(
        embeddings=torch.randn(1, tokens, 128),
        taps=[torch.randn(1, tokens, 128) for _ in range(3)],
        target_tokens=torch.randint(0, 600, (1, answer, 64)),
        target_shares=torch.rand(1, answer, 64).softmax(-1),
        next_tokens=torch.zeros(1, answer, dtype=torch.int64),
        is_draftable=torch.ones(1, answer, dtype=torch.bool),
        starts=np.array([tokens - answer - 1]),
        lengths=np.array([answer]),
        seed=0,
    )


NEED = MemoryNeed(6 * GIB, 2 * GIB, GIB // 1024, 4 * GIB, 2048)
HELD = (Buffer("CUDA0", MemoryKind.WEIGHTS, 5 * GIB), Buffer(RAM, MemoryKind.WEIGHTS, GIB))


@pytest.mark.parametrize(
    ("device", "card", "ram", "missing"),
    [
        ("cuda", 14 * GIB, GIB, None),
        ("cuda", 12 * GIB, 64 * GIB, "8.0 GiB .* and 5.0 GiB for the target, but only 12.0 GiB can be used on CUDA0"),
        ("cuda", None, GIB, None),
        ("cpu", 0, 10 * GIB, None),
        ("cpu", 24 * GIB, 8 * GIB, "and 1.0 GiB for the target, but only 8.0 GiB can be used in RAM"),
        ("mps", 24 * GIB, 8 * GIB, "in RAM"),
    ],
)
def test_too_little_memory_is_reported_with_the_sum(
    device: str, card: int | None, ram: int, missing: str | None
) -> None:
    rooms = (FreeMemory(RAM, ram), FreeMemory("CUDA0", card))
    if missing is None:
        check_memory(NEED, HELD, rooms, device)
    else:
        with pytest.raises(ResourceError, match=missing) as raised:
            check_memory(NEED, HELD, rooms, device)
        assert "--ctx 768" in raised.value.hint
        assert ("--torch-device cpu" in raised.value.hint) == (device == "cuda")


def test_memory_that_a_gpu_shares_is_counted_once_for_both() -> None:
    rooms = (FreeMemory(RAM, 13 * GIB), FreeMemory("CUDA0", 13 * GIB, in_ram=True))
    with pytest.raises(ResourceError, match=r"and 6.0 GiB for the target"):
        check_memory(NEED, HELD, rooms, "cuda")
    check_memory(NEED, HELD, (FreeMemory(RAM, 15 * GIB), FreeMemory("CUDA0", 15 * GIB, in_ram=True)), "cuda")


def test_the_disk_holds_a_state_next_to_the_one_before(tmp_path: Path) -> None:
    check_disk(NEED, tmp_path, 8 * GIB)
    with pytest.raises(ResourceError, match=r"need 8.59 GB, but only 7.52 GB are free"):
        check_disk(NEED, tmp_path, 7 * GIB)


def test_torch_leaves_a_card_some_memory() -> None:
    assert trainer.gpu_memory_share(24 * GIB, 24 * GIB, 0) == pytest.approx(23.5 / 24)
    assert trainer.gpu_memory_share(GIB // 4, 24 * GIB, 6 * GIB) == pytest.approx(0.25)


# ---- whole trainings
def test_parts_of_a_step_are_bounded_and_together_the_step() -> None:
    together = conversations(6)
    for width in (1, 2**15, 2**16, 2**22):
        parts = [list(part) for part in trainer.split_step(together, width)]
        assert sorted(one.key for part in parts for one in part) == [one.key for one in together]
        for part in parts:
            numbers = len(part) * max(len(one.tokens) for one in part) * width
            assert len(part) == 1 or numbers <= trainer.MAX_PART_VALUES


def conversations(num: int, first: int = 0) -> tuple[TrainingConversation, ...]:
    rng = np.random.default_rng(first)
    return tuple(
        TrainingConversation(str(first + i), tuple(rng.integers(0, 599, 30 + 5 * i).tolist()), 10 + i)
        for i in range(num)
    )


def learned(source: HeadSource, folder: Path) -> TrainedHead:
    plan = Plan(target=source.target.header.path, target_label="t", n_ctx=256, threads=1)
    recipe = Recipe(warmup_steps=1)
    return train_head(
        HeadTraining(
            plan=plan,
            source=source,
            train_set=conversations(5),
            held_out=conversations(2, first=50),
            checkpoint=folder / "state.checkpoint",
            epochs=2,
            rows_per_step=2,
            recipe=recipe,
            device="cpu",
        )
    )


def test_a_training_run_with_a_wide_target_reads_one_conversation_at_a_time_and_can_be_repeated(
    source: HeadSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "MAX_PART_VALUES", 1)
    rows: list[int] = []
    loss = Imitation.loss

    def recorded(self: Imitation, batch: HeadBatch) -> torch.Tensor:
        rows.append(batch.embeddings.shape[0])
        return loss(self, batch)

    monkeypatch.setattr(Imitation, "loss", recorded)
    one, other = learned(source, tmp_path / "one"), learned(source, tmp_path / "other")
    assert rows == [1] * 20
    assert all(
        torch.equal(a, b) for a, b in zip(one.draft_head.parameters(), other.draft_head.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 17.9 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_memory_that_ends_is_a_plain_error(
    error: Exception, source: HeadSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Imitation, batch: HeadBatch) -> torch.Tensor:
        raise error

    monkeypatch.setattr(Imitation, "loss", full)
    with pytest.raises(ResourceError, match="needs more memory"):
        learned(source, tmp_path)


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_shares_weigh_losses_in_either_type(
    has_bfloat16: bool, source: HeadSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_cpu_has_tiles", lambda: has_bfloat16)
    draft_head = make_draft_head(source, choose_vocabulary(source, None), max_context=64).move_to("cpu")
    made_batch = made_up(40, 20)
    with device.autocast("cpu"):
        whole, quarter = (
            Imitation(draft_head, Unrolling()).loss(replace(made_batch, share=s)).item() for s in (1.0, 0.25)
        )
    assert quarter == pytest.approx(whole / 4)
