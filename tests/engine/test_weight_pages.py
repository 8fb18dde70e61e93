"""The real engine process: wide weights are in huge pages of its own, but mapped in an engine for one answer."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from doubles.random_models import TargetShape, write_target

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.huge_pages import TUNABLES, glibc_version, has_huge_pages, tunables
from eaglelocal.core.plan import Plan
from eaglelocal.probe.probe import probe

HAS_HUGE_PAGES = has_huge_pages(probe().memory.huge_pages, {TUNABLES: tunables(os.environ)}, glibc_version())
SHAPE = TargetShape(n_vocab=4096, n_embd=512, n_ff=2048, type="BF16")


def places(path: Path, *, is_brief: bool) -> tuple[bool, int]:
    """Is the file mapped into the engine, and bytes of its huge pages?"""
    plan = Plan(target=path, target_label="random", n_ctx=256, is_brief=is_brief)
    with EngineClient(plan) as client:
        client.start()
        process = Path("/proc") / str(client.snapshot().engine_pid)
        kib = re.search(r"AnonHugePages: +(\d+) kB", (process / "smaps_rollup").read_text())
        assert kib is not None
        return str(path) in (process / "maps").read_text(), 1024 * int(kib[1])


@pytest.mark.skipif(not HAS_HUGE_PAGES, reason="this system has no huge pages for who asks")
def test_wide_weights_lie_in_huge_pages(tmp_path: Path) -> None:
    path = write_target(tmp_path / "target.gguf", SHAPE)
    is_mapped, huge_bytes = places(path, is_brief=False)
    assert not is_mapped
    assert huge_bytes > 0.6 * path.stat().st_size


def test_for_one_answer_they_are_mapped(tmp_path: Path) -> None:
    is_mapped, _ = places(write_target(tmp_path / "target.gguf", SHAPE), is_brief=True)
    assert is_mapped
