"""Load model files with llama.cpp, one after the other: python loading_program.py [TARGET] < paths

Without TARGET the files are targets: each is loaded, and tokenizes and decodes a text. With it they are heads for that
target. A line is written for each file when it is done; a file that ends the process has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import LlamaHeadContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch, PairBatch
from eaglelocal.errors import EagleLocalError

PARAMS = ContextParams(n_ctx=64, n_batch=32, num_sequences=1, threads=1)
EVERY_BYTE = "".join(map(chr, [*range(1, 0x800), *range(0x800, 0xFFFF, 0x1000), *range(0x10000, 0x110000, 0x10000)]))
ROWS = Batch([5, 6, 7], [0, 1, 2], [(0,)] * 3, [True] * 3)


def use_target(model: LlamaModel) -> None:
    model.vocabulary.tokenize(EVERY_BYTE, add_special=True, parse_special=True)
    for token in range(model.vocabulary.n_tokens):
        model.vocabulary.piece(token)
    context = LlamaContext(model, PARAMS)
    try:
        context.decode(ROWS)
    finally:
        context.close()


def head_user(target: Path) -> Callable[[LlamaModel], None]:
    model = LlamaModel(load_library(), target, Placement(repack=False))
    context = LlamaContext(model, PARAMS, taps=(1, 2, 3))

    def use_head(draft: LlamaModel) -> None:
        head = LlamaHeadContext(draft, PARAMS, target=context)
        try:
            features = context.decode(ROWS).features([0, 2])
            assert features is not None
            states = head.encode([features])
            head.decode(PairBatch([5], states[:1], [0], [0], [0]), 1, confident=False)
        finally:
            context.remove(0, 0)
            head.close()

    return use_head


def outcome(path: Path, use: Callable[[LlamaModel], None]) -> str:
    try:
        model = LlamaModel(load_library(), path, Placement(repack=False))
        try:
            use(model)
        finally:
            model.close()
    except EagleLocalError as error:
        return f"refused: {error.message!r}"
    return "used"


def main(arguments: list[str]) -> None:
    use = head_user(Path(arguments[0])) if arguments else use_target
    for line in sys.stdin:
        print(outcome(Path(line.rstrip("\n")), use), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
