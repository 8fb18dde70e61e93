"""What two answers at once cost, with the same LoRA adapter and with different ones: `adapter_turns.py TARGET`.

Prints milliseconds for a token of both, the best of five runs, without drafts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from doubles.engine_harness import drive
from doubles.lora_files import write_lora
from doubles.real_engine import ask

from eaglelocal.core.adapters import AdapterFile, AdapterMix
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import OFF
from eaglelocal.engine.engine import Engine
from eaglelocal.loading.engine_builder import build
from eaglelocal.scheduler import scheduler

LENGTH, RUNS = 60, 5
FIRST, SECOND = ((0, 1.0),), ((1, 1.0),)
CASES: dict[str, tuple[AdapterMix, ...]] = {
    "one answer, with an adapter": (FIRST,),
    "two, without": ((), ()),
    "two, with the same": (FIRST, FIRST),
    "two, with different ones": (FIRST, SECOND),
}


def measure(engine: Engine, mixes: tuple[AdapterMix, ...]) -> float:
    best_s = float("inf")
    for run in range(RUNS):
        prompts = [ask(str(i), [5 + i, 7, 9, run], max_tokens=LENGTH) for i in range(len(mixes))]
        asked = [replace(prompt, adapters=mix) for prompt, mix in zip(prompts, mixes, strict=True)]
        began_s = time.perf_counter()
        drive(engine, asked)
        best_s = min(best_s, time.perf_counter() - began_s)
    return 1000 * best_s / LENGTH


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        files = [write_lora(Path(folder) / f"{number}.gguf", target, seed=number, gain=0.01) for number in range(2)]
        adapters = tuple(AdapterFile(path, 0.0) for path in files)
        plan = Plan(target=target, target_label="measured", spec=OFF, num_slots=2, adapters=adapters, n_ctx=512)
        engine = build(plan, lambda _: None)
        for name, mixes in CASES.items():
            print(f"{name:<30}{measure(engine, mixes):8.2f} ms")
        scheduler.TURN_S = 0.0
        print(f"{'the same, turns of one step':<30}{measure(engine, CASES['two, with different ones']):8.2f} ms")
        engine.close()


if __name__ == "__main__":
    main()
