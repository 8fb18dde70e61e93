"""What planning decides where the options leave it open: the model, its context, cache and layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.projectors import projector_bytes
from doubles.weightless_models import REAL, SKETCHES, Sketch, write_sketch

from eaglelocal import locations
from eaglelocal.catalog.catalog import CPU, CUDA, KnownMachine
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import ModelFileError
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.pull_plan import remember_draft
from eaglelocal.memory.budget import RAM, device_load, subtract_margins
from eaglelocal.memory.estimate import estimate
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec
from eaglelocal.preparation import autoplan as module
from eaglelocal.preparation.autoplan import autoplan
from eaglelocal.preparation.decision import Decision, make_plan

GIB, GIGA = 2**30, 10**9
COMMIT = "a" * 40


def host(gib: float, gb_s: float = 40) -> DeviceSpec:
    return DeviceSpec(
        name=RAM,
        label="RAM",
        kind=CPU,
        total_bytes=None,
        free_bytes=int(gib * GIB),
        bytes_s=gb_s * GIGA,
        flops=100 * GIGA,
    )


def card(gib: float) -> DeviceSpec:
    return DeviceSpec(
        name="CUDA0",
        label="a card",
        kind=CUDA,
        total_bytes=None,
        free_bytes=int(gib * GIB),
        bytes_s=900 * GIGA,
        flops=70e12,
    )


SLOW = MachineSpec(name="a slow processor", host=host(16, gb_s=8))
LARGE_RAM = MachineSpec(name="much memory", host=host(60), gpus=(card(24),))
CPU_ONLY, SMALL_CARD, LARGE_CARD = (
    MachineSpec(name="a processor", host=host(16)),
    MachineSpec(name="a small card", host=host(32), gpus=(card(7.5),)),
    MachineSpec(name="a large card", host=host(64), gpus=(card(48),)),
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing was written or noted yet."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path / "cache"


def on(machine: MachineSpec, monkeypatch: pytest.MonkeyPatch, options: RunOptions) -> Decision:
    monkeypatch.setattr(module, "this_machine", lambda known: machine)
    return autoplan(options)


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
    assert on(CPU_ONLY, monkeypatch, RunOptions()) == Decision(RunOptions(), chosen="demo")


def test_models_of_other_folders_count_too_each_file_once(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of a folder of one's own is preferred to the embedded one, by the name that `ls` shows."""
    folder = tmp_path / "mine"
    folder.mkdir()
    write_sketch(folder / "small-Q8_0.gguf", REAL["qwen3-0.6b"])
    options = RunOptions(model_folders=(str(folder), str(folder)))
    found = on(CPU_ONLY, monkeypatch, options)
    assert found.target == "small-Q8_0"
    assert len(found.models_on_disk) == 1
    better = pulled(hub, "qwen3-8b")
    assert on(CPU_ONLY, monkeypatch, options).target == better


@pytest.mark.parametrize(
    ("machine", "name"),
    [(SLOW, "qwen3-0.6b"), (CPU_ONLY, "qwen3-8b"), (SMALL_CARD, "qwen3-8b"), (LARGE_CARD, "qwen3-8b")],
)
def test_the_best_of_what_is_on_disk(
    hub: Path, monkeypatch: pytest.MonkeyPatch, machine: MachineSpec, name: str
) -> None:
    """8 B in Q8_0 says one token a second at 8 GB/s; 70 B fits none of them."""
    references = {each: pulled(hub, each) for each in ("qwen3-0.6b", "qwen3-8b", "llama-3.3-70b")}
    pulled(hub, "tiny", SKETCHES["gemma3"])
    found = on(machine, monkeypatch, RunOptions())
    assert found.target == references[name]
    assert found.note.startswith(f"{references[name]}, of 4 on disk")
    assert found.ctx is not None and (found.gpu_layers is not None) == (machine is SMALL_CARD)


