"""What a pass over n rows costs with our products of quantized weights and with llama.cpp's, in turn (a processor).

python tests/measures/row_products.py TARGET.gguf [--rows 1 2 4 8 512] [--threads 2] [--repeats 10] [--skip 1]
"""

from __future__ import annotations

import argparse
import ctypes as C
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import llama_cpp

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.cpu_attention import install_products, products_installer
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch
from eaglelocal.probe.cpuinfo import count_usable_threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 16, 64, 512])
    parser.add_argument("--threads", type=int, default=count_usable_threads())
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--skip", type=int, default=0, help="kernels for wider processors to pass over; 1: AVX2 alone")
    options = parser.parse_args()
    model = LlamaModel(load_library(), options.target, Placement())
    n = max(options.rows)
    params = ContextParams(n_ctx=n + 64, n_batch=n, flash_attn="on", threads=options.threads)
    context = LlamaContext(model, params)
    print(f"{options.target.name}, {options.threads} threads: ms of the quickest of {options.repeats} passes")
    print("  rows      ours  llama.cpp's  ratio")
    for num_rows in options.rows:
        ours, theirs = [], []
        for _ in range(options.repeats):
            use_ours(options.skip)
            ours.append(time_pass(context, num_rows))
            products_installer()(None, 0, 0)
            theirs.append(time_pass(context, num_rows))
        print(f"{num_rows:6} {min(ours):9.1f} {min(theirs):12.1f} {min(theirs) / min(ours):6.2f}", flush=True)
    context.close()
    model.close()


def use_ours(num_skipped: int) -> None:
    if not install_products(C.PyDLL(llama_cpp.llama_cpp._lib._name), num_skipped=num_skipped):
        sys.exit("our products are not for this processor")


def time_pass(context: LlamaContext, num_rows: int) -> float:
    """Return the milliseconds of a pass over so many tokens of an empty sequence."""
    context.remove(0, 0)
    tokens = [5 + i % 200 for i in range(num_rows)]
    began = time.perf_counter()
    context.decode(Batch(tokens, list(range(num_rows)), [(0,)] * num_rows, [False] * (num_rows - 1) + [True]))
    context.logits(num_rows - 1)  # waits
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
