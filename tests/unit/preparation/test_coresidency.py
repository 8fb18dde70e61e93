"""Several models of one server on other machines: which stay loaded together, and what that costs the first one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doubles.embedding_models import write_bert
from doubles.projectors import projector_bytes
from doubles.random_models import TargetShape, write_target
from doubles.weightless_models import REAL, write_sketch

from eaglelocal.catalog.catalog import CPU, CUDA
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import ModelFileError
from eaglelocal.memory.budget import RAM, subtract_margins
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec
from eaglelocal.preparation import autoplan as autoplan_module
from eaglelocal.preparation import coresidency
from eaglelocal.preparation.autoplan import CTX_KEPT, autoplan
from eaglelocal.preparation.coresidency import EvictionPolicy, estimate_needs, fit, plan_together
from eaglelocal.preparation.decision import Decision, make_plan

GIB, GIGA = 2**30, 10**9
On = Callable[[MachineSpec], None]


def machine_with(card_gib: float, ram_gib: float = 64) -> MachineSpec:
    host = DeviceSpec(
        name=RAM, label="RAM", kind=CPU, total_bytes=None, free_bytes=int(ram_gib * GIB), bytes_s=40 * GIGA, flops=1e11
    )
    card = DeviceSpec(
        name="CUDA0",
        label="a card",
        kind=CUDA,
        total_bytes=None,
        free_bytes=int(card_gib * GIB),
        bytes_s=900 * GIGA,
        flops=7e13,
    )
    return MachineSpec(name="a machine", host=host, gpus=(card,) if card_gib else ())


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Headers of models as large as real ones, an encoder, and a decoder that pools."""
    folder = tmp_path_factory.mktemp("files")
    found = {name: write_sketch(folder / f"{name}.gguf", REAL[name]) for name in ("qwen3-8b", "qwen3-0.6b")}
    found["bert"] = write_bert(folder / "bert.gguf")
    found["pools"] = write_target(folder / "pools.gguf", TargetShape(n_vocab=50_000, n_ctx=32768), pooling=3)
    yield {name: str(path) for name, path in found.items()}


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> On:
    def machine(spec: MachineSpec) -> None:
        for module in (autoplan_module, coresidency):
            monkeypatch.setattr(module, "this_machine", lambda known: spec)

    return machine


def settled(first: str, *others: str, most: int | None = None) -> tuple[Decision, Decision, dict[str, Decision]]:
    """The first one alone, beside the others, and the others."""
    alone = autoplan(RunOptions(target=first, parallel=1))
    return alone, *plan_together(
        alone, {name: autoplan(RunOptions(target=name, parallel=1)) for name in others}, most=most
    )


def plans_of(*all_of_it: Decision) -> dict[str, Plan]:
    found = (make_plan(one, on_progress=lambda fraction, what: None) for one in all_of_it)
    return {str(plan.target): plan for plan in found}


def traffic(*all_of_it: Decision, most: int | None = None) -> EvictionPolicy:
    return EvictionPolicy(plans_of(*all_of_it), most=most)


def test_a_model_leaves_room_for_an_embedding_model_and_loses_little(files: dict[str, str], on: On) -> None:
    on(machine_with(13))
    alone, first, others = settled(files["qwen3-8b"], files["pools"])
    assert alone.ctx is not None and first.ctx is not None
    assert CTX_KEPT <= first.ctx <= alone.ctx
    assert (first.gpu_layers, others[files["pools"]].ctx) == (alone.gpu_layers, None)
    made = traffic(first, *others.values())
    assert made.victims(files["pools"], [files["qwen3-8b"]]) == []
    assert made.victims(files["qwen3-8b"], [files["pools"]]) == []


def test_without_that_it_would_have_taken_all(files: dict[str, str], on: On) -> None:
    """The test above would show nothing if both fitted anyway."""
    on(machine_with(13))
    alone, _, others = settled(files["qwen3-8b"], files["pools"])
    assert traffic(alone, *others.values()).victims(files["pools"], [files["qwen3-8b"]]) == [files["qwen3-8b"]]


def test_two_that_talk_stay_where_both_fit_as_they_are(files: dict[str, str], on: On) -> None:
    on(machine_with(24))
    _, first, others = settled(files["qwen3-8b"], files["qwen3-0.6b"])
    second = others[files["qwen3-0.6b"]]
    assert first.gpu_layers is None and second.gpu_layers is None
    assert (first.ctx, second.ctx) >= (CTX_KEPT, CTX_KEPT)
    assert fit([first.needs, second.needs], subtract_margins(machine_with(24).free_memory))
    assert traffic(first, second).victims(files["qwen3-0.6b"], [files["qwen3-8b"]]) == []


