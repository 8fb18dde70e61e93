"""What lies beside a target -> the projector that is taken, or why none is."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.hub_models import WIDTH, model_bytes
from doubles.projectors import projector_bytes

from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.hub.projector_resolver import list_model_names, match_projectors, normalize_name, parse_projector
from eaglelocal.preparation.decision import resolve

GOOD = projector_bytes(width=WIDTH)
UNCLEAR = "no images: whether {} is this model's is not clear; --mmproj FILE takes it"


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("mmproj-F16.gguf", ""),
        ("mmproj-model-f16.gguf", ""),
        ("Gemma 3 4b It", "gemma34bit"),
        ("mmproj-gemma-3-4b-it-f16", "gemma34bit"),
        ("gemma-3-4b-it-UD-Q4_K_XL", "gemma34bit"),
    ],
)
def test_plain(name: str, calls: str) -> None:
    assert normalize_name(name.removesuffix(".gguf")) == calls


@pytest.mark.parametrize(
    ("names", "is_alone", "taken"),
    [
        (["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"], True, "mmproj-F16.gguf"),
        (["mmproj-F32.gguf", "mmproj-Q8_0.gguf", "mmproj-BF16.gguf"], True, "mmproj-BF16.gguf"),
        (["mmproj-F32.gguf", "mmproj-Q8_0.gguf"], True, "mmproj-Q8_0.gguf"),
        (["mmproj.gguf"], True, "mmproj.gguf"),
        (["mmproj.gguf"], False, None),
        (["mmproj-qwen3-vl-4b-f16.gguf", "mmproj-gemma-3-4b-it-f16.gguf"], False, "mmproj-qwen3-vl-4b-f16.gguf"),
        (["mmproj-qwen3-vl-8b-f16.gguf", "mmproj-gemma-3-4b-it-f16.gguf"], False, None),
        (["mmproj-qwen_qwen3-vl-4b-instruct-f16.gguf"], False, "mmproj-qwen_qwen3-vl-4b-instruct-f16.gguf"),
        (["mmproj-qwen3-vl-4b-a-f16.gguf", "mmproj-qwen3-vl-4b-b-f16.gguf"], False, None),
        (["mmproj-gemma-3-4b-it-f16.gguf"], True, "mmproj-gemma-3-4b-it-f16.gguf"),
    ],
)
def test_the_best_of_the_one_that_is_the_models(names: list[str], is_alone: bool, taken: str | None) -> None:
    found = match_projectors([parse_projector(name) for name in names], ["Qwen3-VL-4B-Q4_K_M"], is_alone=is_alone)
    assert (found[0].name if found else None) == taken


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ({"BF16": 3_850_000_000, "Q8_0": 2_051_685_088}, "Q8_0"),  # of Muse Glimmer 30B
        ({"F32": 4_200_000_000, "F16": 2_300_000_000, "Q8_0": 1_200_000_000}, "Q8_0"),
        ({"BF16": 9_000_000_000, "Q8_0": 4_800_000_000}, "BF16"),  # none is small
        ({"F16": 1_100_000_000, "Q8_0": 600_000_000}, "F16"),
        ({"F16": 2_800_000_000}, "F16"),
    ],
)
def test_a_large_one_is_taken_where_there_is_no_smaller(sizes: dict[str, int], taken: str) -> None:
    found = [parse_projector(f"mmproj-{quant}.gguf", size_bytes=size) for quant, size in sizes.items()]
    assert match_projectors(found, ["a"], is_alone=True)[0].quant == taken


def test_models_are_counted_without_their_quantizations_and_drafts() -> None:
    names = ["a-Q4_K_M.gguf", "a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf", "mmproj-F16.gguf"]
    assert list_model_names([*names, "mtp-a.gguf"]) == {"a"}


def resolved(target: Path, mmproj: str = "auto") -> tuple[str | None, str]:
    plan = resolve(RunOptions(target=str(target), mmproj=mmproj), on_progress=lambda fraction, what: None)
    return plan.projector.name if plan.projector else None, plan.projector_note


@pytest.mark.parametrize(
    ("beside", "taken", "note"),
    [
        ({}, None, ""),
        ({"mmproj-F16.gguf": GOOD}, "mmproj-F16.gguf", ""),
        ({"tiny-mmproj-bf16.gguf": GOOD, "mmproj-F32.gguf": GOOD}, "tiny-mmproj-bf16.gguf", ""),
        ({"mmproj-F16.gguf": GOOD, "another-Q8_0.gguf": b""}, None, UNCLEAR.format("mmproj-F16.gguf")),
        ({"mmproj-F16.gguf": projector_bytes(width=WIDTH, name="Tiny"), "another.gguf": b""}, "mmproj-F16.gguf", ""),
        ({"mmproj-F16.gguf": projector_bytes(width=WIDTH, sees=False)}, None, ""),
        ({"mmproj-F16.gguf": projector_bytes(width=32), "mmproj-F32.gguf": GOOD}, "mmproj-F32.gguf", ""),
        ({"mmproj-F16.gguf": projector_bytes(width=32)}, None, "gives rows of width 32, the target reads 64"),
        ({"mmproj-F16.gguf": b"no header"}, None, "no images: "),
        ({"mmproj-F16.gguf": GOOD, "tiny-00001-of-00002.gguf": b""}, "mmproj-F16.gguf", ""),
    ],
)
def test_auto_takes_what_lies_next_to(beside: dict[str, bytes], taken: str | None, note: str, tmp_path: Path) -> None:
    target = tmp_path / "tiny-Q8_0.gguf"
    target.write_bytes(model_bytes())
    for name, data in beside.items():
        (tmp_path / name).write_bytes(data)
    found, expected = resolved(target)
    assert (found, note in expected) == (taken, True)
    assert bool(expected) == bool(note)
    assert resolved(target, "none") == (None, "")


def test_a_named_file_is_taken_wherever_it_lies_or_refused_with_numbers(tmp_path: Path) -> None:
    target, eyes = tmp_path / "tiny.gguf", tmp_path / "elsewhere" / "eyes.gguf"
    eyes.parent.mkdir()
    target.write_bytes(model_bytes())
    eyes.write_bytes(GOOD)
    assert resolved(target, str(eyes)) == ("eyes.gguf", "")
    eyes.write_bytes(projector_bytes(width=48))
    with pytest.raises(IncompatibleError, match=r"eyes.gguf gives rows of width 48, the target reads 64"):
        resolved(target, str(eyes))
    eyes.write_bytes(projector_bytes(sees=False))
    with pytest.raises(ModelFileError, match="a projector for audio"):
        resolved(target, str(eyes))
    with pytest.raises(ModelFileError, match="is not a projector"):
        resolved(target, str(target))
    with pytest.raises(ModelFileError, match="does not exist") as missing:
        resolved(target, str(tmp_path / "nowhere.gguf"))
    assert missing.value.hint == "--mmproj auto"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (RunOptions(target="eyes.gguf"), "eyes.gguf is an image encoder, not a model that can answer"),
        (RunOptions(target="tiny.gguf", draft="./eyes.gguf"), "eyes.gguf is an image encoder and cannot draft"),
    ],
)
def test_a_projector_in_another_place_is_sent_to_its_own(
    options: RunOptions, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.gguf").write_bytes(model_bytes())
    (tmp_path / "eyes.gguf").write_bytes(GOOD)
    with pytest.raises(ModelFileError, match=expected) as raised:
        resolve(options, on_progress=lambda fraction, what: None)
    assert "--mmproj" in raised.value.hint


def test_in_a_hubs_cache_the_whole_snapshot_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--u--tiny-GGUF" / "snapshots" / ("a" * 40)
    (snapshot / "Q8_0").mkdir(parents=True)
    (snapshot / "Q8_0" / "tiny-Q8_0.gguf").write_bytes(model_bytes())
    (snapshot / "mmproj-F16.gguf").write_bytes(GOOD)
    plan = resolve(RunOptions(target="u/tiny-GGUF"), on_progress=lambda fraction, what: None)
    assert plan.projector == snapshot / "mmproj-F16.gguf"
