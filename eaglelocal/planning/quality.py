"""Estimate the quality of answers as a number of effective parameters, known for every catalog entry.

    effective parameters = all^0.6 x active^0.4 x exp(-LOSS x KLD of the quantization)

For dense models before quantization it is the number of parameters. For mixtures of experts the usual rule of thumb is
the geometric mean, an exponent of 0.5; ALL_SHARE lies between the exponents that two mixtures of experts imply by the
index of Artificial Analysis (April 2026): 0.76 (Qwen3.6-35B-A3B beside its 27 B) and 0.4 (Qwen3.5-122B-A10B). KLD was
measured on one model of 8 B (catalog/target_entries.py). LOSS makes Q4_K_M worth 90 % of
f16, Q3_K_M 74 % and Q2_K 30 %, where the next smaller model of a family becomes the better use of memory. The number
only ranks: it ignores families, and generations are weighed below (model age). A file with fewer bits per weight than
its name usually has, as makers of mixtures publish them, gets the KLD interpolated at its bits, and so does one whose
name was not measured. More bits than usual, in the embeddings of a large vocabulary, make it no better: Q3_K_XL is
measured by Q3_K_L.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import quantiles

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import DraftEntry
from eaglelocal.catalog.reference import folder_name
from eaglelocal.catalog.target_entries import QuantLoss, TargetEntry
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import split_kv_type
from eaglelocal.gguf.header import Header
from eaglelocal.memory.cache_bytes import bits_per_value

LOSS = 3.6
ALL_SHARE = 0.6
NATIVE = "MXFP4"  # models are trained in it, so nothing is lost
LOSSLESS = (NATIVE, "BF16", "F32")
FULL_BITS = 16.0
# the measured quantizations that stand for a bare tensor type or an _XL mixture; the first known one counts
MIXTURES = ("_L", "_M", "")
# share of quality lost by a quantized cache; four bits harm some families much, so only where nothing else fits
KV_LOSS: Mapping[str, float] = {"q8_0": 0.01, "q4_0": 0.3}
# of the loss, if keys and values have one type. SmolLM2-135M loses 0.83 of it by keys in q5_1, 0.88 in q4_0
# (docs/measured.md); an 8 B model 0.58 in q8_0, where little is lost (ggml-org/llama.cpp#7412)
KEYS_SHARE = 0.85


def estimate_kv_loss(kv_type: str) -> float:
    """Return the share of quality that a cache of this type loses; keys and values count apart."""
    keys, values = map(_type_loss, split_kv_type(kv_type))
    return KEYS_SHARE * keys + (1 - KEYS_SHARE) * values


def _type_loss(name: str) -> float:
    """Return the loss with keys and values of one type: of q8_0 and q4_0 as stated, else log-linear in their bits.

    The types between them are interpolated because nobody has measured them on this scale.
    """
    bits, low, high = map(bits_per_value, (name, "q4_0", "q8_0"))
    if bits > high:
        return 0.0
    return float(KV_LOSS["q4_0"] * (KV_LOSS["q8_0"] / KV_LOSS["q4_0"]) ** ((bits - low) / (high - low)))


def effective_b(
    *, parameters_b: float, active_b: float, quant: str, bits_per_weight: float, quants: Mapping[str, QuantLoss]
) -> float:
    """Return the effective parameters, in 10^9. `bits_per_weight`: of the whole file."""
    lost = divergence(quant, quants, bits_per_weight=bits_per_weight)
    return float(parameters_b**ALL_SHARE * active_b ** (1 - ALL_SHARE)) * math.exp(-LOSS * lost)


def divergence(quant: str, quants: Mapping[str, QuantLoss], *, bits_per_weight: float) -> float:
    """Return the KLD of next tokens relative to f16: by the quantization's name, or by its bits if that is more."""
    name = quant.upper().removeprefix("UD-").removeprefix("QAT_")
    if name in LOSSLESS:
        return 0.0
    bare, is_large, _ = name.partition("_XL")
    names = [name, *(f"{bare}{end}" for end in (MIXTURES if is_large else ("_M",)))]
    measured = [loss.kld for each in names if (loss := quants.get(each)) and loss.kld is not None]
    return max(measured[0] if measured else 0.0, estimate_divergence(bits_per_weight, quants))


