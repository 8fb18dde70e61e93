"""Milliseconds a step spends outside llama.cpp, by slots and vocabulary: python tests/measures/host_time.py

A random target with a head of reduced or whole vocabulary, draft length 4, greedy. Medians over steps of
decoding only; small models, so that llama.cpp's own time does not hide anything.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.assembly import build
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine

NUM_STEPS = 150


def host_ms(engine: Engine, num_slots: int) -> float:
    """Median host time of a step with all slots decoding."""
    for slot in range(num_slots):
        params = SamplingParams(temperature=0.0, ignore_eos=True)
        engine.submit(ChatRequest(id=f"{num_slots}-{slot}", tokens=tuple(range(10 + slot, 40)), params=params))
    for _ in range(10):
        engine.step()
    steps = []
    for _ in range(NUM_STEPS):
        before = engine.snapshot().host_s
        engine.step()
        steps.append((engine.snapshot().host_s - before) * 1000)
    for slot in range(num_slots):
        engine.cancel(f"{num_slots}-{slot}")
    engine.step()
    return statistics.median(steps)


def measure(folder: Path, n_vocab: int, draft_vocab: int | None) -> None:
    shape = TargetShape(n_vocab=n_vocab)
    head = HeadShape(draft_vocab=draft_vocab, own_output=draft_vocab is not None, fc_norm=True, norm_output=True)
    target_file = write_target(folder / "target.gguf", shape)
    head_file = write_head(folder / "head.gguf", head, shape)
    for num_slots in (1, 2, 4, 8):
        plan = Plan(
            target=target_file, target_label="random", draft_kind="eagle3", draft=head_file, num_draft_tokens=4,
            n_ctx=2048, num_slots=num_slots, threads=1,
        )  # fmt: skip
        engine = build(plan, lambda _: None)
        sys.stdout.write(f"vocabulary {n_vocab:>7}  draft {draft_vocab or n_vocab:>7}  slots {num_slots}  ")
        sys.stdout.write(f"host {host_ms(engine, num_slots):.3f} ms a step\n")
        engine.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        measure(Path(temporary), 4096, None)
        measure(Path(temporary), 152_000, 32_000)
        measure(Path(temporary), 152_000, None)
