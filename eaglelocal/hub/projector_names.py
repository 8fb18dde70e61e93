"""Image projectors by their names: which model each belongs to, and which of several is the best.

Publishers give one in several types, and call it after the model, or after nothing but its type: `mmproj-F16.gguf`,
`mmproj-gemma-3-4b-it-f16.gguf`. Names are compared without type, punctuation and case. Pure: on a hub or on disk alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.core.records import dataclass
from eaglelocal.hub.repo_builds import RepoBuild, group_builds, parse_quant, remove_quant

# An image's embeddings differ from those of F32 by 0.06 % (F16), 0.5 % (BF16) and 1.5 % (Q8_0). On a CPU these types
# take about as long; every GPU reads F16.
PREFERRED = ("F16", "BF16", "Q8_0", "F32")
LARGE_BYTES = 2 << 30  # it stays in memory beside the model, in place of better weights or more context
_PROJECTOR = re.compile(r"(?<![a-z])mmproj(?![a-z])", re.IGNORECASE)
_WORDS_OF_NOBODY = re.compile(r"(?<![a-z])(mmproj|model|gguf|vision|projector)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NamedProjector:
    """A projector under its file's name; `model_names`: the models it is named after; `size_bytes`: 0, if not known."""

    name: str
    quant: str
    model_names: frozenset[str] = frozenset()
    size_bytes: int = 0

    @property
    def rank(self) -> tuple[bool, int, str]:
        """The sort key, the best first: small enough, as exact as images need, and of a type that every machine reads.

        Muse Glimmer's is 3.9 GB in BF16 and 2.1 in Q8_0: the latter.
        """
        place = PREFERRED.index(self.quant) if self.quant in PREFERRED else len(PREFERRED)
        return self.size_bytes > LARGE_BYTES, place, self.name

    def of_size(self, size_bytes: int) -> NamedProjector:
        return replace(self, size_bytes=size_bytes)


def list_projectors(names: Iterable[str]) -> list[str]:
    return sorted(
        name for name in names if name.lower().endswith(GGUF_SUFFIX) and _PROJECTOR.search(_find_base_name(name))
    )


def parse_projector(name: str, *stated_names: str) -> NamedProjector:
    """Return a projector by its file's name and by the names that its header states (`stated_names`)."""
    stem = _find_base_name(name)[: -len(GGUF_SUFFIX)]
    return NamedProjector(name, parse_quant(stem), frozenset(filter(None, map(normalize_name, (stem, *stated_names)))))


def normalize_name(text: str) -> str:
    """Return `gemma34bit` for `mmproj-gemma-3-4b-it-f16` and for `Gemma 3 4b It`; empty where no model is named."""
    return re.sub(r"[\W_]+", "", _WORDS_OF_NOBODY.sub(" ", remove_quant(text))).lower()


def list_model_names(names: Iterable[str]) -> set[str]:
    """Return the models among files, regardless of quantizations and without drafts."""
    return {normalize_name(_find_base_name(build.stem)) for build in group_builds(names) if not build.is_draft}


def find_model_name(build: RepoBuild) -> str:
    return normalize_name(_find_base_name(build.stem))


def match_projectors(
    found: Sequence[NamedProjector], model_names: Iterable[str], *, is_alone: bool
) -> list[NamedProjector]:
    """Return the projectors that belong to a model, the best first; none where that is ambiguous.

    model_names  the model's names
    is_alone     True: no other model is beside them, so that projectors named after no model are this one's
    """
    wanted = {call for call in map(normalize_name, model_names) if call}
    left = (
        [each for each in found if each.model_names & wanted]
        or [each for each in found if any(one in other or other in one for one in each.model_names for other in wanted)]
        or (list(found) if is_alone else [])
    )
    return (
        sorted(left, key=lambda each: each.rank)
        if len({normalize_name(_strip_suffix(each)) for each in left}) == 1
        else []
    )


def _strip_suffix(each: NamedProjector) -> str:
    return _find_base_name(each.name)[: -len(GGUF_SUFFIX)]


def _find_base_name(name: str) -> str:
    return name.rsplit("/", 1)[-1]