def estimate_divergence(bits: float, quants: Mapping[str, QuantLoss]) -> float:
    """Return the KLD at these bits per weight: log-linear between measured points and below them; 0 from 16 bits."""
    points = frontier(quants)
    if not points or bits >= FULL_BITS:
        return 0.0
    if bits >= points[-1][0] or len(points) == 1:
        return points[-1][1]
    index = next((index for index, (known, _) in enumerate(points) if known > bits), len(points) - 1)
    (low, more), (high, less) = points[max(index - 1, 0)], points[max(index, 1)]
    share = (bits - low) / (high - low)
    return float(more * (less / more) ** share)


def frontier(quants: Mapping[str, QuantLoss]) -> list[tuple[float, float]]:
    """Return the (bits, KLD) points that no smaller quantization beats, by bits, leaving out those with a KLD of 0."""
    known = sorted((loss.bits_per_weight, loss.kld) for loss in quants.values() if loss.kld)
    points: list[tuple[float, float]] = []
    for bits, kld in known:
        if points and bits == points[-1][0]:
            continue
        if not points or kld < points[-1][1]:
            points.append((bits, kld))
    return points


# ---- model age: weigh a model's release date: a later model makes better use of each parameter. Pure
#
# It does not judge single models: a weak one of this year counts as much as a strong one. A model without a date
# counts as old as the usual one, USUAL_RELEASE.
# The factor by which a parameter gains value in a year. Benchmarks give 10.8 (Densing Law, arXiv 2412.04315: a doubling
# in 3.5 months), far more than users notice. The compute for the same loss falls to a third (Epoch, arXiv 2403.05812: a
# halving in 8 months), which is a factor of 1.7 in parameters if training tokens grow along. Up to 1.8 a 70 B of 2024
# would rank above a 31 B of 2026; from 2.4 on, a 12 B of 2026 above a 32 B of 2025.
WORTH_OF_YEAR = 2.0
USUAL_RELEASE = "2025-12"  # the catalog's median when the factor was chosen; fixed, or old entries would move all plans
MOST_YEARS = 1.5  # the most that counts, earlier or later: no longer span was measured at one size
NAMES = ("general.name", "general.basename", "general.base_model.0.name")  # a fine-tune counts as its base model


@dataclass(frozen=True, slots=True)
class Age:
    """The release months of a model and of the usual one, both as YYYY-MM; empty: unknown.

    >>> Age("2026-04", usual="2025-04").worth
    2.0
    """

    released: str = ""
    usual: str = USUAL_RELEASE

    @property
    def years(self) -> float:
        """Return how many years newer the model is than usual, within MOST_YEARS; 0 if unknown."""
        if not self.released or not self.usual:
            return 0.0
        return max(-MOST_YEARS, min((_months(self.released) - _months(self.usual)) / 12, MOST_YEARS))

    @property
    def worth(self) -> float:
        """Return the value of one parameter, in parameters of a model of the usual age."""
        return float(WORTH_OF_YEAR**self.years)


def find_age(header: Header, catalog: Catalog) -> Age:
    """Return the age of the file's catalog entry, or of the entry that it derives from, by its names or repository."""
    target = _named(header, catalog) or _from_repo(header, catalog)
    return Age(target.released if target else "")


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
        if any(folder_name(repo).lower() in folders for repo in target.repos):
            return target
    return None


def _plain(name: object) -> str:
    """Return a model's name in lower case with single hyphens; "" if it is not a text.

    >>> _plain("Qwen3.6 27B"), _plain("gpt_oss-20b")
    ('qwen3.6-27b', 'gpt-oss-20b')
    """
    return re.sub(r"[\s_-]+", "-", name).lower() if isinstance(name, str) else ""


def _months(month: str) -> int:
    year, number = month.split("-")
    return 12 * int(year) + int(number)


