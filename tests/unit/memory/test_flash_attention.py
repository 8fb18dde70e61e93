"""What `--flash-attn auto` means."""

from __future__ import annotations

import pytest

from eaglelocal.memory.contexts import MAX_SCORES_BYTES, resolve_flash_attn, scores_bytes


@pytest.mark.parametrize(
    ("asked", "on_gpu", "kv_type", "scores", "has_kernel", "expected"),
    [
        ("auto", False, "f16", 0, False, "off"),
        ("auto", False, "f16", MAX_SCORES_BYTES, False, "off"),
        ("auto", False, "f16", MAX_SCORES_BYTES + 1, False, "auto"),  # its memory is worth more than its time
        ("auto", False, "q8_0", 0, False, "auto"),  # a quantized cache needs it
        ("auto", True, "f16", 0, False, "auto"),
        ("on", False, "f16", 0, False, "on"),
        ("off", True, "q8_0", 0, False, "off"),
        ("auto", False, "f16", 0, True, "on"),  # our kernel verifies drafts fast
        ("auto", True, "f16", 0, True, "auto"),
        ("off", False, "f16", 0, True, "off"),
    ],
)
def test_what_auto_means(asked: str, on_gpu: bool, kv_type: str, scores: int, has_kernel: bool, expected: str) -> None:
    chosen = resolve_flash_attn(asked, on_gpu=on_gpu, kv_type=kv_type, scores_bytes=scores, has_kernel=has_kernel)
    assert chosen == expected


def test_scores_of_a_batch() -> None:
    assert scores_bytes(n_batch=512, num_cells=4096, n_head=32) == 256 * 2**20
