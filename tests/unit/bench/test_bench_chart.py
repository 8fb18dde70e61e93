"""The chart: well-formed, to scale, readable without colours, and made of text that cannot break it."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.bench.report_page import WIDTH, choose_axis, draw_chart
from eaglelocal.bench.results import Bound, CategoryResult

SVG = "{http://www.w3.org/2000/svg}"


def run(category: str, side: str, speedup: Bound | None, concurrency: int = 1) -> CategoryResult:
    return CategoryResult(
        category=category,
        concurrency=concurrency,
        side=side,
        speedup=speedup,
        plain_tok_s=10.0,
        tok_s=20.0,
        acceptance_length=3.0,
        plain_ttft_s=0.1,
        ttft_s=0.1,
        num_pairs=3,
        num_short=0,
        num_answers=3,
        num_identical=3,
        num_reused=0,
        num_drafts=9,
        num_asleep=0,
        differences=(),
    )


RUNS = [
    run("chat", "auto", Bound(1.5, 1.3, 1.7, 1.35)),
    run("chat", "8", Bound(0.6, 0.5, 0.7, 0.52)),
    run("math", "auto", Bound(1.1, 0.1, 40.0, 0.2)),
    run("a<&b", "auto", Bound(2.0)),
    run("\x1b[31m\udcff", "auto", Bound(2.0)),
    run("copy", "auto", None),
    run("mixed", "auto", Bound(1.2, 1.1, 1.3, 1.12), concurrency=4),
]


def drawn(runs: list[CategoryResult]) -> ElementTree.Element:
    return ElementTree.fromstring(draw_chart(runs, title="a <model> & more", subtitle="a head"))


def test_it_is_well_formed_and_says_everything_in_words() -> None:
    said = [element.text for element in drawn(RUNS).iter(f"{SVG}text")]
    for text in (
        "a <model> & more",
        "a<&b",
        "\ufffd[31m\ufffd",
        "auto  1.50x 1.30..1.70",
        "8  0.60x 0.50..0.70",
        "mixed x4",
        "auto: answers too short",
    ):
        assert text in said
    assert "plain decoding" in said


def test_bars_are_to_scale_and_whiskers_only_where_an_interval_is_known() -> None:
    root = drawn(RUNS)
    widths = [float(r.attrib["width"]) for r in root.iter(f"{SVG}rect") if "fill" in r.attrib]
    assert widths[0] / widths[1] == pytest.approx(1.5 / 0.6, rel=0.01)
    assert len(widths) == 6
    whiskers = [path.attrib["d"] for path in root.iter(f"{SVG}path")]
    assert len(whiskers) == 4
    assert [" l5 4" in d.replace("l5", " l5") for d in whiskers] == [False, False, True, False]


def test_it_has_colours_for_dark_pages_and_needs_nothing_from_outside() -> None:
    text = draw_chart(RUNS, title="t", subtitle="s")
    assert "prefers-color-scheme: dark" in text
    assert text.count("http") == 1  # the name space


@given(st.lists(st.floats(0.01, 200), min_size=1, max_size=8), st.floats(1, 50))
def test_everything_lies_on_the_page(means: list[float], width: float) -> None:
    runs = [run("x", str(i), Bound(m, m / width, m * width, m / width)) for i, m in enumerate(means)]
    axis = choose_axis([bound for run in runs if (bound := run.speedup)])
    assert axis.most >= max(*means, 1.0) * 0.999
    assert 2 <= len(axis.ticks) <= 10
    for mean in (*means, math.inf, 0.0):
        assert 0 <= axis.x(mean) <= WIDTH