# ---- predicted acceptance: predict the acceptance length of a draft that has not run on this machine yet. Pure
#
# A report is a pair (drafted tokens k, mean tokens of a step, bonus token included). If each drafted token is
# accepted with the same probability a, a step emits E(k) = 1 + a + ... + a^k tokens on average (Leviathan et al.
# 2023). Each report is converted to its a, and values between reports are interpolated. A draft without reports gets
# the median of those of its class, or a default where few have one. What an engine measures replaces all of it.
HEAD_DEFAULT = 0.55  # of a head of no entry: below the median of the reported ones, as it may be in the weaker half
MTP_DEFAULT = 0.6  # below the lowest report for Qwen3.5 and 3.6 (0.65 to 0.85 at two to four tokens)
MODEL_DEFAULT = 0.55  # for a small model of the same family
LEAST_REPORTS = 3  # for a median
PRECISION = 1e-6


@dataclass(frozen=True, slots=True)
class PredictedAcceptance:
    """The probability that a drafted token is accepted, by the number of drafted tokens.

    points       (drafted tokens, probability that each is accepted), ascending
    is_reported  False if the probability is a default
    """

    points: tuple[tuple[int, float], ...]
    is_reported: bool

    @classmethod
    def from_reports(cls, reports: Sequence[tuple[int, float]], *, default: float) -> PredictedAcceptance:
        """Return the acceptance of (drafted tokens, acceptance length) reports; `default` if there are none."""
        if not reports:
            return cls(((1, default),), is_reported=False)
        return cls(tuple((k, probability(k, tokens)) for k, tokens in sorted(reports)), is_reported=True)

    def probability(self, num_drafted: int) -> float:
        """Return the acceptance probability of a token in a chain of this length.

        Linear between the reported lengths, constant outside them.
        """
        lengths = [k for k, _ in self.points]
        right = bisect_left(lengths, num_drafted)
        if right == 0:
            return self.points[0][1]
        if right == len(lengths):
            return self.points[-1][1]
        (low, before), (high, behind) = self.points[right - 1], self.points[right]
        return before + (behind - before) * (num_drafted - low) / (high - low)

    def tokens(self, num_drafted: int) -> float:
        """Return the mean number of tokens that a step with this many drafted ones emits, bonus token included."""
        return tokens_of_step(num_drafted, self.probability(num_drafted))


def predict_acceptance(
    draft: DraftEntry, others: Iterable[DraftEntry], default: float
) -> tuple[PredictedAcceptance, str]:
    """Return the acceptance of a draft of the catalog, and a note on where it comes from, empty if it is reported.

    others   all drafts of the catalog, of which those of its class give the median, each at its longest drafts
    default  where too few of them have a reported acceptance
    """
    if draft.acceptance_lengths:
        text = draft.acceptance_text
        note = f"its acceptance was reported for {text}; other texts gain less or more" if text else ""
        return PredictedAcceptance.from_reports(draft.acceptance_lengths, default=default), note
    alike = [
        probability(*max(one.acceptance_lengths)) for one in others if one.acceptance_lengths and one.is_like(draft)
    ]
    source = ""
    if len(alike) >= LEAST_REPORTS:
        low, default, high = quantiles(alike, n=4, method="inclusive")
        source = f", the median of {len(alike)} such drafts, half of which lie between {low:.0%} and {high:.0%}"
    note = f"its acceptance is not reported: {default:.0%} a token assumed{source}"
    return PredictedAcceptance.from_reports((), default=default), note


def tokens_of_step(num_drafted: int, probability: float) -> float:
    """Return E(k) = 1 + a + ... + a^k, the mean tokens of a step, for k drafted tokens of acceptance probability a.

    >>> tokens_of_step(2, 0.5)
    1.75
    """
    return sum(probability**depth for depth in range(num_drafted + 1))


def probability(num_drafted: int, tokens: float) -> float:
    """Return the acceptance probability a with E(num_drafted) = `tokens`, by bisection (E increases with a)."""
    low, high = 0.0, 1.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_of_step(num_drafted, middle) < tokens else (low, middle)
    return (low + high) / 2
