"""The shipped profiles agree with published logs, and users' own files are read strictly."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from eaglelocal import locations
from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.draft_entries import BLOCKS, EAGLE, find_unsupported_reason
from eaglelocal.catalog.estimated_shapes import compute_draft_sizes
from eaglelocal.catalog.near_names import squeeze
from eaglelocal.errors import UsageError
from eaglelocal.gguf.architectures import KNOWN_ARCHITECTURES

NOWHERE = Path("/nonexistent")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(user_folder=NOWHERE)


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
host_bandwidth_gb_s = 80
"""


DRAFT = """
[mine]
kind = "eagle3"
targets = ["qwen3-8b"]
num_draft_tokens = 3
acceptance_lengths = [[2, 3.5]]
source = "me"
confidence = "page"
"""


def test_what_is_named_is_there(catalog: Catalog) -> None:
    for target in catalog.targets.values():
        assert all(id in catalog.drafts and catalog.drafts[id].serves(target.id) for id in target.drafts), target.id
    for draft in catalog.drafts.values():
        assert all(id == "*" or id in catalog.targets for id in draft.targets), draft.id
    for target in catalog.targets.values():  # a lookup needs no model, so every target has something
        assert any(draft.kind == "ngram" for draft in catalog.drafts_for(target))


def test_what_is_pulled_is_what_is_described(catalog: Catalog) -> None:
    """A pull takes the first repository that has the quantization; `released` and `files` tell of one model."""
    for target in catalog.targets.values():
        first = re.sub("(-MTP)?-GGUF(-Q4_K_M)?$", "", target.repos[0].partition("/")[2], flags=re.IGNORECASE).lower()
        described = {re.split(r"-(?:UD-)?\{", file)[0].lower() for file in target.files}
        assert {first, first.partition("_")[2]} & described, target.id
    repos = [repo.lower() for target in catalog.targets.values() for repo in target.repos]
    assert [repo for repo in repos if repos.count(repo) > 1] == []


@pytest.mark.parametrize(
    ("target", "trained_for"),
    [
        ("qwen3-30b-a3b", "Qwen3-a3B|qwen3_30b_moe|Qwen3-30B-A3B-speculator"),
        ("qwen3-30b-a3b-2507", "30B-A3B-Instruct-2507"),
        ("qwen3-coder-30b-a3b", "Coder-30B-A3B"),
        ("qwen3-4b", "Qwen3-4B(?!-Instruct)|qwen3_4b"),
    ],
)
def test_heads_are_offered_for_the_model_that_they_were_trained_for(
    catalog: Catalog, target: str, trained_for: str
) -> None:
    heads = [each for each in catalog.drafts_for(catalog.target(target)) if each.kind in (EAGLE, *BLOCKS)]
    assert heads and all(re.search(trained_for, head.repo or "") for head in heads)
    assert all(head.targets == (target,) for head in heads)


def test_a_head_that_no_graph_runs_says_why(catalog: Catalog) -> None:
    target = catalog.target("gpt-oss-20b")
    reasons = {each.id: find_unsupported_reason(each, target.outline) for each in catalog.drafts_for(target)}
    assert "no GGUF of it" in reasons["dflash-gpt-oss-20b"]
    assert not any(reasons[id] for id in ("peagle-gpt-oss-20b", "e3-gpt-oss-20b-redhat", "e31-gpt-oss-20b-specdrift"))
    next_model = catalog.target("qwen3-next-80b").outline
    assert "undo rejected tokens" in find_unsupported_reason(catalog.drafts["mtp-hy3"], next_model)


def test_computed_sizes_are_those_of_published_heads(catalog: Catalog) -> None:
    """Where the size of a head beside a dense target is stated, the computed one is at most 10 % away."""
    ratios = []
    for draft in catalog.drafts.values():
        target = catalog.targets.get(draft.targets[0])
        if draft.kind == EAGLE and draft.parameters_m and target and target.outline.experts is None:
            computed = compute_draft_sizes(replace(draft, sizes={}), target.outline)
            ratios.append((computed.parameters_m or 0.0) / draft.parameters_m)
            assert computed.kv_bytes_per_token == draft.kv_bytes_per_token
    assert len(ratios) >= 19 and all(0.9 <= ratio <= 1.1 for ratio in ratios)
    for target in catalog.targets.values():
        for draft in catalog.drafts_for(target):
            assert draft.sizes or draft.is_in_target or draft.kind not in (EAGLE, *BLOCKS), draft.id


