"""Prompts without a template: texts with tokens inside, and code gaps with as much context as there is room for."""

from __future__ import annotations

import re

import pytest

from eaglelocal.core.ports import FillTokens
from eaglelocal.core.request import Infill, Mixed
from eaglelocal.engine.prompt_tokens import make_infill_prompt, tokenize_mixed
from eaglelocal.errors import NOT_SUPPORTED, RequestError

CONTROLS = ("<s>", "<pre>", "<suf>", "<mid>", "<repo>", "<file>")
FIRST = 0x110000
PRE, SUF, MID, REPO, FILE = range(FIRST + 1, FIRST + 6)
N_CTX = 4000


class Characters:
    """What of core.ports.Vocabulary makes prompts: a character is a token, and so is each control text."""

    bos_text = "<s>"

    def __init__(self, marks: FillTokens | None, *, has_bos: bool = True) -> None:
        self.fill_tokens, self._has_bos = marks, has_bos

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        pattern = "|".join(map(re.escape, CONTROLS)) + "|(?s:.)" if parse_special else "(?s:.)"
        parts = ["<s>"] * (add_special and self._has_bos) + re.findall(pattern, text)
        return [FIRST + CONTROLS.index(part) if len(part) > 1 else ord(part) for part in parts]


ALL = FillTokens(PRE, SUF, MID, REPO, FILE)
FEW = FillTokens(PRE, SUF, MID)


def shown(tokens: tuple[int, ...]) -> str:
    return "".join(chr(token) if token < FIRST else f"[{CONTROLS[token - FIRST][1:-1]}]" for token in tokens)


def filled(infill: Infill, marks: FillTokens | None = ALL, n_ctx: int = N_CTX, **more: bool) -> str:
    return shown(make_infill_prompt(infill, Characters(marks, **more), n_ctx))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mixed", "expected"),
    [
        (Mixed(("hi",)), "[s]hi"),
        (Mixed(("<s>hi",)), "[s]hi"),
        (Mixed(("a", 98, "<mid>c")), "[s]ab[mid]c"),
        (Mixed((97, "b")), "ab"),
        (Mixed(("hi<s>",), add_special=False), "hi[s]"),
        (Mixed(("hi<s>",), add_special=False, parse_special=False), "hi<s>"),
        (Mixed(()), ""),
    ],
)
def test_texts_and_tokens(mixed: Mixed, expected: str) -> None:
    assert shown(tokenize_mixed(mixed, Characters(ALL))) == expected  # type: ignore[arg-type]


GAP = Infill(("f(",), (")\n",), (("a.py", "x<mid>"), ("b.py", "y")), "z<mid>")


@pytest.mark.parametrize(
    ("marks", "has_bos", "expected"),
    [
        (
            ALL,
            True,
            "[repo]myproject\n[file]a.py\nx<mid>[file]b.py\ny[file]filename\n[s][pre]f(z[mid][suf])\n[mid]",
        ),
        (ALL, False, "[repo]myproject\n[file]a.py\nx<mid>[file]b.py\ny[file]filename\n[pre]f(z[mid][suf])\n[mid]"),
        (FEW, False, "\n\n--- snippet ---\n\nx<mid>\n\n--- snippet ---\n\ny[pre]f(z[mid][suf])\n[mid]"),
    ],
)
def test_a_gap_is_reported_as_llama_server_does(marks: FillTokens, has_bos: bool, expected: str) -> None:
    assert filled(GAP, marks, has_bos=has_bos) == expected


def test_without_tokens_for_it_no_model_fills_in() -> None:
    with pytest.raises(RequestError, match="not supported by this model") as caught:
        filled(GAP, None)
    assert caught.value.code == NOT_SUPPORTED


@pytest.mark.parametrize("n_ctx", [64, 500, 2048, 4096, 32768])
@pytest.mark.parametrize("begun", ["", "z" * 10, "z" * 300])
def test_what_is_far_from_the_gap_is_left_out(n_ctx: int, begun: str) -> None:
    before, behind = "a" * 40_000 + "B", "C" + "d" * 40_000
    filled_prompt = filled(Infill((before,), (behind,), (("x", "e" * 40_000),), begun), n_ctx=n_ctx)
    code = filled_prompt[filled_prompt.index("[s][pre]") :]
    assert f"B{begun}[suf]" in code and filled_prompt.endswith("[mid]")
    assert ("[suf]C" in code) is (len(begun) < min(2048, n_ctx // 2) // 4 - 4)
    assert len(filled_prompt) < n_ctx - n_ctx // 8 + len(begun) + 40  # marks are shown longer than they are


def test_a_cache_goes_on_holding_the_snippets_while_one_types() -> None:
    """However much is written, and asked for in advance with nothing around the gap."""
    snippets = tuple((f"{i}.py", str(i) * 900) for i in range(9))
    filled_prompt = [filled(Infill(("a" * n,), ("b" * n,), snippets), n_ctx=4096) for n in (0, 10, 400, 2000)]
    assert len({one[: one.index("[pre]")] for one in filled_prompt}) == 1
    assert filled_prompt[0].startswith("4" * 5) or not filled_prompt[0].startswith("[repo]")  # the oldest had no room