def test_models_that_do_not_fit_leave_the_embedded_one(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled(hub, "llama-3.3-70b")
    found = on(CPU_ONLY, monkeypatch, RunOptions())
    assert found.target == "demo"
    assert found.note == "none of the models on disk fits this machine with these options"


def test_what_cannot_answer_is_passed_over(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = pulled(hub, "qwen3-0.6b")
    pulled(hub, "qwen2.5-7b")
    broken = next((hub / "models--maker--qwen2.5-7b-GGUF").rglob("*.gguf"))
    broken.write_bytes(b"GGUF")
    assert on(LARGE_CARD, monkeypatch, RunOptions()).target == reference


def test_a_model_larger_than_the_card_keeps_layers_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-8b"]))
    found = on(SMALL_CARD, monkeypatch, RunOptions(target=path))
    assert found.gpu_layers is not None and 10 < found.gpu_layers < 37
    assert found.note.startswith(f"{found.gpu_layers} of 37 layers on the GPU")
    whole = on(LARGE_CARD, monkeypatch, RunOptions(target=path))
    assert (whole.gpu_layers, whole.kv_type, whole.note) == (None, "f16", "")
    assert whole.ctx == 131072


def test_experts_stay_in_main_memory_before_layers_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-30b-a3b"]))
    machine = replace(SMALL_CARD, host=replace(SMALL_CARD.host, free_bytes=64 * GIB))
    found = on(machine, monkeypatch, RunOptions(target=path))
    assert found.gpu_layers is None and found.n_cpu_moe is not None and 20 < found.n_cpu_moe <= 48
    assert found.note.startswith(f"experts of {found.n_cpu_moe} of 48 layers in main memory: the GPU cannot")
    said = on(machine, monkeypatch, RunOptions(target=path, n_cpu_moe=48))
    assert (said.n_cpu_moe, said.note) == (48, "")


def test_what_was_said_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-8b"]))
    said = RunOptions(target=path, ctx=2048, kv_type="q4_0", gpu_layers=3)
    for machine in (SMALL_CARD, LARGE_CARD):
        found = on(machine, monkeypatch, said)
        assert found.options == said
        assert (found.target, found.ctx, found.kv_type, found.gpu_layers) == (path, 2048, "q4_0", 3)


@pytest.mark.parametrize(
    ("gib", "ctx"),
    [(16, 40960), (8, 40960), (6, 16384), (4, 16384), (3, 8192), (2, 4096)],  # 112 KiB a token
)
def test_a_processor_has_the_models_own_context_as_far_as_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: float, ctx: int
) -> None:
    """More than 16384 tokens leave a quarter of the memory to others."""
    path = str(write_sketch(tmp_path / "m.gguf", replace(REAL["qwen3-0.6b"], n_ctx=40960)))
    found = on(MachineSpec(name="a processor", host=host(gib)), monkeypatch, RunOptions(target=path))
    assert (found.ctx, found.kv_type, found.gpu_layers, found.note) == (ctx, "f16", None, "")


def test_a_context_that_costs_nothing_else_is_the_models_own_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", replace(REAL["qwen3-0.6b"], n_ctx=40960)))
    assert on(LARGE_CARD, monkeypatch, RunOptions(target=path)).ctx == 40960
    tight = on(MachineSpec(name="tight", host=host(32), gpus=(card(6),)), monkeypatch, RunOptions(target=path))
    assert (tight.ctx, tight.kv_type) == (32768, "f16"), "no cache is quantized for more than that"


@pytest.mark.parametrize("target", ["demo", "demo@native", "demo@8b:q4_0"])
def test_an_embedded_model_that_fits_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    found = on(SMALL_CARD, monkeypatch, RunOptions(target=target))
    assert (found.target, found.gpu_layers, found.n_cpu_moe, found.note, found.fits) == (target, None, None, "", True)
    assert not (found.without_draft or found.without_projector)


def test_a_large_embedded_model_keeps_layers_on_the_host(
    tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = on(LARGE_RAM, monkeypatch, RunOptions(target="demo@70b:q4_0"))
    assert found.gpu_layers is not None and 20 < found.gpu_layers < 60
    assert found.ctx == 2048, "as without a plan"
    assert found.note.startswith(f"{found.gpu_layers} of 81 layers on the GPU")
    assert not list(caches.rglob("*.gguf")), "it is planned before it is written"
    said = RunOptions(target="demo@70b:q4_0", gpu_layers=3)
    assert on(LARGE_RAM, monkeypatch, said).gpu_layers == 3


@pytest.mark.parametrize("target", ["demo@70b:q4_0", "demo@0b", "demo@8b:q9"])
def test_an_embedded_model_without_a_gpu_or_of_no_size_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    assert on(CPU_ONLY, monkeypatch, RunOptions(target=target)) == Decision(RunOptions(target=target))
    if "70b" not in target:
        assert on(SMALL_CARD, monkeypatch, RunOptions(target=target)) == Decision(RunOptions(target=target))


# ---- the draft that is planned is the draft that is loaded
@pytest.fixture
def drafted(hub: Path, caches: Path) -> str:
    """A model with a draft that was pulled for it, 8.1 and 0.6 GiB."""
    target = pulled(hub, "qwen3-8b")
    pulled(hub, "qwen3-0.6b")
    file = locations.pulled_drafts_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    remember_draft(file, target_repo="maker/qwen3-8b-GGUF", draft_repo="maker/qwen3-0.6b-GGUF", draft_tag="Q8_0")
    return target


def with_card(gib: float) -> MachineSpec:
    return MachineSpec(name="a card", host=host(32), gpus=(card(gib),))


def check_it_fits(settled: Decision, machine: MachineSpec) -> str:
    """What would be loaded, weighed; the kind of draft."""
    found = make_plan(settled, on_progress=lambda fraction, what: None)
    shapes = [read_shape(read_header(path)) for path in (found.target, found.draft) if path is not None]
    sized = dataclasses.replace(found, swa_full=True, flash_attn="on")
    free_memory = subtract_margins(machine.free_memory)
    buffers = estimate(sized, shapes[0], shapes[1] if len(shapes) > 1 else None, free_memory)
    for room in free_memory:
        assert device_load(room, buffers, free_memory).missing_bytes <= 0, (settled, room)
    return found.draft_kind


@pytest.mark.parametrize("gib", [8, 9, 10, 10.5, 11, 12, 14, 16, 24])
@pytest.mark.parametrize("draft", ["auto", "ngram", "none", "maker/qwen3-0.6b-GGUF:Q8_0"])
def test_what_is_loaded_fits(drafted: str, monkeypatch: pytest.MonkeyPatch, gib: float, draft: str) -> None:
    found = on(with_card(gib), monkeypatch, RunOptions(target=drafted, draft=draft))
    kind = check_it_fits(found, with_card(gib))
    if draft != "auto":
        assert (draft != "ngram" or not found.without_draft) and kind == {"ngram": "ngram", "none": "none"}.get(
            draft, "draft_model"
        )


@pytest.mark.parametrize("gib", [9, 10])
def test_a_draft_without_room_is_left_out_and_that_is_said(
    drafted: str, monkeypatch: pytest.MonkeyPatch, gib: float
) -> None:
    found = on(with_card(gib), monkeypatch, RunOptions(target=drafted))
    assert found.without_draft
    assert "a lookup in place of draft model qwen3-0.6b-Q8_0.gguf, which lacks " in found.note
    assert "iB on CUDA0" in found.note
    assert make_plan(found, on_progress=lambda fraction, what: None).draft_reason == found.without_draft
    assert found.without_draft in found.note


@pytest.mark.parametrize("gib", [11, 12, 14])
def test_a_draft_is_worth_more_than_context_that_was_not_asked_for(
    drafted: str, monkeypatch: pytest.MonkeyPatch, gib: float
) -> None:
    found = on(with_card(gib), monkeypatch, RunOptions(target=drafted))
    assert (found.without_draft, found.gpu_layers) == ("", None)
    assert found.ctx is not None and 8192 <= found.ctx <= 16384
    without = on(with_card(gib), monkeypatch, RunOptions(target=drafted, spec="off"))
    assert without.ctx is not None and without.ctx > found.ctx


# ---- what was said is planned with
@pytest.mark.parametrize(("kv_type", "ctx"), [("q4_0", 32768), ("q8_0", 16384), ("f16", 8192)])
def test_a_cache_that_was_said_decides_over_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv_type: str, ctx: int
) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-8b"]))
    found = on(with_card(11), monkeypatch, RunOptions(target=path, kv_type=kv_type, draft="ngram"))
    assert (found.kv_type, found.ctx, found.gpu_layers) == (kv_type, ctx, None)
    check_it_fits(found, with_card(11))


def test_the_pieces_of_prompts_are_loaded_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-8b"]))
    options = RunOptions(target=path, ctx=8192, kv_type="f16", draft="ngram")
    for gib, piece in ((10.0, 256), (16.0, 512)):
        found = on(with_card(gib), monkeypatch, options)
        assert make_plan(found, on_progress=lambda fraction, what: None).n_batch == piece
        assert (f"prompts are read {piece} tokens at a time" in found.note) is (piece != 512)
        check_it_fits(found, with_card(gib))


def test_layers_that_were_said_leave_room_for_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-8b"]))
    found = on(with_card(10), monkeypatch, RunOptions(target=path, gpu_layers=10))
    assert (found.ctx, found.kv_type, found.gpu_layers) == (131072, "f16", 10)
    check_it_fits(found, with_card(10))
    on_host = on(with_card(10), monkeypatch, RunOptions(target=path, gpu_layers=0))
    assert (on_host.ctx, on_host.kv_type) == (65536, "f16"), "as on a processor"


TWO_CARDS = MachineSpec(name="two cards", host=host(32), gpus=(card(24), dataclasses.replace(card(7.5), name="CUDA1")))


@pytest.mark.parametrize(
    ("said", "is_whole"), [({"device": "CUDA0"}, True), ({"device": "CUDA1"}, False), ({"split": "none"}, True)]
)
def test_only_cards_that_were_said_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, str], is_whole: bool
) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-8b"]))
    found = on(TWO_CARDS, monkeypatch, dataclasses.replace(RunOptions(target=path), **said))
    assert (found.gpu_layers is None) == is_whole