def test_models_whose_files_hold_an_mtp_layer_draft_with_it(catalog: Catalog) -> None:
    for draft in (each for each in catalog.drafts.values() if each.is_in_target):
        for target in map(catalog.target, draft.targets):
            assert draft.id in target.drafts, (draft.id, target.id)
            assert not find_unsupported_reason(draft, target.outline)


def test_llama_cpp_can_load_every_target(catalog: Catalog) -> None:
    assert {target.outline.architecture for target in catalog.targets.values()} <= KNOWN_ARCHITECTURES


def test_files_of_eight_bits_have_eight_bits_a_parameter(catalog: Catalog) -> None:
    """8.5 in llama.cpp's blocks: whoever counts the parameters of an image encoder too finds fewer."""
    for target in catalog.targets.values():
        if file := target.quantization("Q8_0"):
            bits = 8 * file.num_bytes / (target.outline.parameters_b * 1e9)
            assert 8.1 < bits < 8.9 or target.id == "gpt-oss-20b", (target.id, bits)


def test_every_target_states_its_release(catalog: Catalog, tmp_path: Path) -> None:
    for target in catalog.targets.values():
        assert target.released and target.field_confidence["released"] in ("page", "inferred"), target.id
    text = (locations.profiles_dir() / "targets" / "qwen3-8b.toml").read_text(encoding="utf-8")
    write(tmp_path, "targets/mine.toml", text.replace('released = "2025-04"\n', ""))
    assert load_catalog(user_folder=tmp_path).target("mine").released == ""  # a person need not know it


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
        *("rtx-3080", "rtx-4060-ti-16gb", "rtx-4070", "rtx-5080", "rx-7900-xtx", "strix-halo-128gb", "dgx-spark"),
        *("m5-16gb", "m5-pro-48gb", "m5-max-128gb", "rtx-2080-ti", "rtx-4060-laptop", "rtx-5060", "rx-7900-gre"),
        *("rx-9060-xt-8gb", "radeon-780m", "radeon-890m", "arc-b580", "arc-140v", "2x-rtx-3060", "2x-rtx-5060-ti"),
        *("RTX 3090", "rtx_3090", "rtx-a6000", "h100", "rtx-4060-ti", "strix-halo"),  # as people write them
        *("arc-pro-b70", "rtx-pro-4000", "v100-32gb", "p40", "2x-p40", "3x-rtx-3090", "m5-ultra-256gb"),
    ],
)
def test_machines_by_name(catalog: Catalog, name: str) -> None:
    assert catalog.machine(name).memory_bytes >= 8 * 2**30


# as people write them, and which machine that is: cards, RAM in GiB
SPELLINGS = [
    ("2x3090", "2x-rtx-3090", 2, 64),
    ("3090x2", "2x-rtx-3090", 2, 64),
    ("2x-rtx-3090", "2x-rtx-3090", 2, 64),
    ("RTX 3090 x4", "4x-rtx-3090", 4, 64),
    ("3 x 3090", "3x-rtx-3090", 3, 64),
    ("2x7900xtx", "2x-rx-7900-xtx", 2, 64),
    ("rtx3090", "rtx-3090", 1, 32),
    ("3090", "rtx-3090", 1, 32),
    ("NVIDIA GeForce RTX 3090", "rtx-3090", 1, 32),
    ("3090 ti", "rtx-3090-ti", 1, 32),
    ("b70", "arc-pro-b70", 1, 32),
    ("V100", "v100-32gb", 1, 32),
    ("m4 max 64", "m4-max-64gb", 0, 64),
    ("M4 Max 64GB", "m4-max-64gb", 0, 64),
    ("m4-max", "m4-max-36gb", 0, 36),  # the smallest
    ("4060ti", "rtx-4060-ti-8gb", 1, 16),
    ("5060ti", "rtx-5060-ti-8gb", 1, 16),
    ("780m", "radeon-780m-16gb", 0, 16),
    ("rtx pro 4000 24", "rtx-pro-4000", 1, 32),
    ("rtx 4090 mobile", "rtx-4090-laptop", 1, 32),
    ("rtx-3090+rtx-3060", "rtx-3090+rtx-3060", 2, 64),
    ("rtx-3060+rtx-3090", "rtx-3090+rtx-3060", 2, 64),  # the fastest first
    ("2x3090 + RTX 3090 Ti", "rtx-3090-ti+2x-rtx-3090", 3, 64),
    ("RTX 3090 Ti + 2x3090", "rtx-3090-ti+2x-rtx-3090", 3, 64),
]


