"""The training loop of target and head: stages, learning rate, clipping, checkpoints and exact resume.

It handles steps, optimizers and time; an Objective computes the loss and a Batches gives the data. A resumed run takes
the same steps as one that was never stopped.
"""

from __future__ import annotations

import math
import pickle
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from eaglelocal.core.atomic_file import PRIVATE, flush_and_rename, make_folder
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, ResourceError
from eaglelocal.training.device import autocast, fast_dtype
from eaglelocal.training.progress import TrainingProgress

MAX_SKIPPED = 20  # consecutive steps; then training fails
SCORES = ("q.weight", "k.weight")  # matrices that make attention scores
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
MAX_BYTES_S = 20e6  # of checkpoints, on average: a large head's would wear out a disk
MILESTONE_REST = 10  # the pause after a milestone is at least this many times as long as it took


class Objective(Protocol):
    """A loss, and the module that it trains."""

    @property
    def trained(self) -> nn.Module: ...

    def loss(self, batch: Any) -> Tensor: ...


class Stage(Protocol):
    """A stage of training: steps of one kind."""

    @property
    def num_steps(self) -> int: ...
    @property
    def step_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """The hyperparameters of a run."""

    muon_lr: float = 0.02
    muon_weight_decay: float = 0.1
    adam_lr: float = 3e-3
    attention_lr: float = 1.5e-3  # AdamW's, for query and key matrices
    warmup_steps: int = 100
    decay_share: float = 0.5  # of all steps, at the end, linearly down to final_lr_share
    final_lr_share: float = 0.02
    max_gradient_norm: float = 1.0
    checkpoint_every_s: float = 60.0
    milestone_every_s: float = 300.0


