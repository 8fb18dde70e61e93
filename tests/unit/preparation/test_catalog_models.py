"""Catalog entries that are on disk: exact sizes, nothing to download, and measured costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.weightless_models import REAL, Sketch, write_sketch

from eaglelocal import locations
from eaglelocal.backend.llama_library import BUILD
from eaglelocal.catalog.catalog import CPU, Catalog, load_catalog
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import RunOptions
from eaglelocal.gguf.model_shape import describe_shape, read_shape
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.pull_plan import remember_draft
from eaglelocal.loading import calibration_store
from eaglelocal.memory.budget import RAM
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec
from eaglelocal.planning.options import ModelOption, make_catalog_options, make_draft_option
from eaglelocal.planning.plan_models import plan_models
from eaglelocal.preparation.models import _mark_draft, find_models, list_entry_options, read_measured_costs
from eaglelocal.probe.machine import Cpu, LlamaCpp, Machine, MainMemory
from eaglelocal.speculation.costs.step_costs import StepCosts

COMMIT = "a" * 40
UNKNOWN = "e3-qwen3-14b-redhat"
TARGET_REPO, DRAFT_REPO = "Qwen/Qwen3-8B-GGUF", "unsloth/Qwen3-0.6B-GGUF"
EIGHT, SMALL = replace(REAL["qwen3-8b"], type="Q4_K"), REAL["qwen3-0.6b"]
MACHINE = Machine(
    gpus=(),
    unified=None,
    cpu=Cpu(name="a processor", usable_threads=8),
    memory=MainMemory(available_bytes=32 * 2**30),
    cache_free_bytes=None,
    llama_cpp=LlamaCpp(version="0.3.36", backends=("cpu",)),
)
HOST = DeviceSpec(name=RAM, label="RAM", kind=CPU, total_bytes=None, free_bytes=32 * 2**30, bytes_s=40e9, flops=1e12)
HERE = MachineSpec(name="this one", host=HOST, probed=MACHINE)


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(user_folder=Path("/nonexistent"))


def pulled(hub: Path, repo: str, stem: str, sketch: Sketch) -> Path:
    folder = hub / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return write_sketch(snapshot / f"{stem}.gguf", sketch)


def options(catalog: Catalog, id: str = "qwen3-8b", quant: str | None = None) -> dict[str, ModelOption]:
    return {option.quant: option for option in list_entry_options(catalog.target(id), catalog, quant=quant)}


def test_what_is_on_disk_is_exact_and_need_not_be_fetched(hub: Path, catalog: Catalog) -> None:
    header = read_header(pulled(hub, TARGET_REPO, "Qwen3-8B-Q4_K_M", EIGHT))
    found = options(catalog)
    here = found["Q4_K_M"]
    assert (here.is_here, here.reference, here.target) == (True, "qwen3-8b:Q4_K_M", "qwen3-8b")
    assert here.shape == read_shape(header)
    assert here.notes == () and not here.is_unseen
    others = {quant: option for quant, option in found.items() if quant != "Q4_K_M"}
    known = {option.quant: option for option in make_catalog_options(catalog.target("qwen3-8b"), catalog)}
    assert others == {quant: option for quant, option in known.items() if quant != "Q4_K_M"}
    assert {candidate.id for candidate in here.drafts} == {candidate.id for candidate in known["Q4_K_M"].drafts}


def test_a_quantization_that_the_catalogue_does_not_list(hub: Path, catalog: Catalog) -> None:
    pulled(hub, TARGET_REPO, "Qwen3-8B-Q4_0", replace(EIGHT, type="Q4_0"))
    assert options(catalog, quant="q4_0").keys() == {"Q4_0"}
    assert options(catalog)["Q4_0"].reference == "qwen3-8b:Q4_0"
    assert options(catalog)["Q4_0"].quality_b < options(catalog)["Q4_K_M"].quality_b
    assert not options(catalog, quant="Q5_0")


def test_a_dynamic_one_that_stands_for_a_listed_one_counts_once(hub: Path, catalog: Catalog) -> None:
    pulled(hub, TARGET_REPO, "Qwen3-8B-UD-Q4_K_M", EIGHT)
    assert [quant for quant, option in options(catalog).items() if option.is_here] == ["Q4_K_M"]
    assert options(catalog, quant="UD-Q4_K_M").keys() == {"UD-Q4_K_M"}
    pulled(hub, TARGET_REPO, "Qwen3-8B-Q4_K_M", EIGHT)
    assert {quant for quant, option in options(catalog).items() if option.is_here} == {"Q4_K_M", "UD-Q4_K_M"}


def test_a_draft_that_does_not_fit_is_not_at_hand(hub: Path, catalog: Catalog) -> None:
    pulled(hub, TARGET_REPO, "Qwen3-8B-Q4_K_M", EIGHT)
    pulled(hub, DRAFT_REPO, "Qwen3-0.6B-Q8_0", replace(SMALL, n_vocab=SMALL.n_vocab - 5000))
    candidate = next(candidate for candidate in options(catalog)["Q4_K_M"].drafts if candidate.id == "plain-qwen3-0.6b")
    assert not candidate.is_here


def test_a_draft_that_auto_takes_is_the_catalogues_own(hub: Path, catalog: Catalog) -> None:
    pulled(hub, TARGET_REPO, "Qwen3-8B-Q4_K_M", EIGHT)
    header = read_header(pulled(hub, DRAFT_REPO, "Qwen3-0.6B-Q8_0", SMALL))

    def draft() -> dict[str, object]:
        candidate = next(
            candidate for candidate in options(catalog)["Q4_K_M"].drafts if candidate.id == "plain-qwen3-0.6b"
        )
        assert candidate.shape == read_shape(header)
        return {"here": candidate.is_here, "named": candidate.needs_naming}

    assert draft() == {"here": True, "named": True}  # the two were not asked for together
    file = locations.pulled_drafts_file()
    remember_draft(file, target_repo=TARGET_REPO, draft_repo=DRAFT_REPO, draft_tag="Q8_0")
    assert draft() == {"here": True, "named": False}
    assert options(catalog)["Q4_K_M"].drafts[0].id == "plain-qwen3-0.6b"


MTP_REPO, PLAIN_REPO = "unsloth/Qwen3.6-27B-MTP-GGUF", "unsloth/Qwen3.6-27B-GGUF"
HYBRID = replace(REAL["qwen3.6-27b"], type="Q4_K")
AHEAD = replace(HYBRID, n_layer=HYBRID.n_layer + 1, keys=HYBRID.keys | {"nextn_predict_layers": 1})


def test_a_model_that_drafts_for_itself_is_at_hand_where_its_file_has_the_layer(hub: Path, catalog: Catalog) -> None:
    pulled(hub, PLAIN_REPO, "Qwen3.6-27B-Q4_K_M", HYBRID)
    plain = options(catalog, "qwen3.6-27b")["Q4_K_M"]
    drafts = {candidate.id: candidate for candidate in plain.drafts}
    assert plain.is_here and not drafts["mtp-qwen3.6-27b"].is_here
    header = read_header(pulled(hub, MTP_REPO, "Qwen3.6-27B-Q4_K_M", AHEAD))
    whole = options(catalog, "qwen3.6-27b")["Q4_K_M"]
    first = whole.drafts[0]
    assert (first.id, first.kind, first.is_here) == ("mtp-qwen3.6-27b", "mtp", True)
    assert first.acceptance == drafts["mtp-qwen3.6-27b"].acceptance
    assert first.shape == describe_shape(MtpInfo.from_header(header)) and whole.shape == read_shape(header)
    guessed = drafts["mtp-qwen3.6-27b"].shape
    assert guessed is not None
    assert guessed.weights_bytes == pytest.approx(first.shape.weights_bytes, rel=0.2)


def test_a_file_that_cannot_be_read_leaves_the_catalogues_figures(hub: Path, catalog: Catalog) -> None:
    path = pulled(hub, TARGET_REPO, "Qwen3-8B-Q4_K_M", EIGHT)
    path.write_bytes(b"GGUF and then nothing")
    assert tuple(options(catalog).values()) == tuple(make_catalog_options(catalog.target("qwen3-8b"), catalog))


def measure(path: Path, seconds: float, **plan: object) -> None:
    """As an engine leaves it behind."""
    costs = StepCosts()
    costs.calibrate({rows: [seconds * (1 + rows / 10)] * 5 for rows in (1, 2, 4, 8)})
    asked = Plan(target=path, target_label="m", n_ctx=4096, **plan)  # type: ignore[arg-type]
    key = calibration_store.make_cost_key(
        asked, MACHINE, read_header(path), None, threads=8, unified=True, library=BUILD
    )
    assert calibration_store.save(key, costs.state())


def test_what_was_measured_here_decides(hub: Path, catalog: Catalog) -> None:
    slow = pulled(hub, TARGET_REPO, "Qwen3-8B-Q4_K_M", EIGHT)
    pulled(hub, DRAFT_REPO, "Qwen3-0.6B-Q8_0", SMALL)
    both = [*options(catalog, quant="Q4_K_M").values(), *options(catalog, "qwen3-0.6b", quant="Q8_0").values()]

    def best(spec: MachineSpec = HERE) -> tuple[str, bool]:
        chosen = plan_models(both, spec, RunOptions(), measured=read_measured_costs(both, spec, None)).chosen
        assert chosen is not None
        return chosen.option.reference, chosen.prediction.is_measured

    assert best() == ("qwen3-8b:Q4_K_M", False)
    measure(slow, 2.0, gpu_layers=0)  # other places are another curve
    assert best() == ("qwen3-8b:Q4_K_M", False)
    measure(slow, 2.0)
    assert best() == ("qwen3-0.6b:Q8_0", False)
    assert best(replace(HERE, probed=None)) == ("qwen3-8b:Q4_K_M", False)  # a machine of the catalog


@pytest.mark.parametrize(
    ("measured", "asked", "stands_for_it"),
    [
        ("f16", None, True),
        ("f16", "q8_0", True),
        ("q8_0", "f16", True),
        ("f16", "q5_1", False),
        ("f16", "q8_0,q5_1", False),
        ("q5_1", "q5_1", True),
        ("q5_1", None, False),
    ],
)
def test_costs_count_for_the_cache_with_which_they_were_measured(
    hub: Path, catalog: Catalog, measured: str, asked: str | None, stands_for_it: bool
) -> None:
    measure(pulled(hub, TARGET_REPO, "Qwen3-8B-Q4_K_M", EIGHT), 2.0, kv_type=measured)
    found = read_measured_costs(options(catalog, quant="Q4_K_M").values(), HERE, asked)
    assert bool(found) == stands_for_it


def test_a_draft_that_is_here_is_planned_whatever_is_known_of_others(hub: Path) -> None:
    shape = read_shape(read_header(pulled(hub, DRAFT_REPO, "Qwen3-0.6B-Q8_0", SMALL)))
    here = _mark_draft(replace(make_draft_option("a", shape), is_here=False, better_known="b"), shape)
    assert here.is_here and not here.better_known


def test_a_draft_of_unknown_acceptance_is_taken_by_name_only(catalog: Catalog) -> None:
    """If the acceptance of another of its kind is reported: what is assumed of it would beat that."""
    options = RunOptions(target="qwen3-14b:Q4_K_M")
    (asked,), (unasked,) = (find_models(one, catalog) for one in (replace(options, draft=UNKNOWN), options))
    assert [draft.id for draft in asked.drafts] == [UNKNOWN]
    assert UNKNOWN not in [draft.id for draft in unasked.drafts]
    (reason,) = [one.reason for one in unasked.unusable if one.id == UNKNOWN]
    assert reason == "its acceptance is not reported, and that of e3-qwen3-14b-angelslim is"