def test_what_would_cost_the_first_one_much_takes_turns_with_it(files: dict[str, str], on: On) -> None:
    on(machine_with(10.5))
    alone, first, others = settled(files["qwen3-8b"], files["qwen3-0.6b"])
    second = others[files["qwen3-0.6b"]]
    assert first == alone
    assert second == autoplan(RunOptions(target=files["qwen3-0.6b"], parallel=1))
    assert traffic(first, second).victims(files["qwen3-0.6b"], [files["qwen3-8b"]]) == [files["qwen3-8b"]]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model beside which lies what makes images readable, of half a GiB."""
    folder, width = tmp_path_factory.mktemp("seeing"), REAL["qwen3-8b"].n_embd
    eyes = projector_bytes(width=width, kind="qwen3vl_merger", tensor="mm.2.bias", shape=(width,))
    (folder / "mmproj-F16.gguf").write_bytes(eyes)
    return str(write_sketch(folder / "m.gguf", REAL["qwen3-8b"]))


@pytest.mark.parametrize(("card", "stays"), [(13.75, False), (14.25, True)])
def test_a_model_keeps_its_projector_beside_another(
    files: dict[str, str], seeing: str, on: On, card: float, stays: bool
) -> None:
    on(machine_with(card))
    alone, first, others = settled(seeing, files["qwen3-0.6b"])
    assert not (alone.without_projector or first.without_projector)
    leaving = traffic(first, *others.values()).victims(files["qwen3-0.6b"], [seeing])
    assert leaving == ([] if stays else [seeing])


@pytest.mark.parametrize(("card", "beside"), [(10, "bert"), (24, "bert"), (14, "pools")])
def test_windows_stay_as_small_as_they_were_planned(
    files: dict[str, str], on: On, tmp_path: Path, card: float, beside: str
) -> None:
    """Loaded with whole ones, where they just fitted, the model took turns with what it had left room for."""
    gemma = str(write_sketch(tmp_path / "gemma.gguf", REAL["gemma-3-27b"]))
    on(machine_with(card, 128))
    alone, first, others = settled(gemma, files[beside])
    assert (plans_of(alone)[gemma].swa_full, plans_of(first)[gemma].swa_full) == (None, False)
    assert traffic(first, *others.values()).victims(files[beside], [gemma]) == []


def test_an_embedding_model_that_comes_first_has_its_room_too(files: dict[str, str], on: On) -> None:
    on(machine_with(13))
    _, first, others = settled(files["pools"], files["qwen3-8b"])
    made = traffic(first, *others.values())
    assert made.victims(files["qwen3-8b"], [files["pools"]]) == []
    assert (others[files["qwen3-8b"]].ctx or 0) >= CTX_KEPT


def test_losses_of_the_first_model_are_reported(files: dict[str, str], on: On) -> None:
    on(machine_with(13.75))
    alone, first, _ = settled(files["qwen3-8b"], files["qwen3-0.6b"])
    assert (alone.kv_type, first.kv_type) == ("f16", "q8_0")
    assert (alone.note, first.note) == ("", "a cache of q8_0, because memory is short")


def test_one_at_a_time_is_planned_as_if_it_were_alone(files: dict[str, str], on: On) -> None:
    on(machine_with(13))
    alone, first, others = settled(files["qwen3-8b"], files["pools"], files["qwen3-0.6b"], most=1)
    assert first == alone
    assert others[files["qwen3-0.6b"]] == autoplan(RunOptions(target=files["qwen3-0.6b"], parallel=1))
    made = traffic(first, *others.values(), most=1)
    assert made.victims(files["pools"], [files["qwen3-8b"]]) == [files["qwen3-8b"]]


def test_more_than_wanted_leave_even_where_there_is_room(files: dict[str, str], on: On) -> None:
    on(machine_with(0))
    names = [files["qwen3-0.6b"], files["bert"]]
    made = traffic(*(Decision(RunOptions(target=name, parallel=1)) for name in (*names, files["pools"])), most=2)
    assert made.victims(files["pools"], names) == names[:1]
    assert made.victims(files["pools"], names[:1]) == []


@pytest.mark.parametrize("name", ["bad.gguf", "none.gguf"])
def test_another_model_that_cannot_be_read_is_an_error_at_once(
    files: dict[str, str], on: On, tmp_path: Path, name: str
) -> None:
    on(machine_with(24))
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    with pytest.raises(ModelFileError):
        settled(files["qwen3-8b"], str(tmp_path / name))


def test_an_embedding_model_keeps_the_usual_context_on_a_card(files: dict[str, str], on: On) -> None:
    """Each pass has rows for a whole context: 32768 of them would take gigabytes."""
    on(machine_with(24))
    found = autoplan(RunOptions(target=files["pools"], parallel=4))
    assert found.ctx is None
    (plan,) = plans_of(found).values()
    assert (plan.task, plan.n_ctx) == (ModelTask.EMBEDDING, 4096)


@pytest.mark.parametrize("card", [0.0, 24.0])
@pytest.mark.parametrize("name", ["bert", "pools"])
def test_an_embedding_model_lies_where_it_computes(files: dict[str, str], on: On, card: float, name: str) -> None:
    spec = machine_with(card)
    on(spec)
    (plan,) = plans_of(autoplan(RunOptions(target=files[name]))).values()
    held = estimate_needs(plan, spec.free_memory)
    largest = max(held, key=lambda one: one.num_bytes)
    assert largest.device == (RAM if not card else "CUDA0") or name == "bert"
    at_host = estimate_needs(dataclasses.replace(plan, gpu_layers=0), spec.free_memory)
    assert {one.device for one in at_host if one.num_bytes} == {RAM}
