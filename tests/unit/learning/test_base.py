"""With which heads learning begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eaglelocal import locations
from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.plan import Plan
from eaglelocal.learning.idle_learning import find_base

PLAN = Plan(target=Path("target.gguf"), target_label="target", draft_kind="eagle3", draft=Path("head.gguf"))


def test_a_head_learns_unless_it_was_generated_or_the_target_is_adapted() -> None:
    assert find_base(PLAN) == (Path("head.gguf"), "")
    generated = replace(PLAN, draft=locations.generated_models_dir() / "head.gguf")
    adapted = replace(PLAN, adapters=(AdapterFile(Path("adapter.gguf"), 1.0),))
    for plan, word in ((generated, "generated"), (adapted, "LoRA"), (replace(PLAN, draft_kind="mtp"), "EAGLE")):
        base, why = find_base(plan)
        assert base is None
        assert word in why
