"""Weigh a model's release date: a later model makes better use of each parameter. Pure.

It does not judge single models: a weak one of this year counts as much as a strong one. A model without a date counts
as old as the usual model of the catalog (`Catalog.median_release`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.header import Header
from eaglelocal.hub.hub_cache import repo_folder

# The factor by which a parameter gains value in a year. Benchmarks give 10.8 (Densing Law, arXiv 2412.04315: a doubling
# in 3.5 months), far more than users notice. The compute for the same loss falls to a third (Epoch, arXiv 2403.05812: a
# halving in 8 months), which is a factor of 1.7 in parameters if training tokens grow along. Up to 1.8 a 70 B of 2024
# would rank above a 31 B of 2026; from 2.4 on, a 12 B of 2026 above a 32 B of 2025.
WORTH_OF_YEAR = 2.0
MOST_YEARS = 1.5  # the most that counts, earlier or later: nobody has measured a longer span at one size
NAMES = ("general.name", "general.basename", "general.base_model.0.name")  # a fine-tune counts as its base model


@dataclass(frozen=True, slots=True)
class Age:
    """A model's release month and that of the usual model of the catalog, both as YYYY-MM; empty: unknown.

    >>> Age("2026-04", usual="2025-04").worth
    2.0
    """

    released: str = ""
    usual: str = ""

    @property
    def years(self) -> float:
        """Return by how many years the model is later than usual, within MOST_YEARS; 0 if unknown."""
        if not self.released or not self.usual:
            return 0.0
        return max(-MOST_YEARS, min((_months(self.released) - _months(self.usual)) / 12, MOST_YEARS))

    @property
    def worth(self) -> float:
        """Return the value of one parameter, in parameters of a model of the usual age."""
        return float(WORTH_OF_YEAR**self.years)


def find_age(header: Header, catalog: Catalog) -> Age:
    """Return the age of the catalog entry that the file is or derives from, by its names or its repository."""
    target = _named(header, catalog) or _from_repo(header, catalog)
    return Age(target.released if target else "", usual=catalog.median_release)


def _named(header: Header, catalog: Catalog) -> TargetEntry | None:
    """Return the target with the longest name that begins the file's name: Qwen3-4B-Thinking is a Qwen3-4B."""
    for own in filter(None, (_plain(header.metadata.get(key)) for key in NAMES)):
        found = [(name, target) for target in catalog.targets.values() for name in _names(target)]
        fitting = [(name, target) for name, target in found if f"{own}-".startswith(f"{name}-")]
        if fitting:
            return max(fitting, key=lambda each: len(each[0]))[1]
    return None


def _names(target: TargetEntry) -> Iterator[str]:
    """Yield its id, and the names of its files up to the quantization."""
    yield target.id
    yield from (_plain(re.split(r"-(?:UD-)?\{", file)[0]) for file in target.files)


def _from_repo(header: Header, catalog: Catalog) -> TargetEntry | None:
    folders = {part.lower() for part in header.path.parts}
    for target in catalog.targets.values():
        if any(repo_folder(header.path, repo).name.lower() in folders for repo in target.repos):
            return target
    return None


def _plain(name: object) -> str:
    """Return a model's name in lower case with single hyphens; "" if it is no text.

    >>> _plain("Qwen3.6 27B"), _plain("gpt_oss-20b")
    ('qwen3.6-27b', 'gpt-oss-20b')
    """
    return re.sub(r"[\s_-]+", "-", name).lower() if isinstance(name, str) else ""


def _months(month: str) -> int:
    year, number = month.split("-")
    return 12 * int(year) + int(number)
