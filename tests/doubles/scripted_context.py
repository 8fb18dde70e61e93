"""A target, a head and a draft model without llama.cpp: logits from a rolling state, cells that are checked.

The state after a prefix is one integer below 2**20, so it travels through float32 features exactly:
a head that is fed the right (token, feature) pairs can compute the target's next choice, and any
mistake in the protocol (hole, double position, wrong pair, stale cell) fails loudly.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.batch import (
    NO_EXTRA_LEVELS,
    Batch,
    Bytes,
    ExtraLevels,
    Features,
    Floats,
    PairBatch,
    Proposals,
    State,
)
from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.image import ImageRows, placeholder_ids
from eaglelocal.core.sampling import Sampled, SamplingParams
from eaglelocal.drafters.block_drafter import Mask
from eaglelocal.errors import RequestError, ResourceError

from .shared_cells import SharedCells

MODULUS = 1_000_003
START = 17


def next_state(state: int, token: int) -> int:
    return (state * 31 + token * 7919 + 3) % MODULUS


def salt_of(mix: AdapterMix) -> int:
    """Return a number for a mix of LoRA adapters, 0 without any: cells and logits differ by it, features do not."""
    return sum(round(1000 * (1 + number) * scale) for number, scale in mix) % 9973


class Table:
    """A table of logits [vocab] for every state; token 0 ends generation and is rare."""

    def __init__(self, n_vocab: int = 24, *, seed: int = 0, end_bias: float = -3.0, sharpness: float = 2.0) -> None:
        """sharpness: scale of the logits; a negative one reverses every choice, for a drafter that is always wrong."""
        self.n_vocab, self._seed, self._end_bias, self._sharpness = n_vocab, seed, end_bias, sharpness
        self._known: dict[int, Floats] = {}

    def logits(self, state: int) -> Floats:
        known = self._known.get(state)
        if known is None:
            rng = np.random.default_rng([self._seed, state % 997])  # few distinct rows: distributions can be counted
            known = (rng.normal(size=self.n_vocab) * self._sharpness).astype(np.float32)
            known[0] += self._end_bias
            self._known[state] = known
        return known

    def after(self, tokens: Sequence[int], mix: AdapterMix = NO_ADAPTERS) -> Floats:
        state = START
        for token in tokens:
            state = next_state(state, token)
        return self.logits(state + salt_of(mix))


@dataclass
class CheckedCells:
    """The cells of each sequence, in order from position `starts`; a hole or a double position is an error."""

    n_ctx: int
    starts_anywhere: bool = False  # an empty sequence may begin at any position
    cells: dict[int, list[int]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)

    def append(self, sequence: int, position: int, value: int) -> None:
        held = self.cells.setdefault(sequence, [])
        if not held:
            self.starts[sequence] = position if self.starts_anywhere else 0
        if position != self.starts[sequence] + len(held):
            raise AssertionError(f"sequence {sequence}: position {position} after {self.last_position(sequence)}")
        if position >= self.n_ctx:
            raise AssertionError(f"sequence {sequence}: position {position} of {self.n_ctx}")
        held.append(value)

    def at(self, sequence: int, position: int) -> int | None:
        held, index = self.cells.get(sequence, []), position - self.starts.get(sequence, 0)
        return held[index] if 0 <= index < len(held) else None

    def remove(self, sequence: int, first_position: int) -> None:
        first = max(first_position - self.starts.get(sequence, 0), 0)
        del self.cells.setdefault(sequence, [])[first:]

    def forget(self, sequence: int, end: int) -> None:
        start = self.starts.get(sequence, 0)
        del self.cells.setdefault(sequence, [])[: max(end - start, 0)]
        self.starts[sequence] = max(start, end)

    def share(self, source: int, target: int, first: int, end: int) -> None:
        values = [self.at(source, position) for position in range(first, end)]
        held = self.cells.setdefault(target, [])
        if None in values or (held and self.last_position(target) + 1 != first):
            raise AssertionError(f"sequence {target} does not end at {first}, or {source} has a hole up to {end}")
        if not held:
            self.starts[target] = first
        held += [value for value in values if value is not None]

    def last_position(self, sequence: int) -> int:
        held = self.cells.get(sequence, [])
        return self.starts[sequence] + len(held) - 1 if held else -1


@dataclass(frozen=True)
class ScriptedOutputs:
    rows: Floats | None

    def features(self, rows: list[int]) -> Features | None:
        return None if self.rows is None else ScriptedFeatures(self.rows[rows, None])


@dataclass(frozen=True)
class ScriptedFeatures:
    rows: Floats

    def __len__(self) -> int:
        return len(self.rows)

    def after(self, num_rows: int) -> ScriptedFeatures:
        return ScriptedFeatures(self.rows[num_rows:])

    def copied(self) -> Floats:
        return self.rows.copy()


class ScriptedSampler:
    """A sampler: greedy, or seeded with temperature, top-k, top-p and repeat penalty; one random number a sample."""

    def __init__(self, context: ScriptedContext, params: SamplingParams, constraint: Constraint | None = None) -> None:
        self.context, self._params = context, params
        self._sets = None if constraint is None else letter_sets(constraint)
        self.problem: RequestError | None = None
        self.random = random.Random(params.seed)
        self.seen: list[int] = []
        self.draws = self._num_drawn = 0
        self.closed = False

    def accept(self, tokens: Sequence[int]) -> None:
        self.seen.extend(tokens)

    def sample(self, row: int) -> Sampled:
        assert not self.closed
        logits = self.context.logits_of(row)
        if self._sets is not None:
            logits = self._fitting(logits, self._sets)
        if not np.isfinite(logits).any():
            self.problem = RequestError("the model has no token that fits", parameter="response_format")
            return Sampled(0)
        probabilities = distribution(logits, self._params, self.seen)
        self.draws += 1
        token = int(probabilities.argmax()) if self._params.is_greedy else self._draw(probabilities)
        self.seen.append(token)
        return Sampled(token)

    def force(self, row: int, token: int) -> Sampled | None:
        if self._sets is not None:
            letters = self._sets[self._num_drawn] if self._num_drawn < len(self._sets) else ""
            if token not in [1 + ord(letter) - ord("a") for letter in letters]:
                return None
            self._num_drawn += 1
        self.seen.append(token)
        return Sampled(token)

    def _fitting(self, logits: Floats, sets: list[str]) -> Floats:
        """Among the letters of this position; behind the last the answer ends."""
        at = self._num_drawn
        self._num_drawn += 1
        allowed = [1 + ord(letter) - ord("a") for letter in sets[at]] if at < len(sets) else [0]
        masked = np.full_like(logits, -np.inf)
        allowed = [token for token in allowed if token < len(logits)]
        masked[allowed] = logits[allowed]
        return masked

    def _draw(self, probabilities: Floats) -> int:
        return int(np.searchsorted(np.cumsum(probabilities), self.random.random() * probabilities.sum(), side="right"))

    def close(self) -> None:
        self.closed = True


class LetterConstraints:
    """A core.ports.Constraints for regular expressions that are a row of letter sets, such as [ab][c][abc]."""

    def check(self, constraint: Constraint) -> tuple[str, ...]:
        letter_sets(constraint)
        return ()

    def hold(self, constraint: Constraint) -> object:
        return constraint


def letter_sets(constraint: Constraint) -> list[str]:
    if constraint.syntax is not Syntax.REGEX or not re.fullmatch(r"(\[[a-z]+\])+", constraint.source):
        raise RequestError(f"{constraint.source!r} is no row of letter sets")
    return re.findall(r"\[([a-z]+)\]", constraint.source)


def distribution(logits: Floats, params: SamplingParams, seen: Sequence[int] = ()) -> Floats:
    """Return the exact distribution of a sampler, in llama.cpp's order: bias, penalties, filters, temperature."""
    logits = penalized(logits, params, seen)
    if params.is_greedy:
        return softmax(logits)
    order = np.argsort(-logits, kind="stable")
    keep = order[: params.top_k] if params.top_k else order
    if params.typical_p < 1.0:
        chances = softmax(logits[keep])
        surprise = np.abs(-np.log(chances) + (chances * np.log(chances)).sum())
        keep = first_to_reach(keep[np.argsort(surprise, kind="stable")], logits, params.typical_p)
        keep = keep[np.argsort(-logits[keep], kind="stable")]
    if params.top_p < 1.0:
        keep = first_to_reach(keep, logits, params.top_p)
    if params.min_p > 0.0:
        keep = keep[logits[keep] >= logits[keep[0]] + np.log(params.min_p)]
    result = np.zeros_like(logits)
    result[keep] = softmax(logits[keep] / params.temperature)
    return result


