"""References -> plans, over small GGUF files written for the purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest

from eaglelocal import locations
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AUTO_SPEC, PID, Spec, fixed_spec
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import IncompatibleError, ModelFileError, UsageError
from eaglelocal.hub.inflation.inflate import locate_inflated
from eaglelocal.hub.inflation.inflated_sizes import parse_demo_reference
from eaglelocal.hub.target_resolver import make_label
from eaglelocal.preparation.autoplan import plan_target
from eaglelocal.preparation.decision import resolve

WIDTH, TAPS, FFN = 64, (0, 1, 2), 64


def tokens_of(num_tokens: int, *, word: str = "w") -> list[str]:
    return [f"{word}{number}" for number in range(num_tokens)]


@dataclass(frozen=True)
class Model:
    """A target or a draft model as a header with one tensor."""

    architecture: str = "llama"
    name: str = "tiny"
    context: int = 512
    tokens: Sequence[str] = tuple(tokens_of(32))

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_name(self.name)
        writer.add_block_count(4)
        writer.add_embedding_length(WIDTH)
        writer.add_context_length(self.context)
        writer.add_head_count(1)
        writer.add_feed_forward_length(FFN)
        writer.add_token_list(list(self.tokens))
        writer.add_tensor("token_embd.weight", np.zeros((len(self.tokens), WIDTH), np.float32))
        return close(writer, path)


@dataclass(frozen=True)
class Head:
    """An EAGLE-3 head with its own embeddings and output."""

    hidden: int = WIDTH
    taps: Sequence[int] = TAPS
    num_tokens: int = 32
    modern: bool = True

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, "eagle3")
        writer.add_name("tiny head")
        writer.add_block_count(1)
        writer.add_embedding_length(WIDTH)
        writer.add_context_length(512)
        writer.add_head_count(1)
        writer.add_feed_forward_length(FFN)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_array("eagle3.target_layers", list(self.taps))
        writer.add_uint32("eagle3.target_hidden_size", self.hidden)
        writer.add_token_list(tokens_of(self.num_tokens))
        if self.modern:
            writer.add_bool("eaglelocal.fc_norm", True)
            writer.add_bool("eaglelocal.norm_output", True)
        for name, shape in self._shapes().items():
            writer.add_tensor(name, np.zeros(shape, np.float32))
        return close(writer, path)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        names = ("attn_norm", "attn_norm_2", "ffn_norm")
        return {
            "fc.weight": (WIDTH, len(self.taps) * self.hidden),
            "output_norm.weight": (WIDTH,),
            "token_embd.weight": (self.num_tokens, WIDTH),
            "output.weight": (self.num_tokens, WIDTH),
            **{f"blk.0.{name}.weight": (WIDTH,) for name in names},
            **{f"blk.0.attn_{name}.weight": (WIDTH, 2 * WIDTH) for name in "qkv"},
            "blk.0.attn_output.weight": (WIDTH, WIDTH),
            "blk.0.ffn_gate.weight": (FFN, WIDTH),
            "blk.0.ffn_up.weight": (FFN, WIDTH),
            "blk.0.ffn_down.weight": (WIDTH, FFN),
        }


def close(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def plan(**said: object) -> Plan:
    options = dataclasses.replace(RunOptions(), **said)  # type: ignore[arg-type]
    return resolve(options, on_progress=lambda fraction, what: None)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(Model().write(tmp_path / "target.gguf"))


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profiles folder with an embedded pair, and a cache of its own."""
    folder = tmp_path / "profiles" / "demo"
    folder.mkdir(parents=True)
    Model(name="guide").write(folder / "guide-target.gguf")
    Head().write(folder / "guide-head.gguf")
    monkeypatch.setattr(locations, "profiles_dir", lambda: tmp_path / "profiles")
    monkeypatch.setattr(locations, "generated_models_dir", lambda: tmp_path / "generated")
    return folder


# ---- targets
def test_a_path_becomes_a_plan(target: str) -> None:
    found = plan(
        target=target, threads=3, gpu_layers=7, device="CUDA0", split="row", kv_type="q8_0", parallel=2, n_cpu_moe=2
    )
    assert found == Plan(
        target=Path(target),
        target_label="target.gguf",
        draft_kind="ngram",
        draft_label="lookup in the text so far",
        draft_reason="no head is known for this target",
        n_ctx=512,
        num_slots=2,
        threads=3,
        gpu_layers=7,
        n_cpu_moe=2,
        device="CUDA0",
        split="row",
        kv_type="q8_0",
    )
    assert found.speculates


def test_shares_of_gpus_divide_by_layers(target: str) -> None:
    found = plan(target=target, split="3,1")
    assert (found.split, found.shares) == ("layer", (3.0, 1.0))
    with pytest.raises(UsageError, match="--split must be one of layer, tensor, row, none, or the share of each GPU"):
        plan(target=target, split="3;1")


