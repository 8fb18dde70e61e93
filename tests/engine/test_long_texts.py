"""Prompts with very long runs of letters, on vocabularies with recursive splitters, do not crash the process.

Each is tokenized in a process of its own, which is the one that would crash.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.plain_vision import picture
from doubles.random_models import TargetShape, write_target
from doubles.tiers import some_of
from doubles.vision_models import PAIRS, write_pair

READ = """
import sys
from pathlib import Path
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement

vocabulary = LlamaModel(load_library(), Path(sys.argv[1]), Placement()).vocabulary
for text in (
    "x" * 200_000, "." * 200_000, " " * 200_000, "xX" * 100_000, "e\u0301" * 50_000, "\u4e2d" * 60_000,
    "//\\n" * 30_000, ".\\x1c" * 50_000,
):
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
    print(b"".join(map(vocabulary.piece, tokens)).decode() == text)
end = vocabulary.tokenize("<|end|>", add_special=False, parse_special=True)
for shift in range(8):
    tokens = vocabulary.tokenize("x" * (6000 - shift) + "<|end|>" + "x" * 6000, add_special=False, parse_special=True)
    print([token for token in tokens if token in end] == end and len(end) == 1)
"""


@pytest.mark.parametrize("splitter", some_of(["gpt-4o", "tekken", "deepseek-v3", "default", "qwen2"]))
def test_long_runs_are_read(tmp_path: Path, splitter: str) -> None:
    target = write_target(tmp_path / "t.gguf", TargetShape(n_layer=1, n_embd=64, n_ff=64, splitter=splitter))
    done = subprocess.run([sys.executable, "-c", READ, str(target)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.split() == ["True"] * 16


READ_BESIDE_AN_IMAGE = """
import sys
from pathlib import Path
from eaglelocal.backend.image_encoder import LlamaImageReader, ReaderParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.ports import TextPart

library = load_library()
model = LlamaModel(library, Path(sys.argv[1]), Placement())
reader = LlamaImageReader(library, model, Path(sys.argv[2]), ReaderParams(threads=1, on_gpu=False, n_batch=512))
image = reader.read(Path(sys.argv[3]).read_bytes(), "the image")
parts = [TextPart("x" * 200_000, True), image, TextPart("y" * 200_000, False)]
tokens = [piece for piece in reader.tokenize(parts, add_special=False) if isinstance(piece, int)]
print(b"".join(map(model.vocabulary.piece, tokens)).decode() == "x" * 200_000 + "y" * 200_000)
"""


@pytest.mark.full
def test_long_runs_next_to_an_image_are_read(tmp_path: Path) -> None:
    target, projector = write_pair(tmp_path, "seeing", replace(PAIRS["phi4"], splitter="gpt-4o"))
    (tmp_path / "red.png").write_bytes(picture((255, 0, 0)))
    files = [str(path) for path in (target, projector, tmp_path / "red.png")]
    done = subprocess.run(
        [sys.executable, "-c", READ_BESIDE_AN_IMAGE, *files], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr[-500:]
