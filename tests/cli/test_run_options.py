"""Which settings become the run options of which model."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.vision_models import write_vision_pair

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.cli import bench, tune
from eaglelocal.cli.bench_report import BenchOptions
from eaglelocal.cli.chat import continue_target
from eaglelocal.cli.load_model import make_run_options
from eaglelocal.cli.output import standard_output
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.core.request import AUTO_SPEC, Image, Message
from eaglelocal.core.run_options import ModelChoice, RunOptions, apply_choice
from eaglelocal.core.sampling import GREEDY
from eaglelocal.preparation.autoplan import autoplan
from eaglelocal.preparation.models import find_models
from eaglelocal.settings import Settings


@pytest.mark.parametrize(
    ("choice", "draft", "n_cpu_moe"),
    [
        (ModelChoice(), "head.gguf", 24),
        (ModelChoice(draft="ngram"), "ngram", 24),
        (ModelChoice(draft="ngram,lookahead"), "ngram", 24),
        (ModelChoice(target="other.gguf"), "auto", None),  # it may have other layers, and no experts at all
    ],
)
def test_a_draft_and_experts_named_at_the_start_are_the_first_targets(
    tmp_path: Path, choice: ModelChoice, draft: str, n_cpu_moe: int | None
) -> None:
    given = {"target": "moe.gguf", "draft": "head.gguf", "n_cpu_moe": "24", "gpu_layers": "9"}
    options = apply_choice(make_run_options(Settings.load(given, {}, tmp_path / "config.toml")), choice)
    assert (options.draft, options.n_cpu_moe, options.gpu_layers) == (draft, n_cpu_moe, 9)
    assert options.lookups == (("ngram", "lookahead") if choice.draft == "ngram,lookahead" else ("ngram",))


@pytest.mark.parametrize(
    ("choice", "named", "expected"),
    [
        (ModelChoice(), "eyes.gguf", "eyes.gguf"),
        (ModelChoice(target="other.gguf"), "eyes.gguf", "auto"),  # another model has other eyes
        (ModelChoice(target="other.gguf"), "none", "none"),
        (ModelChoice(), None, "auto"),
    ],
)
def test_a_projector_named_at_the_start_is_the_first_targets(
    tmp_path: Path, choice: ModelChoice, named: str | None, expected: str
) -> None:
    options = make_run_options(Settings.load({"mmproj": named}, {}, tmp_path / "config.toml"))
    assert apply_choice(options, choice).mmproj == expected


@pytest.mark.parametrize(
    ("images", "named", "reads"),
    [((), False, False), ((Image(b""),), False, True), ((), True, True)],
)
def test_a_model_that_is_not_asked_for_is_not_loaded_to_measure(
    tmp_path: Path, images: tuple[Image, ...], named: bool, reads: bool
) -> None:
    """A projector beside the target takes memory and time."""
    target, projector = write_vision_pair(tmp_path, "gemma3")
    given = {"target": str(target), "draft": "ngram", "mmproj": str(projector) if named else None}
    settings, output = Settings.load(given, {}, tmp_path / "config.toml"), standard_output()
    asked = bench.ChosenPrompts({"x": [BenchPrompt("x", (Message("user", "what is this?", images=images),))]}, [])
    plan = bench.plan_bench(
        bench.drop_unused_projector(settings, asked), BenchOptions((AUTO_SPEC,), (1,), GREEDY), output
    )
    assert plan.projector == (projector if reads else None)
    assert tune.plan_tune(settings, output).projector is None


def test_a_continued_conversation_brings_its_model_unless_one_is_named(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('target = "qwen3-8b"\ndraft = "./head.gguf"\n')
    held = Conversation(turns=[Turn("a", "b")], target="the guide", reference="demo")
    brought = continue_target(Settings.load({}, {}, config), held)
    assert (brought.target, brought.draft) == ("demo", "auto")
    assert continue_target(Settings.load({"draft": "ngram"}, {}, config), held).draft == "ngram"
    named = Settings.load({"target": "qwen3-8b"}, {}, config)
    assert continue_target(named, held) is named


def test_the_alias_of_the_embedded_model_is_shown_as_its_name() -> None:
    assert autoplan(RunOptions(target="embedded")).target == "demo"
    (option,) = find_models(RunOptions(target="embedded@1b:q4_0"), load_catalog())
    assert option.reference == "demo@1b:q4_0"


def test_only_settings_that_are_no_flags_hold_for_every_model(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("ctx = 4096\nseed = 3\n")
    settings = Settings.load({"kv_type": "q8_0"}, {"EAGLELOCAL_N_CPU_MOE": "4"}, config)
    origins = {"ctx": str(config), "n_cpu_moe": "EAGLELOCAL_N_CPU_MOE"}
    options = make_run_options(settings)
    assert dict(options.origins) == origins
    chosen = apply_choice(options, ModelChoice(ctx=2048))  # in a chat, for this model
    assert (chosen.ctx, dict(chosen.origins)) == (2048, {"n_cpu_moe": origins["n_cpu_moe"]})
