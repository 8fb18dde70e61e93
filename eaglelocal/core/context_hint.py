"""Hints with the --ctx that would do: larger for a prompt that is too long, smaller for little memory. Pure."""

from __future__ import annotations

CTX_STEP = 256  # a --ctx in a hint is a multiple of this
ANSWER_TOKENS = 1024  # room for an answer


def suggest_ctx(
    num_tokens: int, *, trained_ctx: int = 0, answer_tokens: int = ANSWER_TOKENS, is_lower_bound: bool = False
) -> str:
    """Return the flag with the number that would do for a prompt, or the advice to shorten it.

    trained_ctx     positions that the model was trained for; 0: unknown
    is_lower_bound  the prompt has more tokens than that, and how many is not known
    """
    if 0 < trained_ctx < num_tokens + min(answer_tokens, 1):
        return f"use a shorter prompt: the model was trained for {trained_ctx} tokens"
    if is_lower_bound:
        return f"--ctx {trained_ctx}, or a shorter prompt" if trained_ctx else "use a shorter prompt"
    wanted = -(-(num_tokens + answer_tokens) // CTX_STEP) * CTX_STEP
    return f"--ctx {min(wanted, trained_ctx or wanted)}"


def suggest_smaller_ctx(n_ctx: int, num_slots: int = 1) -> str:
    """Return the flags with half the context, or half the slots; "" if both are as small as they can be."""
    half = n_ctx // 2 // CTX_STEP * CTX_STEP or n_ctx // 2
    flags = [f"--ctx {half}"] if half else []
    return " or ".join([*flags, *([f"--parallel {num_slots // 2}"] if num_slots > 1 else [])])
