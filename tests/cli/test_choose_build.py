"""Which quantization and draft `pull` takes for a catalog entry: those planned for this machine and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.cli.pull import choose_build
from eaglelocal.errors import UsageError


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    file = tmp_path / "config" / "eaglelocal" / "config.toml"
    file.parent.mkdir(parents=True)
    return file


def test_a_quantization_and_a_draft_of_the_entry(config: Path) -> None:
    found = choose_build("qwen3-0.6b")
    assert found is not None and found.quant and not found.problem


@pytest.mark.parametrize("target", ["qwen3-0.6b:Q8_0", "user/repo", "./x.gguf", "demo"])
def test_where_there_is_nothing_to_choose(config: Path, target: str) -> None:
    assert choose_build(target) is None


def test_no_draft_where_none_is_wanted(config: Path) -> None:
    asked = choose_build("qwen2.5-7b", draft="none")
    config.write_text('draft = "none"\n')
    settled = choose_build("qwen2.5-7b")
    assert asked == settled and asked is not None and asked.draft == "none"


def test_settings_decide_what_fits(config: Path) -> None:
    config.write_text('parallel = 16\nctx = 131072\nkv_type = "f16"\n')
    many = choose_build("llama-3.3-70b")
    assert many is not None and "to use" in many.problem, "16 caches of 131072 tokens are more than 600 GiB"


def test_a_gpu_that_is_not_here_stops_no_download(config: Path) -> None:
    config.write_text('device = "Vulkan9"\n')
    found = choose_build("qwen3-0.6b")
    assert found is not None and "Vulkan9" in found.problem


def test_an_entry_that_there_is_not(config: Path) -> None:
    with pytest.raises(UsageError, match="qwen3-8x"):
        choose_build("qwen3-8x")