def penalized(logits: Floats, params: SamplingParams, seen: Sequence[int]) -> Floats:
    logits = logits.astype(np.float64)
    for token, bias in params.logit_bias:
        logits[token] += bias
    for token, count in Counter(seen[max(len(seen) - params.repeat_last_n, 0) :]).items():
        logits[token] *= 1 / params.repeat_penalty if logits[token] > 0 else params.repeat_penalty
        logits[token] -= count * params.frequency_penalty + params.presence_penalty
    return logits


def first_to_reach(keep: npt.NDArray[np.int64], logits: Floats, share: float) -> npt.NDArray[np.int64]:
    """Return the first tokens whose probabilities among all of `keep` sum up to `share`."""
    cumulated = np.cumsum(softmax(logits[keep]))
    return keep[: int(np.searchsorted(cumulated, share) + 1)]


def softmax(logits: Floats) -> Floats:
    scaled: Floats = np.exp(logits - logits.max())
    return scaled / scaled.sum()  # type: ignore[no-any-return]


class ScriptedContext:
    """A core.ports.Context over a table. Features are (state, position, token) of each row.

    Using anything but `native_s` between `submit` and `collect` is an error.
    """

    native_s = 0.0
    undivided = 0
    is_asynchronous = False

    def __init__(
        self,
        table: Table,
        *,
        n_ctx: int = 128,
        n_batch: int = 64,
        gives_features: bool = True,
        num_slots: int | None = None,
        num_branches: int = 0,
    ) -> None:
        """num_slots: bounds sequences and cells. num_branches: if there are any, the cache is a unified one."""
        self.table, self.n_ctx, self.n_batch, self.n_vocab = table, n_ctx, n_batch, table.n_vocab
        self.num_branches, self.is_unified, self._gives_features = num_branches, num_branches > 0, gives_features
        bounds = (None, None) if num_slots is None else (num_slots + num_branches, num_slots * n_ctx)
        self.cells = SharedCells(n_ctx, *bounds)
        self.tree_rows = 0  # that belong to several sequences
        self._states: dict[int, int] = {}  # output row -> state
        self.submitted: ScriptedOutputs | None = None
        self.samplers: list[ScriptedSampler] = []
        self.decodes: list[int] = []  # rows of each decode
        self.mix, self.mixes = NO_ADAPTERS, list[AdapterMix]()  # of each decode
        self.refused: set[int] = set()  # numbers of the decodes that find no room
        self.swaps, self.swaps_in, self.swaps_fail = 0, 0, False
        self.looks: list[tuple[int, bytes]] = []  # sequences and the keys of the images that they were shown

    def use_adapters(self, mix: AdapterMix) -> None:
        self._check_collected()
        self.mix = mix

    def submit(self, batch: Batch) -> None:
        self._check_collected()
        assert 0 < len(batch) <= self.n_batch
        self.decodes.append(len(batch))
        self.mixes.append(self.mix)
        if len(self.decodes) - 1 in self.refused:
            raise ResourceError("the cache has no room")
        self._states = {}
        features = np.empty((len(batch), 3), np.float32)
        for row in range(len(batch)):
            token, position = batch.tokens[row], batch.positions[row]
            sequences = batch.sequences[row]
            self.tree_rows += len(sequences) > 1
            state = self._append(sequences, position, token)
            features[row] = (state, position, token)
            if batch.outputs[row]:
                self._states[row] = state + salt_of(self.mix)
        self.submitted = ScriptedOutputs(features if self._gives_features else None)

    def _append(self, sequences: Sequence[int], position: int, token: int) -> int:
        """Add a row's cell and return the state after it, a wrong one if other adapters computed the cell before."""
        before, salt = self.cells.value_before(sequences, position), salt_of(self.mix)
        is_mixed = before is not None and before // MODULUS != salt  # padding is: it is removed again
        state = next_state(START if before is None else before % MODULUS, token + is_mixed)
        self.cells.append(sequences, state + MODULUS * salt)
        return state

    def collect(self) -> ScriptedOutputs:
        outputs, self.submitted = self.submitted, None
        assert outputs is not None, "there is no decode to collect"
        return outputs

    def decode(self, batch: Batch) -> ScriptedOutputs:
        self.submit(batch)
        return self.collect()

    def _check_collected(self) -> None:
        assert self.submitted is None, "the context was used before its decode was collected"

    def decode_image(self, sequence: int, position: int, rows: ImageRows) -> None:
        """Append an image as the tokens that stand for it, all at once, to one sequence."""
        self._check_collected()
        self._states = {}
        for place, token in enumerate(placeholder_ids(rows), position):
            self._append((sequence,), place, token)
        self.looks.append((sequence, rows.key))

    def logits_of(self, row: int) -> Floats:
        self._check_collected()
        if row not in self._states:
            raise AssertionError(f"row {row} is no output row of the last decode")
        return self.table.logits(self._states[row])

    def sampler(self, params: SamplingParams, constraint: Constraint | None = None) -> ScriptedSampler:
        self.samplers.append(ScriptedSampler(self, params, constraint))
        return self.samplers[-1]

    def propose(self, rows: Sequence[int], num_choices: int, *, confident: bool) -> Proposals:
        return proposals([self.logits_of(row) for row in rows], num_choices, [])

    def share(self, source: int, target: int, first: int, end: int) -> None:
        self._check_collected()
        if self.is_unified:
            self.cells.share(source, target, first, end)
            return
        assert first == 0
        self.cells.copy(source, target, end)

    def swapped_bytes(self, sequence: int) -> int:
        return 8 * (1 + self.cells.last_position(sequence))

    def swap_out(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        self._check_collected()
        if self.swaps_fail:
            raise ResourceError("no main memory is left")
        self.swaps += 1
        return np.array(self.cells.values(sequence), np.int64).view(np.uint8)

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        self._check_collected()
        self.cells.remove(sequence, 0)
        if self.swaps_fail:
            raise ResourceError("the cache has no room")
        self.swaps_in += 1
        for value in cells.view(np.int64):
            self.cells.append((sequence,), int(value))

    def remove(self, sequence: int, first_position: int) -> None:
        self._check_collected()
        self.cells.remove(sequence, first_position)

    def last_position(self, sequence: int) -> int:
        self._check_collected()
        return self.cells.last_position(sequence)

    def close(self) -> None:
        self._check_collected()


def proposals(rows: list[Floats], num_choices: int, states: list[State]) -> Proposals:
    tokens = [np.argsort(-row, kind="stable")[:num_choices] for row in rows]
    chosen = [sureness(softmax(row)[best]) for row, best in zip(rows, tokens, strict=True)]
    return Proposals([best.tolist() for best in tokens], chosen, states)


def sureness(chances: Floats) -> list[float]:
    """Return the probability of each choice, given that those before it are wrong."""
    left = np.maximum(1.0 - np.cumsum(chances) + chances, 1e-9)
    return np.minimum(chances / left, 1.0).tolist()


class ScriptedHead:
    """A core.ports.HeadContext that is always right, as long as every pair that it is fed is right.

    A state is (rolling state, position of its token, 1 if it was drafted and not observed).
    """

    native_s = 0.0

    def __init__(self, table: Table, *, n_ctx: int = 128, n_batch: int = 64) -> None:
        self._table, self.n_batch = table, n_batch
        self._cells = CheckedCells(n_ctx, starts_anywhere=True)
        self.encoded_rows = self.decodes = 0
        self.is_attached = False  # in place of another head
        self.refused: set[int] = set()  # numbers of the decodes that find no room

    def attach(self) -> None:
        self.is_attached = True

    def encode(self, features: Sequence[Features | Floats]) -> list[State]:
        rows = np.concatenate([f if isinstance(f, np.ndarray) else f.copied() for f in features])[:, 0]
        self.encoded_rows += len(rows)
        return [np.array([state, position, 0], np.float32).tobytes() for state, position, _ in rows]

    def decode(
        self,
        batch: PairBatch,
        num_choices: int,
        *,
        confident: bool,
        depth: int = 1,
        extra_levels: ExtraLevels = NO_EXTRA_LEVELS,
        layer: int = 0,
    ) -> Proposals:
        assert 0 < len(batch.tokens) <= self.n_batch
        assert layer == 0
        for row, sequence in enumerate(batch.sequences):
            if sequence not in batch.sequences[:row]:
                self._cells.remove(sequence, batch.positions[row])
        said = self._decode(batch, num_choices)
        is_sure = all(best[0] >= extra_levels.confidence for best in said.confidences)
        extra_levels = extra_levels if is_sure else NO_EXTRA_LEVELS
        if depth + extra_levels.num_levels == 1 or not batch.outputs:
            return said
        if depth == 1:
            depth, extra_levels = 2, extra_levels._replace(num_levels=extra_levels.num_levels - 1)
        tokens, rows = [best[0] for best in said.tokens], batch.outputs
        positions, sequences = [batch.positions[row] + 1 for row in rows], [batch.sequences[row] for row in rows]
        ahead = PairBatch(tokens, said.states, positions, sequences, list(range(len(rows))))
        deeper = self.decode(ahead, num_choices, confident=confident, depth=depth - 1, extra_levels=extra_levels)
        return Proposals(said.tokens + deeper.tokens, said.confidences + deeper.confidences, deeper.states)

    def _decode(self, batch: PairBatch, num_choices: int) -> Proposals:
        self.decodes += 1
        if self.decodes - 1 in self.refused:
            raise ResourceError("the cache has no room")
        states = np.empty((len(batch.tokens), 3), np.float32)
        for row, (token, packed) in enumerate(zip(batch.tokens, batch.states, strict=True)):
            position, state = batch.positions[row], np.frombuffer(packed, np.float32)
            if int(state[1]) != position:
                raise AssertionError(f"the pair at position {position} has the state of position {int(state[1])}")
            self._check_past(batch.sequences[row], position, int(state[0]))
            rolled = next_state(int(state[0]), token)
            self._cells.append(batch.sequences[row], position, rolled)
            states[row] = (rolled, position + 1, 1)
        rows = [self._table.logits(int(states[row, 0])) for row in batch.outputs]
        return self._propose(rows, num_choices, [states[row].tobytes() for row in batch.outputs])

    def _propose(self, rows: list[Floats], num_choices: int, states: list[State]) -> Proposals:
        return proposals(rows, num_choices, states)

    def share(self, source: int, target: int, first: int, end: int) -> None:
        self._cells.share(source, target, first, end)

    def swapped_bytes(self, sequence: int) -> int:
        return 8 * (1 + len(self._cells.cells.get(sequence, [])))  # and where they begin

    def swap_out(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        start, values = self._cells.starts.get(sequence, 0), self._cells.cells.get(sequence, [])
        return np.array([start, *values], np.int64).view(np.uint8)

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        assert not self._cells.cells.get(sequence)
        start, *values = map(int, cells.view(np.int64))
        for position, value in enumerate(values, start):
            self._cells.append(sequence, position, value)

    def _check_past(self, sequence: int, position: int, state: int) -> None:
        """The cell before must hold the token that led to this state: a cell of another text is no past."""
        held = self._cells.at(sequence, position - 1)
        if held is not None and held != state:
            raise AssertionError(f"sequence {sequence}: the cell before position {position} belongs to another text")

    def remove(self, sequence: int, first_position: int) -> None:
        self._cells.remove(sequence, first_position)

    def forget(self, sequence: int, end: int) -> None:
        self._cells.forget(sequence, end)

    def reach(self, sequence: int) -> tuple[int, int]:
        """Return the position of the first cell and the one after the last."""
        return self._cells.starts.get(sequence, 0), self._cells.last_position(sequence) + 1

    def last_position(self, sequence: int) -> int:
        return self._cells.last_position(sequence)

    def close(self) -> None:
        pass


class ScriptedParallelHead(ScriptedHead):
    """The same of P-EAGLE's kind: it takes a row of masks for the token that it expects after the row before."""

    mask = Mask(1, b"an unknown state", num_depths=6)

    def _decode(self, batch: PairBatch, num_choices: int) -> Proposals:
        tokens, states = list(batch.tokens), list(batch.states)
        for row, state in enumerate(batch.states):
            if state == self.mask.state:
                assert batch.tokens[row] == self.mask.token and batch.sequences[row] == batch.sequences[row - 1]
                before = np.frombuffer(states[row - 1], np.float32)
                rolled = next_state(int(before[0]), tokens[row - 1])
                tokens[row] = int(np.argmax(self._table.logits(rolled)))
                states[row] = np.array([rolled, batch.positions[row], 1], np.float32).tobytes()
        return super()._decode(replace(batch, tokens=tokens, states=states), num_choices)


class ScriptedMedusa:
    """A core.ports.MedusaContext: it rolls a table on from each state, with the tokens that it expects."""

    native_s = 0.0

    def __init__(self, table: Table, *, max_rows: int = 64) -> None:
        self._table, self.max_rows, self.calls = table, max_rows, 0

    def propose(self, states: Sequence[Floats], depth: int, num_choices: int) -> Proposals:
        self.calls += 1
        assert 0 < len(states) * depth <= self.max_rows
        rows, rolled = [], [int(state[0]) for state in states]
        for _ in range(depth):
            rolled = [next_state(state, int(np.argmax(self._table.logits(state)))) for state in rolled]
            rows += [self._table.logits(state) for state in rolled]
        return proposals(rows, num_choices, [])

    def close(self) -> None:
        pass


class PromptlessContext(ScriptedContext):
    """A context whose decodes give features only if all rows are outputs, as with states after the output norm."""

    def submit(self, batch: Batch) -> None:
        super().submit(batch)
        if not all(batch.outputs):
            self.submitted = ScriptedOutputs(None)


class LetterVocabulary:
    """A core.ports.Vocabulary: token n is the n-th letter, token 0 ends generation."""

    chat_template = None
    bos_text = ""
    eos_text = ""
    control_texts = ()
    max_token_bytes = None
    fill_tokens = None

    def __init__(self, n_tokens: int = 24) -> None:
        self.n_tokens = n_tokens

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [1 + (ord(char) - ord("a")) % (self.n_tokens - 1) for char in text]

    def piece(self, token: int) -> bytes:
        return b"" if token == 0 else bytes([ord("a") + token - 1])

    def spelled(self, token: int) -> bytes:
        return self.piece(token) or b"<end>"

    def is_end(self, token: int) -> bool:
        return token == 0
