"""Formulas as text: those that can be converted, and texts that are not formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.tui.transcript.formulas import convert_formula
from eaglelocal.tui.transcript.markdown_rows import render_markdown
from eaglelocal.tui.transcript.text_rows import Appearance, join_row


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (r"\(\frac{a}{b}\)", "a/b"),
        (r"\(\frac{a + b}{2}\)", "(a + b)/2"),
        (r"\(\frac12\)", "1/2"),
        ("$x^2$", "x²"),
        ("$$E = mc^2$$", "E = mc²"),
        ("\\[\n\\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}\n\\]", "(-b ± √(b² - 4ac))/2a"),
        (r"\(\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}\)", "∫₀^∞ e^(-x²) dx = √π/2"),
        (r"\(\sum_{i=1}^{n} i\)", "∑ᵢ₌₁ⁿ i"),
        ("$x_1 + x_{n+1}$", "x₁ + xₙ₊₁"),
        ("$x_{1,2}$", "x₁,₂"),
        (r"$O(n\log n)$", "O(n log n)"),
        (r"\(\sin\theta + \sin(x) + \log_2 n\)", "sin θ + sin(x) + log₂ n"),
        (r"\(\sqrt[3]{8} = 2\)", "∛8 = 2"),
        (r"\(v \in \mathbb{R}^3\)", "v ∈ ℝ³"),
        (r"\(90^\circ\)", "90°"),
        (r"\(\left( a \cdot b \right)\)", "( a · b )"),
        (r"\(\boxed{42 \text{ km}}\)", "42 km"),
        ("$n$", "n"),
        ("$f(x)$", "f(x)"),
        # not known, or not sure
        (r"\(\begin{matrix}a & b\end{matrix}\)", r"\(\begin{matrix}a & b\end{matrix}\)"),
        (r"\(\vec{a}\)", r"\(\vec{a}\)"),
        (r"\(\sqrt[n]{a}\)", r"\(\sqrt[n]{a}\)"),
        (r"\(\frac{a}\)", r"\(\frac{a}\)"),
        (r"\({a\)", r"\({a\)"),
        (rf"\({'{' * 990}x{'}' * 990}\)", rf"\({'{' * 990}x{'}' * 990}\)"),
        ("$5$", "$5$"),
        ("$5 and 6$", "$5 and 6$"),
        ("$HOME/bin:$", "$HOME/bin:$"),
        ("$MY_VAR:$", "$MY_VAR:$"),
        ("$a=$", "$a=$"),
        ("$a `b=c`$", "$a `b=c`$"),
    ],
)
def test_what_can_be_a_line_of_text_is_one(written: str, shown: str) -> None:
    assert convert_formula(written) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"So \(x^2\) *is* $\alpha$.", "So x² is α."),
        ("$5 and $6, or 7$ and 8$.", "$5 and $6, or 7$ and 8$."),
        ("From $5 to $10 (x^2).", "From $5 to $10 (x^2)."),
        ("`$x^2$` and $a=1;$b=2", "$x^2$ and $a=1;$b=2"),
        ("    \\(x^2\\)", r"\(x^2\)"),
    ],
)
def test_prices_and_code_stay_as_they_are(text: str, shown: str) -> None:
    assert "\n".join(join_row(row).strip() for row in render_markdown(text, 60, Appearance())) == shown


def test_where_there_are_no_signs_formulas_stay() -> None:
    for rows in (
        render_markdown("$x^2$", 60, Appearance(is_ascii=True)),
        render_markdown("$x^2$", 60, Appearance(), formulas=False),
    ):
        assert [join_row(row).strip() for row in rows] == ["$x^2$"]


@given(st.lists(st.sampled_from(["\\", "frac", "{", "}", "^", "_", "a", " ", "[", "]", "sqrt", "\n", "&", "é"])))
def test_no_formula_is_too_odd(parts: list[str]) -> None:
    written = f"\\({''.join(parts)}\\)"
    assert convert_formula(written)
