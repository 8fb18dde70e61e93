"""Opens the conversations on disk (`--cache-disk`) that a plan can go on with."""

from __future__ import annotations

import hashlib

from eaglelocal import locations
from eaglelocal.core.file_fingerprint import fingerprint
from eaglelocal.engine.conversation_files import ConversationFiles
from eaglelocal.loading.fit import FittedPlan

GB = 10**9


def open_conversation_files(parts: FittedPlan, library: str) -> ConversationFiles | None:
    """Return the conversations on disk; None if none are kept.

    library  llama.cpp's build: another may lay out cells differently
    """
    plan = parts.plan
    if not plan.cache_disk or not parts.can_swap or plan.is_brief:
        return None
    weights = [fingerprint(shard.path) for shard in parts.target.header.shards]
    context = f"{plan.n_ctx} {plan.swa_full} {parts.uses_gpu}"  # LongRoPE rotates keys by the length of the context
    layout = [*weights, plan.kv_type, plan.flash_attn, context, library]
    folder = hashlib.blake2b("\n".join(layout).encode(), digest_size=12).hexdigest()
    adapters = [fingerprint(adapter.path) for adapter in plan.adapters]
    cells = locations.conversation_cells_dir() / folder
    return ConversationFiles(cells, int(plan.cache_disk * GB), dict(plan.owners.names), adapters)
