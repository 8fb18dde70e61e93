"""How well a head drafts behind an image, which it is not shown: `python tests/measures/after_images.py`.

The embedded model with a projector of random weights: its rows say nothing, and the head begins anew behind them, with
the question alone.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from doubles.engine_harness import drive
from doubles.plain_vision import picture
from doubles.real_engine import real_engine
from doubles.vision_models import PAIRS, write_projector

from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Image, Message, Spec, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.hub.target_resolver import demo_sources

QUESTIONS = (
    "What is acceptance length?",
    "What is a KV cache?",
    "Translate to English: Der Hund schläft im Garten.",
    "What is 123 + 456?",
    "Write a Python function that adds two numbers.",
    "What is prefill?",
    "Which card has 24 GB?",
    "What is EAGLE-3.1?",
)
WIDTH = 256
IMAGE = picture(3, 64, 64)


def accepted(projector: Path, spec: Spec, *images: bytes) -> tuple[int, int, int]:
    """Tokens answered, drafted and accepted."""
    target, head = demo_sources()
    engine = real_engine(target, "eagle3", head, projector=projector, n_ctx=2048, n_batch=512, spec=spec)
    counts = np.zeros(3, int)
    for question in QUESTIONS:
        shown = Message("user", question, images=tuple(Image(data) for data in images))
        params = SamplingParams(temperature=0.0, max_tokens=100)
        result = drive(engine, [ChatRequest(id=question, messages=(shown,), params=params)])[question]
        assert result.finished is not None
        stats = result.finished.speculation
        counts += (len(result.tokens), stats.draft_tokens, stats.accepted_tokens)
    engine.close()
    return tuple(map(int, counts))


def main() -> None:
    pair = replace(PAIRS["phi4"], sketch=replace(PAIRS["phi4"].sketch, n_embd=WIDTH))
    with tempfile.TemporaryDirectory() as folder:
        projector = Path(folder) / "mmproj.gguf"
        write_projector(projector, pair, np.random.default_rng(0))
        for spec in (fixed_spec(4), AUTO_SPEC):
            for images in ((), (IMAGE,)):
                tokens, drafted, taken = accepted(projector, spec, *images)
                print(f"{spec}, {len(images)} images: {tokens} tokens, {taken} of {drafted} drafted accepted")


if __name__ == "__main__":
    main()
