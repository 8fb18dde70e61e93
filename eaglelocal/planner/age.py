"""When a model came out, and what that is worth: the later, the more its makers knew to make of parameters. Pure.

Knows nothing of single models: a weak one of this year is taken for as good as a strong one. What has no date is taken
for as old as the usual model of the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.targets import Target
from eaglelocal.gguf.header import Header
from eaglelocal.hub.cache import repo_folder

# Of parameters, in a year. Benchmarks say 10.8 (Densing Law, arXiv 2412.04315: a doubling in 3.5 months), which nobody
# feels. The same loss takes a third of the compute (Epoch, arXiv 2403.05812: a halving in 8 months), which is 1.7 times
# the parameters where tokens grow as they do. Up to 1.8 a 70 B of 2024 comes before a 31 B of 2026, from 2.4 on a 12 B
# of 2026 before a 32 B of 2025.
WORTH_OF_YEAR = 2.0
MOST_YEARS = 1.5  # that count, either way: nobody has measured more at one size
NAMES = ("general.name", "general.basename", "general.base_model.0.name")  # a fine-tune knows what its base does


@dataclass(frozen=True, slots=True)
class Age:
    """Of a model, beside the usual one of its catalogue. Both as YYYY-MM; empty: unknown.

    >>> Age("2026-04", usual="2025-04").worth
    2.0
    """

    released: str = ""
    usual: str = ""

    @property
    def years(self) -> float:
        """Later than usual."""
        if not self.released or not self.usual:
            return 0.0
        return max(-MOST_YEARS, min((_months(self.released) - _months(self.usual)) / 12, MOST_YEARS))

    @property
    def worth(self) -> float:
        """Of a parameter, in those of the usual age."""
        return float(WORTH_OF_YEAR**self.years)


def age_of(target: Target, catalog: Catalog) -> Age:
    return Age(target.released, usual=catalog.usual_release)


def age_of_file(header: Header, catalog: Catalog) -> Age:
    """As old as the entry of the catalogue that it is, or is made of, by its own names or its repository."""
    target = _named(header, catalog) or _from_repo(header, catalog)
    return age_of(target, catalog) if target else Age(usual=catalog.usual_release)


def _named(header: Header, catalog: Catalog) -> Target | None:
    """The one whose name says most of the file's: Qwen3-4B-Thinking is a Qwen3-4B."""
    for own in filter(None, (_plain(header.metadata.get(key)) for key in NAMES)):
        found = [(name, target) for target in catalog.targets.values() for name in _names(target)]
        fitting = [(name, target) for name, target in found if f"{own}-".startswith(f"{name}-")]
        if fitting:
            return max(fitting, key=lambda each: len(each[0]))[1]
    return None


def _names(target: Target) -> Iterator[str]:
    """Its id, and what its files are called before their quantization."""
    yield target.id
    yield from (_plain(re.split(r"-(?:UD-)?\{", file)[0]) for file in target.files)


def _from_repo(header: Header, catalog: Catalog) -> Target | None:
    folders = {part.lower() for part in header.path.parts}
    for target in catalog.targets.values():
        if any(repo_folder(header.path, repo).name.lower() in folders for repo in target.repos):
            return target
    return None


def _plain(name: object) -> str:
    """As people write a model's name, in one way.

    >>> _plain("Qwen3.6 27B"), _plain("gpt_oss-20b")
    ('qwen3.6-27b', 'gpt-oss-20b')
    """
    return re.sub(r"[\s_-]+", "-", name).lower() if isinstance(name, str) else ""


def _months(month: str) -> int:
    year, number = month.split("-")
    return 12 * int(year) + int(number)