@pytest.mark.parametrize("said", [{"device": "Vulkan9"}, {"split": "1,2,3"}])
def test_cards_that_are_not_known_are_left_to_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]
) -> None:
    path = str(write_sketch(tmp_path / "m.gguf", REAL["qwen3-8b"]))
    found = on(TWO_CARDS, monkeypatch, dataclasses.replace(RunOptions(target=path), **said))
    assert found.candidate is None and found.fits


def test_without_a_target_everything_is_asked_once(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled(hub, "qwen3-8b")
    pulled(hub, "qwen3-0.6b")
    asked: list[MachineSpec] = []

    def probed(known: Mapping[str, KnownMachine]) -> MachineSpec:
        asked.append(SMALL_CARD)
        return SMALL_CARD

    monkeypatch.setattr(module, "this_machine", probed)
    found = autoplan(RunOptions())
    assert len(asked) == 1
    assert found.gpu_layers is not None and "layers on the GPU" in found.note
    named = on(SMALL_CARD, monkeypatch, RunOptions(target=found.target))
    plans = [make_plan(each, on_progress=lambda fraction, what: None) for each in (found, named)]
    assert plans[0] == plans[1]


def test_a_file_that_cannot_be_read_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"no model")
    with pytest.raises(ModelFileError):
        on(CPU_ONLY, monkeypatch, RunOptions(target=str(path)))


# ---- what reads images, where it merely lies beside its model
@pytest.fixture
def seeing(hub: Path) -> str:
    """A model of 8.1 GiB whose projector computes in half a GiB."""
    target = pulled(hub, "qwen3-8b")
    width = REAL["qwen3-8b"].n_embd
    eyes = projector_bytes(width=width, kind="qwen3vl_merger", tensor="mm.2.bias", shape=(width,))
    next(hub.rglob("snapshots/*")).joinpath("mmproj-F16.gguf").write_bytes(eyes)
    return target


@pytest.mark.parametrize(("gib", "sees"), [(8, False), (9.5, False), (11, False), (12, True), (14, True), (24, True)])
def test_images_are_done_without_before_layers_leave_the_card_or_context_is_short(
    seeing: str, monkeypatch: pytest.MonkeyPatch, gib: float, sees: bool
) -> None:
    found = on(with_card(gib), monkeypatch, RunOptions(target=seeing, draft="ngram"))
    assert found.without_projector == (not sees)
    assert ("no images: not enough memory" in found.note) == (not sees)
    plan = make_plan(found, on_progress=lambda fraction, what: None)
    assert (plan.projector is not None) == sees
