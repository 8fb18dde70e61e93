"""What a wish leaves open: the best model on disk for a machine, its context, cache and layers; what was said stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.sketched_models import REAL, SKETCHES, Sketch, write_sketch

from eaglelocal import as_planned as module
from eaglelocal.as_planned import Settled, as_planned
from eaglelocal.backend.fit import RAM
from eaglelocal.catalog.machines import CPU, CUDA
from eaglelocal.hub.wish import Wish
from eaglelocal.planner.machine import Device, Rig

GIB, GIGA = 2**30, 10**9
COMMIT = "a" * 40


def host(gib: float, gb_s: float = 40) -> Device:
    return Device(
        name=RAM,
        label="RAM",
        kind=CPU,
        total_bytes=None,
        free_bytes=int(gib * GIB),
        bytes_s=gb_s * GIGA,
        flops=100 * GIGA,
    )


def card(gib: float) -> Device:
    return Device(
        name="CUDA0",
        label="a card",
        kind=CUDA,
        total_bytes=None,
        free_bytes=int(gib * GIB),
        bytes_s=900 * GIGA,
        flops=70e12,
    )


SLOW = Rig(name="a slow processor", host=host(16, gb_s=8))
CPU_ONLY, SMALL_CARD, LARGE_CARD = (
    Rig(name="a processor", host=host(16)),
    Rig(name="a small card", host=host(32), gpus=(card(7.5),)),
    Rig(name="a large card", host=host(64), gpus=(card(48),)),
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def on(rig: Rig, monkeypatch: pytest.MonkeyPatch, wish: Wish) -> Settled:
    monkeypatch.setattr(module, "this_rig", lambda catalog: rig)
    return as_planned(wish)


def pulled(hub: Path, name: str, sketch: Sketch | None = None) -> str:
    """The reference of a model as if it had been fetched."""
    folder = hub / f"models--maker--{name}-GGUF"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    write_sketch(snapshot / f"{name}-Q8_0.gguf", sketch or REAL[name])
    return f"maker/{name}-GGUF:Q8_0"


def test_nothing_on_disk_is_the_embedded_model(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on(CPU_ONLY, monkeypatch, Wish()) == Settled(Wish(target="demo"))


@pytest.mark.parametrize(
    ("rig", "name"),
    [(SLOW, "qwen3-0.6b"), (CPU_ONLY, "qwen3-8b"), (SMALL_CARD, "qwen3-8b"), (LARGE_CARD, "qwen3-8b")],
)
def test_the_best_of_what_is_on_disk(hub: Path, monkeypatch: pytest.MonkeyPatch, rig: Rig, name: str) -> None:
    """8 B in Q8_0 says one token a second at 8 GB/s; 70 B fits none of them."""
    references = {each: pulled(hub, each) for each in ("qwen3-0.6b", "qwen3-8b", "llama-3.3-70b")}
    pulled(hub, "tiny", SKETCHES["gemma3"])
    found = on(rig, monkeypatch, Wish())
    assert found.wish.target == references[name]
    assert found.note.startswith(f"{references[name]}, of 4 on disk")
    assert found.wish.ctx is not None and (found.wish.gpu_layers is not None) == (rig is SMALL_CARD)


def test_models_that_do_not_fit_leave_the_embedded_one(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled(hub, "llama-3.3-70b")
    found = on(CPU_ONLY, monkeypatch, Wish())
    assert found.wish.target == "demo"
    assert found.note == "none of the models on disk fits this machine as it is asked"


def test_what_cannot_answer_is_passed_over(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = pulled(hub, "qwen3-0.6b")
    pulled(hub, "qwen2.5-7b")
    broken = next((hub / "models--maker--qwen2.5-7b-GGUF").rglob("*.gguf"))
    broken.write_bytes(b"GGUF")
    assert on(LARGE_CARD, monkeypatch, Wish()).wish.target == reference


def test_a_model_larger_than_the_card_keeps_layers_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-8b"]))
    found = on(SMALL_CARD, monkeypatch, Wish(target=path))
    assert found.wish.gpu_layers is not None and 10 < found.wish.gpu_layers < 37
    assert found.note.startswith(f"{found.wish.gpu_layers} of 37 layers on the GPU")
    whole = on(LARGE_CARD, monkeypatch, Wish(target=path))
    assert (whole.wish.gpu_layers, whole.wish.kv_type, whole.note) == (None, "f16", "")
    assert whole.wish.ctx == 32768


def test_what_was_said_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-8b"]))
    said = Wish(target=path, ctx=2048, kv_type="q4_0", gpu_layers=3)
    assert on(SMALL_CARD, monkeypatch, said).wish == said
    assert on(LARGE_CARD, monkeypatch, said).wish == said


def test_a_processor_keeps_the_usual_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-0.6b"]))
    found = on(CPU_ONLY, monkeypatch, Wish(target=path))
    assert (found.wish.ctx, found.wish.kv_type, found.wish.gpu_layers, found.note) == (4096, "f16", None, "")


@pytest.mark.parametrize("target", ["demo", "demo@native", "demo@8b:q4_0"])
def test_the_embedded_model_is_not_planned(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    assert on(SMALL_CARD, monkeypatch, Wish(target=target)) == Settled(Wish(target=target))


def test_what_cannot_be_read_is_left_to_whoever_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"no model")
    assert on(CPU_ONLY, monkeypatch, Wish(target=str(path))) == Settled(Wish(target=str(path)))
