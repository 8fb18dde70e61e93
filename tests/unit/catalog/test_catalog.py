"""The profiles as shipped against figures of public logs, and how strictly people's own files are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.catalog.catalog import Catalog, load
from eaglelocal.errors import UsageError

NOWHERE = Path("/nonexistent")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load(user_folder=NOWHERE)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


MACHINE = """
[mine]
name = "My box"
kind = "cuda"
memory_mib = 24576
bandwidth_gb_s = 900
ram_gib = 64
source = "its box"
confidence = "page"
"""


def test_what_is_named_is_there(catalog: Catalog) -> None:
    for target in catalog.targets.values():
        assert all(id in catalog.drafts for id in target.drafts), target.id
    for draft in catalog.drafts.values():
        assert all(id == "*" or id in catalog.targets for id in draft.targets), draft.id
    for target in catalog.targets.values():  # a lookup needs no model, so every target has something
        assert any(draft.kind == "ngram" for draft in catalog.drafts_for(target))


def test_every_figure_has_a_source(catalog: Catalog) -> None:
    entries = [*catalog.targets.values(), *catalog.drafts.values(), *catalog.machines.values()]
    assert all(entry.source and entry.confidence in ("page", "inferred") for entry in entries)
    quantizations = [each for target in catalog.targets.values() for each in target.quantizations.values()]
    assert {each.confidence for each in quantizations} == {"page", "inferred"}
    assert all(each.num_bytes > 10**8 for each in quantizations)


@pytest.mark.parametrize(
    "name",
    [
        *("rtx-3060", "rtx-3090", "rtx-4090", "rtx-5090", "a4000", "a5000", "a6000", "rtx-6000-ada", "rtx-pro-6000"),
        *("a100-40gb", "a100-80gb", "h100-pcie", "h100-sxm", "2x-rtx-3090", "2x-rtx-4090"),
        *("cuda-8gb", "cuda-12gb", "cuda-16gb", "cuda-24gb", "m1-8gb", "m2-16gb", "m2-max-32gb", "m2-max-64gb"),
        *("m3-ultra-512gb", "m4-max-128gb", "cpu-16gb", "cpu-32gb", "cpu-64gb", "cpu-ddr5-6000-32gb"),
        *("RTX 3090", "rtx_3090", "rtx-a6000", "h100"),  # as people write them
    ],
)
def test_machines_by_name(catalog: Catalog, name: str) -> None:
    assert catalog.machine(name).memory_bytes >= 8 * 2**30


def test_a_wrong_name_gets_the_nearest(catalog: Catalog) -> None:
    with pytest.raises(UsageError) as wrong:
        catalog.machine("rtx3090")
    assert "rtx-3090" in wrong.value.hint
    with pytest.raises(UsageError) as unknown:
        catalog.machine("toaster")
    assert "cpu-16gb" in unknown.value.hint
    with pytest.raises(UsageError) as target:
        catalog.target("qwen3-8x")
    assert "qwen3-8b" in target.value.hint


def test_ours_and_yours(tmp_path: Path) -> None:
    write(tmp_path, "machines/box.toml", MACHINE)
    write(tmp_path, "machines/worn.toml", MACHINE.replace("[mine]", "[rtx-3090]").replace("900", "800"))
    machines = load(user_folder=tmp_path).machines
    assert (machines["mine"].ram_bytes, machines["mine"].num_gpus) == (64 * 2**30, 1)
    assert machines["rtx-3090"].bandwidth_gb_s == 800.0
    assert "rtx-4090" in machines


@pytest.mark.parametrize(
    ("line", "instead", "words"),
    [
        ("memory_mib = 24576", "memory_mb = 24576", ("lacks the key mine.memory_mib",)),
        ("ram_gib = 64", "ram_gb = 64", ("unknown key mine.ram_gb", "ram_gib")),
        ('name = "My box"', "name = 3", ("mine.name must be a text",)),
        ("bandwidth_gb_s = 900", 'bandwidth_gb_s = "fast"', ("mine.bandwidth_gb_s must be a number",)),
        ("bandwidth_gb_s = 900", "bandwidth_gb_s = -1", ("mine.bandwidth_gb_s must be a number",)),
        ("bandwidth_gb_s = 900", "bandwidth_gb_s = nan", ("mine.bandwidth_gb_s must be a number",)),
        ("bandwidth_gb_s = 900", "bandwidth_gb_s = 0", ("no bandwidth",)),
        ("memory_mib = 24576", "memory_mib = true", ("mine.memory_mib must be a whole number",)),
        ('kind = "cuda"', 'kind = "steam"', ("mine.kind must be one of cuda",)),
        ('kind = "cuda"', 'kind = ["cuda"]', ("mine.kind must be a text",)),
        ("[mine]", "mine = 1\n[other]", ("mine must be a table",)),
        ("[mine]", "[mine", ("not valid TOML",)),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, line: str, instead: str, words: tuple[str, ...]) -> None:
    path = write(tmp_path, "machines/box.toml", MACHINE.replace(line, instead))
    with pytest.raises(UsageError) as wrong:
        load(user_folder=tmp_path)
    said = f"{wrong.value.message} {wrong.value.hint}"
    assert str(path) in said
    assert all(word in said for word in words), said


def test_a_draft_cannot_give_more_than_it_drafts(tmp_path: Path) -> None:
    text = """
        [mine]
        kind = "eagle3"
        targets = ["qwen3-8b"]
        num_draft_tokens = 3
        acceptance_lengths = [[2, 3.5]]
        source = "me"
        confidence = "page"
    """
    write(tmp_path, "drafts/mine.toml", text)
    with pytest.raises(UsageError, match=r"2 drafted tokens cannot give 3\.5 a step"):
        load(user_folder=tmp_path)


def test_nested_keys_are_named_whole(tmp_path: Path, catalog: Catalog) -> None:
    from eaglelocal import locations

    text = (locations.profiles_dir() / "targets" / "qwen3-8b.toml").read_text(encoding="utf-8")
    write(tmp_path, "targets/mine.toml", text.replace("head_dim = 128", "head_dims = 128"))
    with pytest.raises(UsageError, match=r"lacks the key shape\.full_attention\.head_dim"):
        load(user_folder=tmp_path)
    write(tmp_path, "targets/mine.toml", text.replace("layers = 36", "layers = 37"))
    with pytest.raises(UsageError, match="37 of 36 layers"):
        load(user_folder=tmp_path)
