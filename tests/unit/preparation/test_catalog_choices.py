"""The models of the catalog as choices: which words find them, and that each row is the plan of that model."""

from __future__ import annotations

import pytest

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.core.run_options import RunOptions
from eaglelocal.preparation.autoplan import plan_target
from eaglelocal.preparation.model_choices import list_catalog
from eaglelocal.preparation.models import find_models

MACHINE = "cpu-16gb"


@pytest.mark.parametrize("words", [("coder",), ("QWEN3-CODER-NEXT", "q4"), ("no-such-model",)])
def test_a_row_has_all_the_words_in_its_reference(words: tuple[str, ...]) -> None:
    found = [row.option.reference for row in list_catalog(RunOptions(), words, machine_name=MACHINE)]
    every = [option.reference for option in find_models(RunOptions(), load_catalog())]
    assert found == [each for each in every if all(word.lower() in each.lower() for word in words)]
    assert bool(found) is (words != ("no-such-model",))


def test_each_row_is_the_plan_of_its_model() -> None:
    rows = list(list_catalog(RunOptions(), ("qwen3-8b:", "q4_k_m"), machine_name=MACHINE))
    assert [row.option.reference for row in rows] == ["qwen3-8b:Q4_K_M"]
    planned = plan_target(RunOptions(target="qwen3-8b:Q4_K_M"), machine_name=MACHINE).chosen
    assert planned is not None and rows[0].fits
    assert rows[0].tok_s == planned.prediction.spec_tok_s


def test_a_model_that_does_not_fit_has_no_speed() -> None:
    rows = list(list_catalog(RunOptions(), ("gpt-oss-120b",), machine_name="cpu-16gb"))
    assert rows and not any(row.fits or row.tok_s for row in rows)
