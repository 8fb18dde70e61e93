"""How many tokens an image may have, by the room there is."""

from __future__ import annotations

import pytest

from eaglelocal.gguf.projector import RESERVED_TOKENS, max_image_tokens


@pytest.mark.parametrize(
    ("kind", "n_ctx", "n_batch", "wanted"),
    [
        ("qwen3vl_merger", 32768, 512, RESERVED_TOKENS),  # for which memory is taken at the start
        ("qwen3vl_merger", 2048, 512, 1024),  # half the context
        ("pixtral", 32768, 512, None),  # its own limit is lower
        ("pixtral", 1024, 512, 512),
        ("gemma4v", 32768, 512, 512),  # one pass
        ("gemma4v", 32768, 2048, None),
        ("gemma4v", 20, 512, 16),
        ("gemma3", 1024, 512, None),  # always as many
        ("of next year", 1024, 512, None),
    ],
)
def test_limits(kind: str, n_ctx: int, n_batch: int, wanted: int | None) -> None:
    assert max_image_tokens(kind, n_ctx=n_ctx, n_batch=n_batch) == wanted