def test_the_embedded_pair_as_it_is_shipped(shipped: Path) -> None:
    found = plan(target="demo@native")
    assert (found.target, found.draft) == (shipped / "guide-target.gguf", shipped / "guide-head.gguf")
    assert (found.draft_kind, found.spec) == ("eagle3", AUTO_SPEC)
    assert found.target_label == "demo@native"
    assert found.draft_label == "its own EAGLE-3.1 head"
    assert found.speculates


@pytest.mark.parametrize(
    ("reference", "label"),
    [
        ("demo", "demo"),
        ("demo@1b", "demo@1b:bf16"),
        ("demo@1.5B:Q4_0", "demo@1.5b:q4_0"),
    ],
)
def test_an_inflated_pair_is_found_and_labelled(shipped: Path, reference: str, label: str) -> None:
    """The pair is laid where inflation would put it, so nothing is written here."""
    sources = shipped / "guide-target.gguf", shipped / "guide-head.gguf"
    folder = locations.generated_models_dir()
    paths = locate_inflated(parse_demo_reference(reference), sources, folder)
    folder.mkdir()
    Model(context=2048).write(paths.target)
    Head().write(paths.head)
    found = plan(target=reference)
    assert (found.target, found.draft, found.draft_kind) == (paths.target, paths.head, "eagle3")
    assert (found.target_label, found.n_ctx) == (label, 2048)


def test_an_installation_without_the_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "profiles_dir", lambda: tmp_path)
    for reference in ("demo", "demo@native", "demo@1b"):
        with pytest.raises(ModelFileError, match=r"guide-target\.gguf of the embedded model is missing"):
            plan(target=reference)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ctx": 10**6},
        {"draft": "nope"},
        {"draft": "./nope.gguf"},
        {"mmproj": "./nope.gguf"},
        {"lora": ("./nope.gguf",)},
        {"device": "CUDA7"},
        {"split": "1,1,1,1,1"},
        {"n_cpu_moe": 3},
        {"override_tensor": ("no_such_tensor=CPU",)},
    ],
)
def test_the_embedded_model_is_not_written_for_options_that_cannot_be(
    wrong: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "generated_models_dir", lambda: tmp_path / "generated")
    with pytest.raises((UsageError, ModelFileError)):
        plan(target="demo@300m", **wrong)
    assert not (tmp_path / "generated").exists()


def test_a_model_takes_what_it_can_of_options_that_were_set_for_every_model() -> None:
    asked = {"ctx": 10**6, "n_cpu_moe": 3}
    found = plan(target="demo@native", **asked, origins=(("ctx", "EAGLELOCAL_CTX"), ("n_cpu_moe", "config.toml")))
    assert (found.n_ctx, found.n_cpu_moe) == (2048, 0)


@pytest.mark.parametrize("reference", ["demo@", "demo@1x", "demo@1b:q9", "demo@900b", "demo@1k"])
def test_wrong_sizes_are_errors_of_usage(shipped: Path, reference: str) -> None:
    with pytest.raises(UsageError):
        plan(target=reference)