@pytest.mark.parametrize(("written", "id", "num_cards", "ram_gib"), SPELLINGS)
def test_a_machine_is_found_however_it_is_spelt(
    catalog: Catalog, written: str, id: str, num_cards: int, ram_gib: int
) -> None:
    machine = catalog.machine(written)
    cards = sum(each.num_gpus for each in (machine, *machine.others))
    assert (machine.id, cards, machine.ram_bytes / 2**30) == (id, num_cards, ram_gib)


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("rtx-3091", "unknown machine 'rtx-3091'", "did you mean rtx-3090 or "),
        ("foo", "unknown machine 'foo'", "`eaglelocal plan --machine list` shows all, such as rtx-3090"),
        ("2x3091", "unknown machine '2x3091'", "did you mean 2x-rtx-3090?"),
        ("m4 max 65", "unknown machine 'm4 max 65'", "did you mean m4-max-64gb or "),
        ("rtx-3090+toaster", "unknown machine 'toaster'", "rtx-3090+rtx-3060"),
        ("rtx-3090+m4-max", "the GPU of Apple M4 Max, 36 GB works in main memory and", "rtx-3090+rtx-3060"),
        ("2x-dgx-spark", "--machine 2x-dgx-spark: the GPU of GB10 128GB works in main memory and", "2x-rtx-3090"),
        ("rtx-3090+", "--machine rtx-3090+: a machine is missing beside a +", "rtx-3090+rtx-3060"),
        ("64x3090+64x3090", "--machine 64x-rtx-3090+64x-rtx-3090: at most 64 cards", "rtx-3090+rtx-3060"),
        ("2x-cpu-16gb", "--machine 2x-cpu-ddr4-3200-16gb: CPU, DDR4-3200 dual channel, 16 GB has no", "2x-rtx-3090"),
        ("99x3090", "--machine 99x-rtx-3090: at most 64 cards are planned for", "2x-rtx-3090"),
    ],
)
def test_a_machine_that_there_is_not_is_refused_in_a_line(
    catalog: Catalog, written: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as wrong:
        catalog.machine(written)
    assert wrong.value.message.startswith(message) and hint in wrong.value.hint


@pytest.mark.parametrize("written", ["qwen3.8-27b", "Qwen3.8-27B", "qwen38-27b", "Qwen3.8_27B", "qwen3.827b"])
def test_a_target_is_found_however_it_is_spelt(catalog: Catalog, written: str) -> None:
    assert catalog.target(written).id == "qwen3.8-27b"


def test_no_two_targets_are_spelt_alike(catalog: Catalog) -> None:
    assert len({squeeze(id) for id in catalog.targets}) == len(catalog.targets)


def test_a_wrong_name_gets_the_nearest(catalog: Catalog) -> None:
    with pytest.raises(UsageError) as unknown:
        catalog.machine("toaster")
    assert "cpu-16gb" in unknown.value.hint and "machines/*.toml" in unknown.value.hint
    with pytest.raises(UsageError) as target:
        catalog.target("qwen3-8x")
    assert "qwen3-8b" in target.value.hint


def test_files_are_parsed_once_but_a_change_is_seen(tmp_path: Path) -> None:
    write(tmp_path, "machines/box.toml", MACHINE)
    machines = load_catalog(user_folder=tmp_path).machines
    assert load_catalog(user_folder=tmp_path).machines is machines
    write(tmp_path, "machines/box.toml", MACHINE.replace("900", "12345"))
    assert load_catalog(user_folder=tmp_path).machines["mine"].bandwidth_gb_s == 12345.0


def test_ours_and_yours(tmp_path: Path) -> None:
    write(tmp_path, "machines/box.toml", MACHINE)
    write(tmp_path, "machines/worn.toml", MACHINE.replace("[mine]", "[rtx-3090]").replace("900", "800"))
    machines = load_catalog(user_folder=tmp_path).machines
    assert (machines["mine"].ram_bytes, machines["mine"].num_gpus) == (64 * 2**30, 1)
    assert machines["rtx-3090"].bandwidth_gb_s == 800.0
    assert "rtx-4090" in machines


@pytest.mark.parametrize(
    ("line", "instead", "words"),
    [
        ("memory_mib = 24576", "memory_mb = 24576", ("lacks the key mine.memory_mib",)),
        ("ram_gib = 64", "ram_gb = 64", ("lacks the key mine.ram_gib", "mine.ram_gb")),
        ("ram_gib = 64", "ram_gib = 64\nalias = []", ("unknown key mine.alias", "aliases")),
        ('name = "My box"', "name = 3", ("mine.name must be text",)),
        ("\nbandwidth_gb_s = 900", '\nbandwidth_gb_s = "fast"', ("mine.bandwidth_gb_s must be a number",)),
        ("bandwidth_gb_s = 900", "bandwidth_gb_s = -1", ("mine.bandwidth_gb_s must be a number",)),
        ("bandwidth_gb_s = 900", "bandwidth_gb_s = nan", ("mine.bandwidth_gb_s must be a number",)),
        ("bandwidth_gb_s = 900", "bandwidth_gb_s = 0", ("bandwidth_gb_s must be a number from 0.1 to 1000000, not 0",)),
        ("ram_gib = 64\n", "", ("lacks the key mine.ram_gib",)),
        ("host_bandwidth_gb_s = 80\n", "", ("lacks the key mine.host_bandwidth_gb_s",)),
        ("ram_gib = 64", "ram_gib = 64\nnum_gpus = 1000000000", ("mine.num_gpus must be a number from 1 to 64",)),
        (
            "ram_gib = 64",
            "ram_gib = 64\ngpu_limit_mib = 99999",
            ("mine.gpu_limit_mib must be a number from 1 to 24576",),
        ),
        ("[mine]", '["my box"]', ("'my box' cannot be the name of an entry",)),
        ("memory_mib = 24576", "memory_mib = true", ("mine.memory_mib must be a whole number",)),
        ('kind = "cuda"', 'kind = "steam"', ("mine.kind must be one of cuda",)),
        ('kind = "cuda"', 'kind = ["cuda"]', ("mine.kind must be text",)),
        ("[mine]", "mine = 1\n[other]", ("mine must be a table",)),
        ("[mine]", "[mine", ("not valid TOML",)),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, line: str, instead: str, words: tuple[str, ...]) -> None:
    path = write(tmp_path, "machines/box.toml", MACHINE.replace(line, instead))
    with pytest.raises(UsageError) as wrong:
        load_catalog(user_folder=tmp_path)
    said = f"{wrong.value.message} {wrong.value.hint}"
    assert str(path) in said
    assert all(word in said for word in words), said


TARGET_CHANGES = [
    ("parameters_b = 8.19", "parameters_b = 0", "shape.parameters_b must be a number from 0.001 to 100000, not 0"),
    ("parameters_b = 8.19", "parameters_b = 1", "8.19 of 1 B parameters are active"),
    ("n_layer = 36", "n_layer = 100000000", "shape.n_layer must be a number from 1 to 1000, not 100000000"),
    ("n_layer = 36", "n_layer = 0", "shape.n_layer must be a number from 1 to 1000, not 0"),
    ("n_embd = 4096", "n_embd = 0", "shape.n_embd must be"),
    ("n_head = 32", "n_head = 0", "shape.n_head must be"),
    ("n_vocab = 151_936", "n_vocab = 0", "shape.n_vocab must be"),
    ("kv_heads = 8", "kv_heads = 0", "shape.full_attention.kv_heads must be"),
    ("head_dim = 128", "head_dim = 99999999", "shape.full_attention.head_dim must be"),
    ("bytes = 4_617_089_843", "bytes = 0", "bytes must be at least 1, not 0"),
    ("bytes = 4_617_089_843", "bytes = 1000", "quants.IQ4_XS: 1000 bytes for 8.19 B parameters are 9.8e-07 bits each"),
    ("n_embd = 4096", "n_embd = 1_000_000", "1.5e+02 B embeddings are more than 8.19 B parameters"),
    ('released = "2025-04"', 'released = "2025-13"', "released must be a month such as 2026-04, not '2025-13'"),
    ('released = "2025-04"', 'released = "April 2025"', "released must be a month such as 2026-04"),
    ('released = "2025-04"', "released = 2025-04-28", "released must be text"),
    ('drafts = ["', 'drafts = ["eagle-of-mine", "', "unknown draft 'eagle-of-mine'"),
]


GLM_CHANGES = [
    ("layers = 46", "layers = 48", "shape.experts.layers must be a number from 1 to 47, not 48"),
    ("layers = 46", "matrices = 1", "shape.experts.matrices must be a number from 2 to 3, not 1"),
    ("value_dim = 0", "value_dim = -1", "shape.full_attention.value_dim must be"),
]


@pytest.mark.parametrize(
    ("entry", "change"),
    [*(("qwen3-8b", one) for one in TARGET_CHANGES), *(("glm-4.7-flash", one) for one in GLM_CHANGES)],
)
def test_senseless_figures_of_a_target_are_refused(tmp_path: Path, entry: str, change: tuple[str, str, str]) -> None:
    """Before anything is computed of them: a hundred million layers would take minutes and all memory."""
    line, instead, words = change
    text = (locations.profiles_dir() / "targets" / f"{entry}.toml").read_text(encoding="utf-8")
    assert line in text
    write(tmp_path, "targets/mine.toml", text.replace(line, instead, 1))
    with pytest.raises(UsageError) as wrong:
        load_catalog(user_folder=tmp_path)
    assert words in wrong.value.message


@pytest.mark.parametrize("name", ["demo", "my model", "a b", "x.gguf", "None", "-x"])
def test_ids_that_no_reference_can_name_are_refused(tmp_path: Path, name: str) -> None:
    text = (locations.profiles_dir() / "targets" / "qwen3-8b.toml").read_text(encoding="utf-8")
    write(tmp_path, f"targets/{name}.toml", text)
    with pytest.raises(UsageError, match="cannot be the name of an entry"):
        load_catalog(user_folder=tmp_path)


def test_capitals_are_no_other_name(tmp_path: Path) -> None:
    text = (locations.profiles_dir() / "targets" / "qwen3-8b.toml").read_text(encoding="utf-8")
    write(tmp_path, "targets/My-Qwen.toml", text.replace("e3-qwen3-8b-angelslim", "E3-Qwen3-8B-AngelSlim"))
    write(tmp_path, "machines/box.toml", MACHINE.replace("[mine]", "[My_Box]"))
    catalog = load_catalog(user_folder=tmp_path)
    assert catalog.target("My-Qwen") is catalog.target("my-qwen")
    assert "e3-qwen3-8b-angelslim" in catalog.target("my-qwen").drafts
    assert catalog.machine("My_Box") is catalog.machine("my box")


def test_a_draft_for_a_target_that_there_is_not(tmp_path: Path) -> None:
    write(tmp_path, "drafts/mine.toml", DRAFT.replace("qwen3-8b", "qwen3-8bb").replace("3.5", "2.5"))
    with pytest.raises(UsageError) as wrong:
        load_catalog(user_folder=tmp_path)
    assert "unknown target 'qwen3-8bb'" in wrong.value.message
    assert "qwen3-8b" in wrong.value.hint


def test_a_report_of_millions_of_drafted_tokens_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "drafts/mine.toml", DRAFT.replace("[2, 3.5]", "[900000000, 3.0]"))
    with pytest.raises(UsageError, match="900000000 drafted tokens are more than the limit of 64"):
        load_catalog(user_folder=tmp_path)


def test_a_draft_cannot_give_more_than_it_drafts(tmp_path: Path) -> None:
    write(tmp_path, "drafts/mine.toml", DRAFT)
    with pytest.raises(UsageError, match=r"2 drafted tokens cannot give a length of 3\.5"):
        load_catalog(user_folder=tmp_path)


def test_nested_keys_are_named_whole(tmp_path: Path, catalog: Catalog) -> None:
    text = (locations.profiles_dir() / "targets" / "qwen3-8b.toml").read_text(encoding="utf-8")
    write(tmp_path, "targets/mine.toml", text.replace("head_dim = 128", "head_dims = 128"))
    with pytest.raises(UsageError, match=r"lacks the key shape\.full_attention\.head_dim"):
        load_catalog(user_folder=tmp_path)
    write(tmp_path, "targets/mine.toml", text.replace("layers = 36", "layers = 37"))
    with pytest.raises(UsageError, match="37 of 36 layers"):
        load_catalog(user_folder=tmp_path)
