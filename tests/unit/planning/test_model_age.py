"""The value of a model's release date, and the date of a file that only its names reveal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.catalog_plans import catalog, every_option, option
from doubles.weightless_models import REAL, Sketch, write_sketch
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.planning.options import ModelOption, make_file_option
from eaglelocal.planning.quality import MOST_YEARS, WORTH_OF_YEAR, Age, find_age

months = st.builds("{:04}-{:02}".format, st.integers(2018, 2032), st.integers(1, 12))


@pytest.mark.parametrize(
    ("released", "usual", "worth"),
    [
        ("2025-04", "2025-04", 1.0),
        ("2026-04", "2025-04", WORTH_OF_YEAR),
        ("2024-04", "2025-04", 1 / WORTH_OF_YEAR),
        ("2025-10", "2025-04", WORTH_OF_YEAR**0.5),
        ("2026-01", "2025-12", WORTH_OF_YEAR ** (1 / 12)),
        ("2031-01", "2025-04", WORTH_OF_YEAR**MOST_YEARS),
        ("2019-01", "2025-04", WORTH_OF_YEAR**-MOST_YEARS),
        ("", "2025-04", 1.0),  # unknown: as old as usual
        ("2025-04", "", 1.0),
    ],
)
def test_what_a_date_is_worth(released: str, usual: str, worth: float) -> None:
    assert Age(released, usual=usual).worth == pytest.approx(worth)


@given(months, months, months)
def test_later_is_never_worth_less(one: str, other: str, usual: str) -> None:
    early, late = sorted((one, other))
    assert Age(early, usual=usual).worth <= Age(late, usual=usual).worth


def test_of_one_month_the_larger_is_better_and_of_one_size_the_newer() -> None:
    alike = [each for each in every_option() if each.quant == "Q4_K_M"]
    for one in alike:
        for other in alike:
            if one.age == other.age and one.quality_b > other.quality_b:
                assert one.answers_b > other.answers_b
            if one.age.years > other.age.years and one.quality_b >= other.quality_b:
                assert one.answers_b > other.answers_b


@pytest.mark.parametrize(
    ("better", "than"),
    [
        ("qwen3.6-27b", "qwen3-32b"),
        ("gemma-4-31b", "llama-3.3-70b"),
        ("qwen3.6-27b", "qwen2.5-72b"),
        ("qwen3.5-9b", "qwen3-14b"),
        ("qwen3.5-9b", "r1-distill-qwen-14b"),
        ("gemma-4-12b", "gemma-3-27b"),
        ("qwen3.6-35b-a3b", "qwen3-30b-a3b"),
        ("qwen3.6-35b-a3b", "qwen3.5-9b"),
        ("gemma-4-26b-a4b", "qwen3.5-9b"),
        # what no year makes up for
        ("qwen3-32b", "qwen3.5-9b"),
        ("qwen3-32b", "gemma-4-12b"),
        ("qwen3.6-27b", "qwen3.6-35b-a3b"),
        ("qwen3-14b", "qwen3.5-4b"),
        ("llama-3.3-70b", "qwen3.5-9b"),
        ("qwen2.5-14b", "gemma-3-4b"),
    ],
)
def test_generations_as_people_rank_them(better: str, than: str) -> None:
    assert option(better, "Q4_K_M").answers_b > option(than, "Q4_K_M").answers_b


def option_of(folder: Path, sketch: Sketch, name: str = "x.gguf") -> ModelOption:
    folder.mkdir(parents=True, exist_ok=True)
    header = read_header(write_sketch(folder / name, sketch))
    return make_file_option(ModelInfo.from_header(header), reference="x", label="x", catalog=catalog())


SMALL = REAL["qwen3-0.6b"]


@pytest.mark.parametrize(
    ("expected", "released"),
    [
        ({"general.name": "Qwen3.6 27B"}, "2026-04"),
        ({"general.name": "Qwen3_32B"}, "2025-04"),
        ({"general.name": "Qwen3 4B Thinking 2507"}, "2025-04"),
        ({"general.name": "Qwen3-4B-Instruct-2507"}, "2025-08"),
        ({"general.name": "Qwen3 30B A3B"}, "2025-04"),
        ({"general.name": "Qwen3-30B-A3B-Instruct-2507"}, "2025-07"),
        ({"general.name": "Meta Llama 3.1 8B Instruct"}, "2024-07"),
        ({"general.name": "DeepSeek R1 Distill Llama 8B"}, "2025-01"),  # older is what it was made of
        ({"general.name": "Gpt-Oss-20B"}, "2025-08"),
        ({"general.name": "Helper of mine", "general.base_model.0.name": "Gemma 3 12b It"}, "2025-03"),
        ({"general.name": "model", "general.basename": "Qwen3.5-9B"}, "2026-03"),
        ({"general.name": "Qwen3 320B"}, ""),  # its name only begins alike
        ({"general.name": "Nobody's 7B"}, ""),
        ({}, ""),
    ],
)
def test_a_file_is_as_old_as_the_entry_that_its_names_mean(
    tmp_path: Path, expected: dict[str, str], released: str
) -> None:
    header = read_header(write_sketch(tmp_path / "x.gguf", SMALL))
    named = replace(header, metadata={**header.metadata, **expected})
    assert find_age(named, catalog()).released == released


def test_a_file_of_a_repository_that_the_catalogue_knows(tmp_path: Path) -> None:
    folder = tmp_path / "models--unsloth--qwen3-8b-gguf" / "snapshots"
    assert option_of(folder, SMALL).age.released == "2025-04"
    assert option_of(tmp_path / "models--me--mine", SMALL).age.worth == 1.0