@pytest.mark.parametrize(
    ("name", "file", "label"),
    [
        ("Smollm2 135M 8k Lc100K Mix1 Ep2", "SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("Qwen3 8B", "ggml-model-q4_0.gguf", "ggml-model-q4_0.gguf"),
        ("Qwen3 8B", f"sha256-{'0' * 64}", "Qwen3 8B"),
        ("", "x.gguf", "x.gguf"),
        ("", "x\nevil: \x85\udcff.gguf", "x\ufffdevil: \ufffd\ufffd.gguf"),
    ],
)
def test_a_file_is_called_by_its_name_and_a_blob_by_that_in_its_header(name: str, file: str, label: str) -> None:
    assert make_label(name, Path(file)) == label


@pytest.mark.parametrize(
    ("reference", "words", "hint"),
    [
        ("dmeo", "unknown target 'dmeo'", "did you mean `demo`?"),
        ("demo-native", "unknown target", "did you mean `demo@native`?"),
        ("", "cannot read the reference ''", "use `demo`"),
        ("qwen3-8x:Q4_K_M", "unknown target 'qwen3-8x:Q4_K_M'", "did you mean `qwen3-8b:Q4_K_M`?"),
        ("qwen3:8b", "unknown target 'qwen3:8b'", "did you mean `qwen3-8b`?"),
        ("qwen3:8b-instruct-q4_K_M", "unknown target 'qwen3:8b-instruct-q4_K_M'", "did you mean `qwen3-8b:q4_K_M`?"),
    ],
)
def test_other_references_say_what_is_understood(reference: str, words: str, hint: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        plan(target=reference)
    assert hint in error.value.hint


def test_a_missing_file_gets_the_nearest_name(target: str) -> None:
    with pytest.raises(ModelFileError, match="does not exist") as error:
        plan(target=target.replace("target", "taget"))
    assert error.value.hint == f"did you mean {target}?"


@pytest.mark.parametrize("reference", ["./missing.gguf", "/nowhere/x.gguf"])
def test_a_missing_file_like_no_other(reference: str) -> None:
    with pytest.raises(ModelFileError, match="does not exist") as error:
        plan(target=reference)
    assert error.value.hint


@pytest.mark.parametrize(
    ("reference", "words"), [("~nobody-at-all/x.gguf", "there is no user"), ("./" + "x" * 5000, "is too long")]
)
def test_a_path_that_no_file_can_have(reference: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(target=reference)


def test_a_folder_names_a_file_in_it(target: str) -> None:
    with pytest.raises(ModelFileError, match="is a folder") as error:
        plan(target=str(Path(target).parent))
    assert target in error.value.hint


@pytest.mark.parametrize("data", [b"", b"GGU", b"PK\x03\x04 a zip", b"GGUF\x03\x00\x00\x00"])
def test_a_file_that_is_not_gguf(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"x\.gguf"):
        plan(target=str(path))


def test_a_head_is_no_target(tmp_path: Path) -> None:
    path = Head().write(tmp_path / "head.gguf")
    with pytest.raises(ModelFileError, match="is a draft head") as error:
        plan(target=str(path))
    assert "--draft" in error.value.hint


def test_a_name_from_a_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = Model(name="\x1b[2J\nevil" + "x" * 500).write(tmp_path / f"sha256-{'0' * 64}")
    label = plan(target=str(path)).target_label
    assert label.isprintable()
    assert label.startswith("\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}evil")
    assert len(label) < 100


# ---- figures
@pytest.mark.parametrize(
    ("trained", "ctx", "n_ctx"), [(512, None, 512), (100_000, None, 4096), (100_000, 8192, 8192), (512, 512, 512)]
)
def test_context(tmp_path: Path, trained: int, ctx: int | None, n_ctx: int) -> None:
    path = Model(context=trained).write(tmp_path / "m.gguf")
    assert plan(target=str(path), ctx=ctx).n_ctx == n_ctx


@pytest.mark.parametrize("ctx", [0, -1, 513])
def test_a_context_that_the_model_does_not_know(target: str, ctx: int) -> None:
    with pytest.raises(UsageError, match=rf"between 1 and 512.*not {ctx}"):
        plan(target=target, ctx=ctx)


@pytest.mark.parametrize(
    ("spec", "meant"),
    [("auto", AUTO_SPEC), ("pid", PID), (1, fixed_spec(1)), ("4", fixed_spec(4)), (16, fixed_spec(16))],
)
def test_draft_length(shipped: Path, spec: str | int, meant: Spec) -> None:
    assert plan(target="demo@native", spec=spec).spec == meant


@pytest.mark.parametrize(
    ("said", "words"),
    [
        *(({"spec": spec}, "--spec must be") for spec in (-1, 17, "on", "4.5")),
        *(({"parallel": parallel}, "--parallel must lie between 1 and 64") for parallel in (0, 65)),
    ],
)
def test_wrong_draft_lengths_and_slots(shipped: Path, said: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(target="demo@native", **said)


# ---- drafts
@pytest.mark.parametrize(
    ("said", "reason"),
    [({"spec": "off"}, "switched off"), ({"spec": 0}, "switched off"), ({"draft": "none"}, "switched off")],
)
def test_switched_off(shipped: Path, said: dict[str, object], reason: str) -> None:
    found = plan(target="demo@native", **said)
    assert (found.draft_kind, found.draft, found.draft_label) == ("none", None, "none")
    assert (found.draft_reason, found.speculates) == (reason, False)


def test_switched_off_does_not_look_at_the_draft(target: str) -> None:
    assert plan(target=target, draft="./missing.gguf", spec="off").draft is None


@pytest.mark.parametrize(("modern", "label"), [(True, "EAGLE-3.1 head"), (False, "EAGLE-3 head")])
def test_a_head_by_path(tmp_path: Path, target: str, modern: bool, label: str) -> None:
    path = Head(modern=modern).write(tmp_path / "head.gguf")
    found = plan(target=target, draft=str(path), spec=2)
    assert (found.draft_kind, found.draft, found.spec) == ("eagle3", path, fixed_spec(2))
    assert found.draft_label.startswith(label + " ")
    assert found.draft_reason == ""


def test_a_draft_model_by_path(tmp_path: Path, target: str) -> None:
    path = Model("qwen2", "small").write(tmp_path / "draft.gguf")
    found = plan(target=target, draft=str(path))
    assert (found.draft_kind, found.draft, found.draft_label) == ("draft_model", path, "draft model draft.gguf")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Head(hidden=128).write, "hidden size 128, the target has 64"),
        (Head(taps=(0, 1, 9)).write, "taps layer 9"),
        (Head(num_tokens=16).write, "16 tokens, the target's 32"),
        (Model(tokens=tokens_of(31)).write, "31 tokens, the target's 32"),
        (Model(tokens=tokens_of(32, word="v")).write, "their 32 tokens differ from token 0 on"),
        (Model("lfm2").write, "lfm2 keeps recurrent state"),
    ],
)
def test_drafts_that_do_not_fit(tmp_path: Path, target: str, make: Callable[[Path], Path], words: str) -> None:
    path = make(tmp_path / "draft.gguf")
    with pytest.raises(IncompatibleError, match=words) as error:
        plan(target=target, draft=str(path))
    assert "--draft none" in error.value.hint


@pytest.mark.parametrize(
    ("architecture", "kind", "reason"),
    [
        ("mamba", "none", "mamba keeps recurrent state, whose rollback llama.cpp does not support"),
        ("gemma3", "ngram", "llama.cpp gives no layer inputs for the architecture gemma3"),
    ],
)
def test_targets_that_a_head_cannot_draft_for(tmp_path: Path, architecture: str, kind: str, reason: str) -> None:
    path = str(Model(architecture).write(tmp_path / "m.gguf"))
    head = str(Head().write(tmp_path / "head.gguf"))
    automatic = plan(target=path)
    assert (automatic.draft_kind, automatic.draft_reason) == (kind, reason)
    with pytest.raises(IncompatibleError) as error:
        plan(target=path, draft=head)
    assert reason in error.value.message
    assert "--draft none" in error.value.hint


def test_a_draft_model_needs_no_layer_inputs(tmp_path: Path) -> None:
    path = str(Model("gemma3").write(tmp_path / "m.gguf"))
    draft = str(Model("gemma3", "small").write(tmp_path / "d.gguf"))
    assert plan(target=path, draft=draft).draft_kind == "draft_model"


def test_lookup_needs_no_file_but_a_cache_that_rolls_back(tmp_path: Path, target: str) -> None:
    found = plan(target=target, draft="ngram")
    assert (found.draft_kind, found.draft, found.draft_reason) == ("ngram", None, "")
    with pytest.raises(IncompatibleError, match="mamba keeps recurrent state"):
        plan(target=str(Model("mamba").write(tmp_path / "m.gguf")), draft="ngram")


@pytest.mark.parametrize("reference", ["eagle", "demo", "a/b/c", ""])
def test_unknown_drafts(target: str, reference: str) -> None:
    with pytest.raises(UsageError, match="unknown draft") as error:
        plan(target=target, draft=reference)
    assert "`auto`, `ngram`, `lookahead`, `mtp`, `none`" in error.value.hint


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("a.gguf,b.gguf", "`--draft a.gguf,ngram,lookahead`"),
        ("a.gguf,lokahead", "`--draft a.gguf,lookahead`"),
        ("auto,ngrm", "`--draft auto,ngram`"),
    ],
)
def test_only_one_draft_can_be_a_model(target: str, reference: str, hint: str) -> None:
    with pytest.raises(UsageError, match="only one can be a model") as error:
        plan(target=target, draft=reference)
    with pytest.raises(UsageError, match="only one can be a model") as planned:
        plan_target(RunOptions(target="qwen3-8b", draft=reference))
    assert error.value.hint == planned.value.hint == hint


