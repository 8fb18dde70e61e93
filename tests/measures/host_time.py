"""Milliseconds a step spends outside llama.cpp, by slots and vocabulary: python tests/measures/host_time.py

A random target with a head of reduced or whole vocabulary, draft length 4, greedy, in the real engine process: what
is counted is everything between the ends of two steps that llama.cpp does not take, the pipe to the client included.
Small models, so that llama.cpp's own time does not hide anything. Exits 1 if a figure is over its bound.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, fixed_spec
from eaglelocal.core.sampling import SamplingParams

NUM_TOKENS = 400
BOUND_MS, BOUND_PER_SLOT_MS = 0.4, 0.05


def host_ms(client: EngineClient, num_slots: int) -> float:
    """Mean host time of a step while all slots decode."""
    for name, count in (("warm", 20), ("run", NUM_TOKENS)):
        before = client.snapshot()
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=count)
        requests = [
            ChatRequest(id=f"{name}-{slot}", tokens=tuple(range(10 + slot, 40)), params=params)
            for slot in range(num_slots)
        ]
        for answer in [client.stream(request) for request in requests]:
            answer.result()
    after = client.snapshot()
    return (after.host_s - before.host_s) / (after.steps - before.steps) * 1000


def measure(folder: Path, n_vocab: int, draft_vocab: int | None) -> bool:
    """Print a line for each number of slots; False if one is over its bound."""
    shape = TargetShape(n_vocab=n_vocab)
    head = HeadShape(draft_vocab=draft_vocab, own_output=draft_vocab is not None, fc_norm=True, norm_output=True)
    target_file = write_target(folder / "target.gguf", shape)
    head_file = write_head(folder / "head.gguf", head, shape)
    within = True
    for num_slots in (1, 2, 4, 8):
        plan = Plan(
            target=target_file, target_label="random", draft_kind="eagle3", draft=head_file, spec=fixed_spec(4),
            n_ctx=1024, num_slots=num_slots,
        )  # fmt: skip
        with EngineClient(plan) as client:
            client.start()
            took, bound = host_ms(client, num_slots), BOUND_MS + BOUND_PER_SLOT_MS * (num_slots - 1)
        within &= took <= bound
        sizes = f"vocabulary {n_vocab:>7}  draft {draft_vocab or n_vocab:>7}  slots {num_slots}"
        sys.stdout.write(f"{sizes}  host {took:.3f} ms a step, bound {bound:.2f}\n")
    return within


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sizes = ((4096, None), (152_000, 32_000), (152_000, None))
        sys.exit(0 if all([measure(folder, *size) for size in sizes]) else 1)
