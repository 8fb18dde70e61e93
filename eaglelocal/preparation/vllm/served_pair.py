"""Define a target and its draft as vLLM loads them: repositories with commits, and sizes in vLLM's types. Pure.

vLLM loads the original weights, in 16 bits or in the native type of the model, not a GGUF. So sizes here are those of a
plan's shapes, widened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from eaglelocal.catalog.catalog import CPU
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.planning.machine_spec import DeviceSpec, MachineSpec
from eaglelocal.planning.quality import PredictedAcceptance
from eaglelocal.planning.speed import (
    DRAFT_HOST_S,
    DRAFTED_HOST_S,
    HALVES,
    HOST_S,
    MOST_WASTE,
    TYPICAL_CELLS,
    Curve,
    SpeedModel,
    cache_bytes,
    find_kernels,
    make_curve,
)

KV_TYPE = "f16"  # as many bytes as vLLM's bfloat16
BYTES_PER_WEIGHT = 2
EAGLE3, PEAGLE, DRAFT_MODEL, MTP = "eagle3", "peagle", "draft_model", "mtp"
DFLASH, DSPARK, MEDUSA, NGRAM, SUFFIX = "dflash", "dspark", "medusa", "ngram", "suffix"
REPO_METHODS = (EAGLE3, PEAGLE, DRAFT_MODEL, DFLASH, DSPARK, MEDUSA, MTP)  # with weights in a repository
METHODS = (*REPO_METHODS, NGRAM, SUFFIX)
IN_ONE_PASS = (PEAGLE, DFLASH, DSPARK, MEDUSA)


def names_folder(repo: str) -> bool:
    """Return whether a text names a folder on disk; any other text is a repository."""
    return repo.startswith(("/", "./", "../", "~"))


@dataclass(frozen=True, slots=True)
class WeightsPin:
    """A repository at a commit. `revision`: empty for a folder on disk, which has none."""

    repo: str
    revision: str = ""

    @property
    def is_folder(self) -> bool:
        return not self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmTarget:
    """A target for vLLM. `id`: as the catalog or a person calls it."""

    id: str
    pin: WeightsPin
    model: SpeedModel
    max_context: int
    is_gated: bool = False

    @property
    def shape(self) -> ModelShape:
        return self.model.shape

    def cache_bytes(self, num_tokens: int) -> int:
        """Return the bytes of keys and values of a sequence of this many tokens, recurrent states included."""
        layers = range(self.shape.n_layer)
        return sum(cache_bytes(self.shape, layer, KV_TYPE, num_tokens) for layer in layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmDraft:
    """A draft for vLLM.

    pin         None: it has no weights, or those of the target
    most        tokens that a draft may have
    num_bytes   of its weights
    acceptance  None: it depends on the text
    head_file   a head of this machine, which must be exported into the folder of `pin`
    shares_vocab  False: its vocabulary has another size than the target's, or an unknown one
    """

    id: str
    method: str  # one of METHODS
    pin: WeightsPin | None = None
    most: int
    num_bytes: int = 0
    num_layers: int = 0
    kv_bytes_per_token: int = 0
    acceptance: PredictedAcceptance | None = None
    head_file: Path | None = None
    is_gated: bool = False
    shares_vocab: bool = True

    @property
    def drafts_in_one_pass(self) -> bool:
        return self.method in IN_ONE_PASS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPair:
    """A target with its draft. `draft`: None drafts nothing. `is_named`: a person named it, so that it must draft."""

    target: VllmTarget
    draft: VllmDraft | None
    is_named: bool = False
    notes: tuple[str, ...] = ()


def widen_model(model: SpeedModel, *, is_native: bool) -> SpeedModel:
    """Return the model with the bytes of its original weights. `is_native`: they are as small as in the GGUF."""
    shape = model.shape
    if is_native:
        return model
    factor = BYTES_PER_WEIGHT * model.parameters / max(shape.weights_bytes, 1)
    wide = replace(
        shape,
        weights_bytes=int(shape.weights_bytes * factor),
        embedding_bytes=int(shape.embedding_bytes * factor),
        tied_output_bytes=int(shape.tied_output_bytes * factor),
        output_bytes=int(shape.output_bytes * factor),
        active_bytes=int(shape.active_bytes * factor),
        layer_bytes=tuple(int(each * factor) for each in shape.layer_bytes),
        expert_bytes=tuple(int(each * factor) for each in shape.expert_bytes),
    )
    return replace(model, shape=wide, arithmetic=HALVES)


# ---- draft schedule: choose the number of draft tokens for each number of running sequences, by predicted goodput.
# Pure
#
# The costs are those of planning/speed.py, the acceptance that of planning/quality.py; a step of b sequences with k
# draft tokens each is
#
# seconds = decode of b (k + 1) rows + reading the caches of the other b - 1 sequences + passes of the draft, each of
# b rows tokens = b E(k)
#
# A further row costs what it costs in llama.cpp's kernels, to which the constants were fitted. vLLM's are faster with
# many rows, so the schedule stops drafting at fewer sequences than vLLM could draft for.
Range = tuple[int, int, int]  # first and last number of sequences, draft tokens of each


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """The seconds of a step, by sequences and draft tokens of each."""

    curve: Curve
    device: DeviceSpec
    cache_s: float  # reading the cache of one sequence
    draft: VllmDraft

    def step_s(self, num_sequences: int, num_drafted: int) -> float:
        """Return the seconds of a step. `num_drafted`: tokens drafted for each sequence; 0: a plain step."""
        decode_s = self.curve.decode_s(num_sequences * (num_drafted + 1)) + (num_sequences - 1) * self.cache_s
        if not num_drafted:
            return decode_s + HOST_S
        return decode_s + DRAFTED_HOST_S + self._draft_s(num_sequences, num_drafted)

    def _draft_s(self, num_sequences: int, num_drafted: int) -> float:
        """Return the seconds of all passes of the draft."""
        if not self.draft.num_bytes:
            return 0.0
        if self.draft.drafts_in_one_pass:
            return self._pass_s(num_sequences * num_drafted)
        return num_drafted * self._pass_s(num_sequences)

    def _pass_s(self, num_rows: int) -> float:
        kernels = find_kernels(self.device)
        read_s = self.draft.num_bytes / (self.device.bytes_s * kernels.efficiency)
        starting = (self.draft.num_layers + 1) * kernels.layer_s + DRAFT_HOST_S
        if self.device.kind == CPU:
            return starting + read_s * (1.0 + (num_rows - 1) * HALVES.row)
        row_s = 2.0 * self.draft.num_bytes / BYTES_PER_WEIGHT / (self.device.flops * kernels.row_share)
        return starting + read_s + (num_rows - 1) * row_s

    def goodput(self, num_sequences: int, num_drafted: int) -> float:
        """Return the expected tokens a second of all sequences together."""
        acceptance = self.draft.acceptance
        tokens = acceptance.tokens(num_drafted) if acceptance is not None else 1.0
        return num_sequences * tokens / self.step_s(num_sequences, num_drafted)


def make_batch_costs(target: VllmTarget, draft: VllmDraft, device: DeviceSpec) -> BatchCosts:
    """Return the costs of a pair on one device, which may stand for several cards that share each layer."""
    where = [device.name] * (target.shape.n_layer + 1)
    alone = MachineSpec(name=device.label, host=device)
    curve = make_curve(target.model, where, alone, None, kv_type=KV_TYPE, num_cells=TYPICAL_CELLS, measured=None)
    bytes_s = device.bytes_s * find_kernels(device).efficiency
    return BatchCosts(curve, device, target.cache_bytes(TYPICAL_CELLS) / bytes_s, draft)


def choose_draft_length(costs: BatchCosts, num_sequences: int, most: int) -> int:
    """Return the number of draft tokens with the best goodput, at most `most`; 0: plain steps are best.

    A lookup's acceptance depends on the text: the longest draft that costs at most MOST_WASTE plain steps if rejected.
    """
    lengths = range(most + 1)
    if costs.draft.acceptance is None:
        plain_s = costs.step_s(num_sequences, 0)
        return max(k for k in lengths if k == 0 or costs.step_s(num_sequences, k) <= MOST_WASTE * plain_s)
    return max(lengths, key=lambda k: (costs.goodput(num_sequences, k), -k))


def make_schedule(costs: BatchCosts, max_num_seqs: int) -> tuple[Range, ...]:
    """Return ranges of sequences with their draft length, from 1 to `max_num_seqs`; never longer for more sequences.

    >>> merge_lengths([5, 5, 3, 0, 0])
    ((1, 2, 5), (3, 3, 3), (4, 5, 0))
    """
    lengths: list[int] = []
    for num_sequences in range(1, max_num_seqs + 1):
        most = lengths[-1] if lengths else costs.draft.most
        lengths.append(choose_draft_length(costs, num_sequences, most) if most else 0)
    return merge_lengths(lengths)


def merge_lengths(lengths: Sequence[int]) -> tuple[Range, ...]:
    """Return the ranges of equal lengths. `lengths`: of 1, 2, ... sequences."""
    ranges: list[Range] = []
    for count, length in enumerate(lengths, 1):
        if ranges and ranges[-1][2] == length:
            ranges[-1] = (ranges[-1][0], count, length)
        else:
            ranges.append((count, count, length))
    return tuple(ranges)


# ---- speculative config: write the value of --speculative-config as vLLM 0.32 reads it. Pure
#
# The method is always stated: vLLM guesses a missing one from the name of the folder, and may fail at the first
# request. What a head needs besides (EAGLE-3.1's flags, mask tokens) vLLM reads from the head's own configuration.
SCHEDULE = "num_speculative_tokens_per_batch_size"
SUFFIX_TOKENS = 32  # the longest draft of a suffix tree, vLLM's own default
# keys of a method besides model, revision and lengths
METHOD_KEYS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        PEAGLE: {"parallel_drafting": True},
        NGRAM: {"prompt_lookup_min": 2, "prompt_lookup_max": 5},
        SUFFIX: {
            "suffix_decoding_max_tree_depth": 24,
            "suffix_decoding_max_cached_requests": 10000,
            "suffix_decoding_max_spec_factor": 1.0,
            "suffix_decoding_min_token_prob": 0.1,
        },
        DSPARK: {"draft_sample_method": "probabilistic", "enable_adaptive_verification": True},
    }
)


def make_speculative_config(draft: VllmDraft, schedule: Sequence[Range], num_cards: int) -> dict[str, object]:
    """Return the configuration of a draft.

    schedule   draft lengths by number of sequences; the longest is the draft's
    num_cards  of the target: a draft model is split over as many, a head lies on one
    """
    config: dict[str, object] = {"method": EAGLE3 if draft.method == PEAGLE else draft.method}
    if draft.pin is not None:
        config["model"] = draft.pin.repo
        if draft.pin.revision:
            config["revision"] = draft.pin.revision
        if num_cards > 1:
            config["draft_tensor_parallel_size"] = num_cards if draft.method == DRAFT_MODEL else 1
    if not draft.shares_vocab:  # vLLM refuses a model with another size unless it may map the tokens
        config["use_heterogeneous_vocab"] = True
    config["num_speculative_tokens"] = max(length for _, _, length in schedule)
    if draft.method not in (SUFFIX, DSPARK):  # those choose the length of each draft themselves
        config[SCHEDULE] = [list(each) for each in schedule]
    return {**config, **METHOD_KEYS.get(draft.method, {})}