def test_a_draft_whose_path_has_a_comma(tmp_path: Path, target: str) -> None:
    draft = Model("llama").write(tmp_path / "a,b.gguf")
    assert plan(target=target, draft=str(draft)).draft == draft


def test_drafters_without_a_model_are_named_beside_the_models(tmp_path: Path, target: str) -> None:
    draft = Model("llama").write(tmp_path / "small.gguf")
    both = plan(target=target, draft=str(draft), lookups=("ngram", "lookahead"))
    assert both.lookups == ("ngram", "lookahead") and both.draft_label.endswith(" and lookahead")
    alone = plan(target=target, draft="ngram", lookups=("lookahead",))
    assert (alone.draft_kind, alone.lookups, alone.draft_label) == ("ngram", ("lookahead",), "lookahead")


def test_a_hubs_model_that_is_not_here_is_reported_and_not_fetched(target: str) -> None:
    with pytest.raises(ModelFileError, match="user/repo:Q8_0 is not on disk") as error:
        plan(target=target, draft="user/repo:Q8_0")
    assert error.value.hint == "eaglelocal pull user/repo:Q8_0"
    with pytest.raises(ModelFileError, match="qwen3-8b is not on disk") as error:
        plan(target="qwen3-8b")
    assert error.value.hint == "eaglelocal pull qwen3-8b"


def test_a_missing_draft(target: str) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        plan(target=target, draft="./missing.gguf")
