"""Headers of projectors -> how wide their rows are, and whether they fit a target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from doubles.gguf_bytes import STRING, U32, GgufBytes
from doubles.hub_models import model_bytes
from doubles.projectors import projector_bytes

from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.projector import Projector, check_projector, input_width
from eaglelocal.gguf.reader import read_header


def header(folder: Path, data: bytes) -> Header:
    path = folder / "x.gguf"
    path.write_bytes(data)
    return read_header(path)


def deep_target(layers: int) -> bytes:
    built = GgufBytes().put("general.architecture", STRING, "qwen3vl").put("qwen3vl.embedding_length", U32, 64)
    return built.put("qwen3vl.n_deepstack_layers", U32, layers).tensor("a", np.zeros((1, 1), np.float32)).build()


@pytest.mark.parametrize(
    ("kind", "tensor", "shape", "width"),
    [
        ("gemma4v", "mm.input_projection.weight", (48, 2), 48),
        ("gemma3", "mm.input_projection.weight", (2, 48), 48),  # llama.cpp multiplies with it turned
        ("pixtral", "mm.2.weight", (48, 2), 48),
        ("qwen2.5vl_merger", "mm.2.bias", (48,), 48),
        ("mlp", "mm.2.weight", (48, 2), 48),
        ("mlp", "mm.3.bias", (48,), 48),
        ("idefics3", "mm.model.fc.weight", (48, 2), 48),
        ("internvl", "mm.model.mlp.3.weight", (48, 2), 48),
        ("resampler", "resampler.proj.weight", (2, 48), 48),
        ("glm4v", "mm.down.weight", (48, 2), 48),
        ("of tomorrow", "a", (7, 7), None),
    ],
)
def test_width_comes_from_the_tensor_that_llama_cpp_looks_at(
    kind: str, tensor: str, shape: tuple[int, ...], width: int | None, tmp_path: Path
) -> None:
    assert (
        Projector.from_header(header(tmp_path, projector_bytes(kind=kind, tensor=tensor, shape=shape))).width == width
    )


def test_width_is_the_reported_one_where_the_kind_is_not_known(tmp_path: Path) -> None:
    data = projector_bytes(kind="of tomorrow", tensor="a", more={"projection_dim": 96})
    assert Projector.from_header(header(tmp_path, data)).width == 96


def test_pictures_that_reach_several_layers_make_wider_rows_on_both_sides(tmp_path: Path) -> None:
    built = GgufBytes().put("general.architecture", STRING, "clip")
    built.put("clip.has_vision_encoder", 7, True).put("clip.projector_type", STRING, "qwen3vl_merger")
    built.tensor("mm.2.bias", np.zeros(64, np.float32))
    for layer in (5, 11, 17):
        built.tensor(f"v.deepstack.{layer}.fc1.weight", np.zeros((2, 2), np.float32))
    projector = Projector.from_header(header(tmp_path, built.build()))
    assert projector.width == 4 * 64
    check_projector(projector, header(tmp_path, deep_target(3)), name="x")
    with pytest.raises(IncompatibleError, match="rows of width 256, the target reads 64"):
        check_projector(projector, header(tmp_path, deep_target(0)), name="x")
    assert input_width(header(tmp_path, deep_target(3))) == 256


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (model_bytes(), "x.gguf is not a projector for images: its architecture is llama"),
        (projector_bytes(sees=False), "x.gguf is a projector for audio, not for images"),
    ],
)
def test_what_makes_no_pictures_readable_is_refused(data: bytes, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as error:
        Projector.from_header(header(tmp_path, data))
    assert error.value.message == expected


@pytest.mark.parametrize(
    ("kind", "more", "patches"),
    [
        ("gemma3", {}, 64 * 64),  # the square that every picture becomes
        ("gemma4v", {}, 1120 * 9),
        ("qwen3vl_merger", {}, 4096 * 4),
        ("qwen3vl_merger", {"spatial_merge_size": 1}, 4096),
        ("dots_ocr", {"image_max_pixels": 14 * 14 * 1000}, 1000),
    ],
)
def test_largest_picture(kind: str, more: dict[str, int], patches: int, tmp_path: Path) -> None:
    assert Projector.from_header(header(tmp_path, projector_bytes(kind=kind, more=more))).num_patches == patches