def scale_recipe(width: int, num_steps: int, *, scale: float, decay_share: float) -> Recipe:
    """Return the learning rates for a target of this width: a new head's times `scale`."""
    width_factor = min(1.0, 256 / width)  # AdamW's steps, unlike Muon's, do not shrink with a matrix's width
    return Recipe(
        muon_lr=0.02 * scale,
        adam_lr=3e-3 * scale * max(width_factor, 0.1),
        attention_lr=1.5e-3 * scale * width_factor,
        warmup_steps=max(1, min(100, num_steps // 10)),
        decay_share=decay_share,
    )


@dataclass(frozen=True)
class TrainingRun:
    """A training run: its objective, its data, its checkpoint, and a callback for milestones.

    batches  of a step of a stage: the losses of these parts add up, and each is freed before the next is made
    """

    objective: Objective
    stages: tuple[Stage, ...]
    batches: Callable[[Any, int], Iterable[Any]]
    checkpoint: Path
    recipe: Recipe
    on_milestone: Callable[[int], None]  # called with the steps done, every milestone_every_s, rarer if it takes long
    device: str = "cpu"  # torch's device type
    planned_steps: int | None = None  # by which the learning rate decays; None: those of the stages

    @property
    def num_steps(self) -> int:
        return sum(stage.num_steps for stage in self.stages)


def train(run: TrainingRun, progress: TrainingProgress) -> None:
    """Train from the checkpoint, if there is one, to the end; the last checkpoint stays.

    If it is stopped (KeyboardInterrupt, SystemExit), it saves all steps that were taken. Raises ResourceError where
    checkpoints cannot be written or read.
    """
    optimizers = make_optimizers(run.objective.trained, run.recipe)
    done = restored = restore_checkpoint(run.checkpoint, run.objective.trained, optimizers)
    progress.begin(done, run.num_steps)
    saved_at = milestone_at = time.monotonic()
    pause_s, save_pause_s, num_skipped = run.recipe.milestone_every_s, run.recipe.checkpoint_every_s, 0
    try:
        every = ((stage, step) for stage in run.stages for step in range(stage.num_steps))
        for stage, step in islice(every, done, None):
            loss = accumulate_gradients(run, run.batches(stage, step))
            with delay_signals():
                is_sound = update(run, optimizers, done, loss)
                done += 1
            num_skipped = 0 if is_sound else num_skipped + 1
            if num_skipped:
                report_skipped(done, loss, num_skipped, progress)
                continue
            progress.advance(done, stage.step_tokens, loss)
            now = time.monotonic()
            if now - saved_at > save_pause_s:
                size_bytes = save_checkpoint(run.checkpoint, run.objective.trained, optimizers, done=done)
                saved_at, save_pause_s = now, max(run.recipe.checkpoint_every_s, size_bytes / MAX_BYTES_S)
            if now - milestone_at > pause_s:
                run.on_milestone(done)
                milestone_at = time.monotonic()
                pause_s = max(run.recipe.milestone_every_s, MILESTONE_REST * (milestone_at - now))
        save_checkpoint(run.checkpoint, run.objective.trained, optimizers, done=done)
    except (KeyboardInterrupt, SystemExit):
        if done > restored:
            save_checkpoint(run.checkpoint, run.objective.trained, optimizers, done=done)
        raise


def report_skipped(done: int, loss: float, num_skipped: int, progress: TrainingProgress) -> None:
    progress.note(f"step {done} is skipped: its loss is {loss}")
    if num_skipped >= MAX_SKIPPED:
        hint = "the same command resumes before them; --torch-device cpu, if the GPU is at fault"
        raise EagleLocalError(f"the loss of {num_skipped} steps in a row is not a number", hint=hint)


def accumulate_gradients(run: TrainingRun, parts: Iterable[Any]) -> float:
    """Return the loss of a whole step, and accumulate its gradients."""
    return sum(map(partial(_backpropagate, run), parts))  # a loop's variable would keep a part while the next is made


def _backpropagate(run: TrainingRun, part: Any) -> float:
    with autocast(run.device):
        loss = run.objective.loss(part)
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def update(run: TrainingRun, optimizers: list[torch.optim.Optimizer], done: int, loss: float) -> bool:
    """Apply the gradients and clear them. Returns False, and changes no weight, if they or the loss are not finite."""
    norm = nn.utils.clip_grad_norm_(run.objective.trained.parameters(), run.recipe.max_gradient_norm)
    is_sound = math.isfinite(loss) and math.isfinite(float(norm))
    share = lr_share(done, run.planned_steps or run.num_steps, run.recipe)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = share * group["peak_lr"]
        if is_sound:
            optimizer.step()
        optimizer.zero_grad()
    return is_sound


@contextmanager
def delay_signals() -> Iterator[None]:
    """Delay signals that would stop the process until the block ends: half an update could not be resumed."""
    pending: list[int] = []
    before = {number: signal.getsignal(number) for number in STOPPING}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
    if pending:
        handled[signal.Signals(pending[0])](pending[0], None)


def lr_share(done: int, num_steps: int, recipe: Recipe) -> float:
    """Return the share of the peak learning rate after `done` of num_steps: warm-up, plateau, linear decay."""
    warmup = min(1.0, (done + 1) / recipe.warmup_steps)
    left = (num_steps - done) / max(1.0, recipe.decay_share * num_steps)
    return min(warmup, 1.0, max(recipe.final_lr_share, left))


def make_optimizers(module: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside layers, AdamW for embeddings, norm gains, queries and keys.

    Muon on queries and keys makes attention logits explode where the architecture has no norm on them (llama has
    none): the softmax saturates, and no head learns to copy.
    """
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    scores = [p for name, p in named if name.endswith(SCORES)]
    matrices = [p for name, p in named if uses_muon(name, p)]
    rest = [p for name, p in named if not (name.endswith(SCORES) or uses_muon(name, p))]
    groups = [{"params": rest, "lr": recipe.adam_lr}, {"params": scores, "lr": recipe.attention_lr}]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    muon = Muon(matrices, lr=recipe.muon_lr, weight_decay=recipe.muon_weight_decay)
    optimizers: list[torch.optim.Optimizer] = [muon, adam]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group.setdefault("peak_lr", group["lr"])
    return optimizers


def uses_muon(name: str, weight: nn.Parameter) -> bool:
    is_table = "embedding" in name or name == "output"
    return weight.ndim == 2 and not is_table and not name.endswith(SCORES)


def save_checkpoint(path: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer], *, done: int) -> int:
    """Write a checkpoint, and return its bytes. Raises ResourceError if that fails; the previous one then remains."""
    state = {"done": done, "module": module.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
    state["rng"] = torch.get_rng_state()
    partial = path.with_suffix(".partial")
    try:
        make_folder(path.parent, PRIVATE)
        torch.save(state, partial)
        flush_and_rename(partial, path)
        return path.stat().st_size
    except (OSError, RuntimeError) as error:  # torch's writer reports a full disk as a RuntimeError
        reason = (isinstance(error, OSError) and error.strerror) or "the disk is full, or was removed"
        hint = "free some space; the same command then resumes"
        raise ResourceError(f"cannot write {path}: {reason}", hint=hint) from error
    finally:
        partial.unlink(missing_ok=True)


def restore_checkpoint(path: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer]) -> int:
    """Load the checkpoint if there is one. Return the number of steps done."""
    if not path.is_file():
        return 0
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(state["module"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["rng"])
        return int(state["done"])
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, EOFError, pickle.UnpicklingError) as error:
        hint = f"rm {path}: training starts over, with the answers that it has"
        raise ResourceError(f"cannot resume from {path}: it is damaged", hint=hint) from error


# ---- muon: the Muon optimizer: momentum whose matrix updates are made near-orthogonal by a Newton-Schulz iteration
#
# Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon. Matrices of one shape are updated in one
# batch, in bfloat16 where that is fast. For matrices only; embeddings and norms belong to AdamW.
QUINTIC = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """An optimizer for matrices.

    `weight_decay` is decoupled: a matrix shrinks by lr * weight_decay per step, which bounds its spectral norm.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, *, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for matrices in by_shape.values():
                self._update(matrices, group["lr"], momentum=group["momentum"], decay=group["weight_decay"])

    def _update(self, matrices: list[nn.Parameter], lr: float, *, momentum: float, decay: float) -> None:
        pushed = []
        for matrix in matrices:
            assert matrix.grad is not None
            state = self.state[matrix]
            buffer = state.setdefault("momentum", torch.zeros_like(matrix))
            buffer.lerp_(matrix.grad, 1 - momentum)
            pushed.append(matrix.grad.lerp(buffer, momentum))
        updates = orthogonalize(torch.stack(pushed))
        rows, columns = matrices[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        for matrix, update in zip(matrices, updates, strict=True):
            matrix.mul_(1 - lr * decay).add_(update.to(matrix.dtype), alpha=-lr * scale)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Push the singular values of matrices [n, rows, columns] towards one."""
    x: Tensor = matrices.to(fast_dtype(matrices.device.type))
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
