"""Milliseconds a step spends outside llama.cpp, by slots and vocabulary: python tests/measures/host_time.py

A random target with a head of reduced or whole vocabulary, draft length 4, greedy, in the real engine process: what
is counted is everything between the ends of two steps that llama.cpp does not take, the pipe to the client included.
Small models, so that llama.cpp's own time does not hide anything. Exits 1 if a figure is over its bound. With TARGETs,
such as demo@1b:bf16, the share of a step that is spent outside llama.cpp with each, at one slot and at eight.

--asynchronous  scripted models on a device with a clock of its own (doubles/device_engine.py): the processor time for
                which the device waits, if steps are reported before the next is submitted, and after. `--auto` lets
                drafts depend on what is learned.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.device_engine import ASYNCHRONOUS, AT_ONCE
from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Spec, fixed_spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.preparation.decision import resolve

NUM_TOKENS = 400
NUM_SLOTS = (1, 2, 4, 8)
BOUND_MS, BOUND_PER_SLOT_MS = 1.0, 0.8 / 7  # on a processor; 1.8 ms at eight slots
BOUND_SHARE = 0.02  # of a step of a model with 1 B weights, on a processor
ASYNCHRONOUS_BOUND_MS = 0.35  # with one slot
NUM_ROUNDS = 5  # of both kinds of engine, alternating


def host_ms(client: EngineClient, num_slots: int, num_tokens: int = NUM_TOKENS) -> float:
    """Mean host time of a step while all slots decode."""
    for name, count in (("warm", 20), ("run", num_tokens)):
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
    for num_slots in NUM_SLOTS:
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


def measure_share(target: str) -> bool:
    """Print the share of a step that a model spends outside llama.cpp; False if it is over the bound at one slot."""
    within = True
    for num_slots in (1, 8):
        plan = resolve(RunOptions(target=target, parallel=num_slots), on_progress=lambda fraction, what: None)
        with EngineClient(plan) as client:
            client.start()
            before = client.snapshot()
            host_ms(client, num_slots, num_tokens=100)
            after = client.snapshot()
        host_s, native_s = after.host_s - before.host_s, after.native_s - before.native_s
        share = host_s / (host_s + native_s)
        within &= num_slots > 1 or share <= BOUND_SHARE
        step_ms = 1000 * (host_s + native_s) / (after.steps - before.steps)
        sys.stdout.write(f"{target}  slots {num_slots}  host {share:.2%} of a step of {step_ms:.1f} ms\n")
    return within


def measure_asynchronous(n_vocab: int, num_slots: int, spec: Spec) -> bool:
    """Print for how long a device waits for the host, with both kinds of engine; False if that is over the bound.

    The median of several rounds counts.
    """
    plan = Plan(target=Path("none"), target_label=str(n_vocab), spec=spec, n_ctx=1024, num_slots=num_slots)
    took: dict[str, list[float]] = {AT_ONCE: [], ASYNCHRONOUS: []}
    for _ in range(NUM_ROUNDS):
        for builder, results in took.items():
            with EngineClient(plan, builder=builder) as client:
                client.start()
                results.append(host_ms(client, num_slots))
    before, after = map(statistics.median, took.values())
    within = num_slots > 1 or after <= ASYNCHRONOUS_BOUND_MS
    bound = f", bound {ASYNCHRONOUS_BOUND_MS}" if num_slots == 1 else ""
    sizes = f"vocabulary {n_vocab:>7}  slots {num_slots}"
    sys.stdout.write(f"{sizes}  the device waits {before:.3f} ms a step reported at once, {after:.3f} later{bound}\n")
    sys.stdout.flush()
    return within


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--auto", action="store_true")
    chosen = parser.parse_args()
    if chosen.asynchronous:
        sizes = [(n_vocab, num_slots) for n_vocab in (4096, 152_000) for num_slots in NUM_SLOTS]
        spec = AUTO_SPEC if chosen.auto else fixed_spec(4)
        return 0 if all([measure_asynchronous(*size, spec) for size in sizes]) else 1
    if chosen.targets:
        return 0 if all([measure_share(target) for target in chosen.targets]) else 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shapes = ((4096, None), (152_000, 32_000), (152_000, None))
        return 0 if all([measure(folder, *shape) for shape in shapes]) else 1


if __name__ == "__main__":
    sys.exit(main())
