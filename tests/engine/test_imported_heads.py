"""Heads of every dialect, imported and run by llama.cpp, give the logits of plain torch on the published weights.

The reference below is written from the papers and from transformers, in transformers' conventions: rotary embedding by
halves of a head, separate norm weights, offsets in d2t. It does not use GGUF, folding or permutation. Both get the
target's states from llama.cpp and the same tokens, so that only the heads differ.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from doubles.eagle_checkpoints import DIALECTS, Checkpoint, Kind, random_checkpoint, write_checkpoint
from doubles.imported_heads import imported
from doubles.p_eagle_checkpoints import (
    FLAT,
    MASK,
    NUM_DEPTHS,
    P_EAGLE_DIALECTS,
    random_parallel_head,
    write_parallel_head,
)
from doubles.random_models import TargetShape, write_target
from doubles.tiers import some_of

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import LlamaHeadContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch, PairBatch
from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import Committed, Node
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.gguf.upper_layers import find_upper_layers
from eaglelocal.loading.draft_loader import make_eagle, read_head_format

torch = pytest.importorskip("torch")

SHAPE = TargetShape(n_embd=128, n_layer=10, n_ff=128)
PARAMS = ContextParams(n_ctx=256, n_batch=64, kv_type="f32", flash_attn="off")
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 299, 24)]
CHAIN = [
    int(token) for token in np.random.default_rng(4).integers(0, 299, 5)
]  # the root, and what is drafted behind it
TOLERANCE = 1e-3

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FORMS = {
    "EAGLE-3": Kind(),
    "EAGLE-3.1": Kind(fc_norm=True, norm_output=True),
    "one norm before fc": Kind(norm_before_fc=True, norm_output=True, norm_before_residual=True),
    "residual behind the norm": Kind(norm_before_residual=True),
    "its own embeddings": Kind(own_embeddings=True, draft_vocab=None),
    "narrower than the target": Kind(width=64, n_head=1, own_embeddings=True, fc_norm=True),
    "more heads": Kind(n_head=4, n_kv_head=2),
    "one tap": Kind(num_taps=1, fc_norm=True),
    "two taps": Kind(num_taps=2),
    "four taps": Kind(num_taps=4, fc_norm=True, norm_output=True),
    "six taps": Kind(num_taps=6),
    "seven taps": Kind(num_taps=7, fc_norm=True, norm_output=True, width=64, n_head=1, own_embeddings=True),
    "eight taps": Kind(num_taps=8, fc_norm=True),
    "one norm of five taps": Kind(num_taps=5, norm_before_fc=True, norm_output=True),
    "one norm of one tap": Kind(num_taps=1, norm_before_fc=True),
    "llama3": Kind(rope_scaling=LLAMA3),
    "linear": Kind(rope_scaling={"type": "linear", "factor": 2.0}),
    "yarn": Kind(rope_scaling=YARN),
    "several axes of positions": Kind(rope_scaling={"type": "default", "mrope_section": [8, 12, 12]}),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", SHAPE)


@pytest.mark.parametrize("dialect", some_of(DIALECTS, 2))
@pytest.mark.parametrize("form", ["EAGLE-3", "EAGLE-3.1"])
def test_every_dialect_says_the_same(dialect: str, form: str, target: Path, tmp_path: Path) -> None:
    check_same(random_checkpoint(FORMS[form]), dialect, target, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(form: str, target: Path, tmp_path: Path) -> None:
    check_same(random_checkpoint(FORMS[form]), "speculators", target, tmp_path)


@pytest.mark.parametrize("change", ["norm_output", "norm_before_residual", "eps", "theta"])
def test_each_part_of_the_configuration_matters(change: str, target: Path, tmp_path: Path) -> None:
    """The comparison can fail: with one figure changed on one side the logits are others."""
    head = random_checkpoint(Kind())
    other = {
        "norm_output": replace(head, norm_output=True),
        "norm_before_residual": replace(head, norm_before_residual=True),
        "eps": replace(head, eps=0.1),
        "theta": replace(head, theta=100.0),
    }[change]
    ours, features = run(imported_from(other, "SafeAILab", target, tmp_path), target)
    theirs = reference(head, features, target)
    depth = 1 if change == "norm_output" else 0  # the first step is the same before and behind the norm
    drafted = np.isfinite(theirs[depth])
    assert np.abs(ours[depth][drafted] - theirs[depth][drafted]).max() > 10 * TOLERANCE


@pytest.mark.parametrize(("kind", "tolerance"), [("bf16", TOLERANCE), ("f16", TOLERANCE), ("q8_0", 0.1)])
def test_types_keep_what_they_can(kind: str, tolerance: float, target: Path, tmp_path: Path) -> None:
    """Weights that are bfloat16 come whole in bf16, and here, where none is tiny, nearly so in f16."""
    head = random_checkpoint(Kind())
    folder = write_checkpoint(tmp_path / "published", head, "SpecForge")
    exact = imported(folder, target, tmp_path / "exact.gguf")
    typed = imported(folder, target, tmp_path / "typed.gguf", kind=kind)
    for name in read_header(exact).tensors:
        if name == "d2t":
            continue
        before, after = (read_tensor(read_header(path), name) for path in (exact, typed))
        np.testing.assert_allclose(after, before, atol=tolerance * np.abs(before).max())


def test_a_window_is_what_is_left_when_older_cells_are_forgotten(target: Path, tmp_path: Path) -> None:
    head = random_checkpoint(Kind())
    path = imported_from(head, "speculators", target, tmp_path)
    ours, features = run(path, target, window=8)
    narrow, wide = (reference(head, features, target, window=window) for window in (8, None))
    drafted = np.isfinite(narrow)
    np.testing.assert_allclose(ours[drafted], narrow[drafted], atol=TOLERANCE)
    assert np.abs(narrow[drafted] - wide[drafted]).max() > 10 * TOLERANCE


PARALLEL = {
    "P-EAGLE": Kind(),
    "one norm before fc": Kind(norm_before_fc=True),
    "residual behind the norm": Kind(norm_before_residual=True),
    "a norm of each tap": Kind(fc_norm=True),
    "narrower than the target": Kind(width=64, n_head=1),
    "two taps, all tokens": Kind(num_taps=2, draft_vocab=None),
    "five taps": Kind(num_taps=5, fc_norm=True),
    "layers, all tokens": Kind(num_layers=3, draft_vocab=None, n_head=4, n_kv_head=2),
    "layers, residual behind the norm": Kind(num_layers=3, norm_before_residual=True),
    "layers, narrower than the target": Kind(num_layers=2, width=64, n_head=1),
    "layers, llama3": Kind(num_layers=2, rope_scaling=LLAMA3),
    "layers, yarn": Kind(num_layers=2, rope_scaling=YARN),
}


@pytest.mark.parametrize("num_layers", some_of([1, 2, 4]))
@pytest.mark.parametrize("dialect", some_of(P_EAGLE_DIALECTS, 2))
def test_every_dialect_of_parallel_heads_says_the_same(
    dialect: str, num_layers: int, target: Path, tmp_path: Path
) -> None:
    check_parallel(random_parallel_head(Kind(num_layers=num_layers)), dialect, target, tmp_path)


@pytest.mark.parametrize("form", some_of(PARALLEL, 3))
def test_every_form_of_parallel_heads_says_the_same(form: str, target: Path, tmp_path: Path) -> None:
    check_parallel(random_parallel_head(PARALLEL[form]), FLAT, target, tmp_path)


@pytest.mark.parametrize("change", ["mask_hidden", "mask token"])
def test_the_mask_matters_from_the_second_token_on(change: str, target: Path, tmp_path: Path) -> None:
    head = random_parallel_head(Kind())
    other = replace(head, arrays={**head.arrays, "mask_hidden": -head.arrays["mask_hidden"]})
    published = write_parallel_head(
        tmp_path / "published",
        other if change == "mask_hidden" else head,
        FLAT,
        ptd_token_id=MASK + (change == "mask token"),
    )
    ours, features = drafted_in_parallel(imported(published, target, tmp_path / "head.gguf"), target)
    theirs = parallel_reference(head, features, target)
    drafted = np.isfinite(theirs[0])
    np.testing.assert_allclose(ours[0][0][drafted[0]], theirs[0][0][drafted[0]], atol=TOLERANCE)
    for depth in range(1, NUM_DEPTHS):
        assert np.abs(ours[0][depth][drafted[depth]] - theirs[0][depth][drafted[depth]]).max() > 10 * TOLERANCE


def check_parallel(head: Checkpoint, dialect: str, target: Path, folder: Path) -> None:
    """Compare the logits of two drafts; the second proves that the first has left only true pairs."""
    path = imported(write_parallel_head(folder / "published", head, dialect), target, folder / "head.gguf")
    info = EagleInfo.from_header(read_header(path))
    assert (info.mask, info.num_depths, info.has_own_embeddings) == (MASK, NUM_DEPTHS, True)
    ours, features = drafted_in_parallel(path, target)
    theirs = parallel_reference(head, features, target)
    assert ours.shape == theirs.shape == (2, NUM_DEPTHS, SHAPE.n_vocab)
    assert np.array_equal(np.isfinite(ours), np.isfinite(theirs))
    drafted = np.isfinite(theirs)
    assert theirs[drafted].std() > 0.3
    np.testing.assert_allclose(ours[drafted], theirs[drafted], atol=TOLERANCE)


def check_same(head: Checkpoint, dialect: str, target: Path, folder: Path) -> None:
    path = imported_from(head, dialect, target, folder)
    assert EagleInfo.from_header(read_header(path)).target_layers == head.taps
    ours, features = run(path, target)
    theirs = reference(head, features, target)
    assert np.array_equal(np.isfinite(ours), np.isfinite(theirs))  # the same tokens are drafted
    drafted = np.isfinite(theirs)
    assert theirs[drafted].std() > 0.3
    for depth in range(len(CHAIN)):
        np.testing.assert_allclose(ours[depth][drafted[depth]], theirs[depth][drafted[depth]], atol=TOLERANCE)


def imported_from(head: Checkpoint, dialect: str, target: Path, folder: Path) -> Path:
    published = write_checkpoint(folder / "published", head, dialect, shards=3 if dialect == "NeMo" else 1)
    return imported(published, target, folder / "head.gguf")


# ---- llama.cpp, through the backend as the engine uses it


@contextlib.contextmanager
def opened(path: Path, target: Path) -> Iterator[tuple[LlamaContext, LlamaHeadContext, LlamaModel]]:
    """The target's context, the head's, and the head's model."""
    header = read_header(path)
    info = EagleInfo.from_header(header)
    plain = Placement(repack=False)
    upper = find_upper_layers(header)
    models = LlamaModel(load_library(), target, plain), LlamaModel(load_library(), path, plain, layers=upper)
    context = LlamaContext(models[0], PARAMS, taps=info.target_layers)
    head = LlamaHeadContext(models[1], PARAMS, target=context, form=read_head_format(info))
    try:
        yield context, head, models[1]
    finally:
        head.close()
        context.close()
        models[1].close()
        models[0].close()


def run(path: Path, target: Path, *, window: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Logits [depth, vocab] behind TEXT along CHAIN, and the states that the head read [rows, taps, n_embd]."""
    with opened(path, target) as (context, head, head_model):
        n = len(TEXT)
        context.decode(Batch(TEXT, list(range(n)), [[0]] * n, [True] * n))
        features = context.copy_taps(list(range(n)))
        fused = head.encode([features])
        head.decode(PairBatch(TEXT[1:], fused[:-1], list(range(n - 1)), [0] * (n - 1), []), 1, confident=False)
        logits, state = [], fused[-1]
        for step, token in enumerate(CHAIN):
            if window is not None:
                head.forget(0, n + step - window)
            said = head.decode(PairBatch([token], [state], [n - 1 + step], [0], [0]), 1, confident=True)
            logits.append(logits_of(head_model, head))
            state = said.states[0]
        return np.stack(logits), features


NUM_ACCEPTED = 3  # rows that the target decodes between the two drafts


def drafted_in_parallel(path: Path, target: Path) -> tuple[np.ndarray, np.ndarray]:
    """Logits [draft, depth, vocab] of two drafts, after TEXT and after NUM_ACCEPTED of CHAIN, and all states."""
    header = read_header(path)
    with (
        opened(path, target) as (context, head, head_model),
        mock.patch.object(head, "decode", wraps=head.decode) as decode,
    ):
        drafter, logits, features = make_eagle(head, header, EagleInfo.from_header(header), num_choices=1), [], []

        for tokens, root in ((TEXT, CHAIN[0]), (CHAIN[:NUM_ACCEPTED], CHAIN[NUM_ACCEPTED])):
            n, first = len(tokens), sum(map(len, features))
            context.decode(Batch(tokens, list(range(first, first + n)), [[0]] * n, [True] * n))
            features.append(context.copy_taps(list(range(n))))
            drafter.commit([Committed(0, first, tokens, features[-1])])
            (said,) = drafter.draft([Node(0, ROOT, root, first + n)], NUM_DEPTHS)
            rows = [logits_of(head_model, head, row) for row in decode.call_args.args[0].outputs]
            assert len(rows) == NUM_DEPTHS
            assert list(said.tokens) == [int(row.argmax()) for row in rows]
            logits.append(np.stack(rows))
        return np.stack(logits), np.concatenate(features)


def logits_of(model: LlamaModel, head: LlamaHeadContext, row: int = 0) -> np.ndarray:
    """Logits [vocab] of a row of the last draft; those of upper layers are of the drafted tokens only."""
    layers = model.upper.layers if model.upper else None
    context, size = (head.upper.handle, layers.num_rows) if layers else (head.handle, SHAPE.n_vocab)
    address = model.library.get_logits_row(context, row)
    logits = np.frombuffer((C.c_float * size).from_address(address), np.float32).copy()
    if layers is None or not layers.draft_tokens:
        return logits
    everywhere = np.full(SHAPE.n_vocab, -np.inf, np.float32)
    everywhere[list(layers.draft_tokens)] = logits
    return everywhere


# ---- torch


def reference(head: Checkpoint, features: np.ndarray, target: Path, *, window: int | None = None) -> np.ndarray:
    """Logits [depth, vocab], minus infinity for tokens that the head does not draft."""
    weights = {name: torch.from_numpy(np.array(array)).double() for name, array in head.arrays.items()}
    lent = read_tensor(read_header(target), "token_embd.weight")
    embeddings = weights.get("embed_tokens.weight", torch.from_numpy(lent).double())
    states = list(fused(head, weights, torch.from_numpy(features).double()))
    tokens, logits = [*TEXT[1:]], []
    keys, values = [], []
    for position, state in enumerate(states[:-1]):
        step(head, weights, embeddings[tokens[position]], state, position, keys, values)
    state = states[-1]
    for depth, token in enumerate(CHAIN):
        if window is not None:
            del keys[: 1 - window], values[: 1 - window]
        before = step(head, weights, embeddings[token], state, len(TEXT) - 1 + depth, keys, values)
        after = norm(before, weights["norm.weight"], head.eps)
        logits.append(scattered(head, weights["lm_head.weight"] @ after))
        state = after if head.norm_output else before
    return torch.stack(logits).numpy()


def parallel_reference(head: Checkpoint, features: np.ndarray, target: Path) -> np.ndarray:
    """Logits [draft, depth, vocab]: each draft reads the whole text anew, then one pass gives all its tokens."""
    weights = {name: torch.from_numpy(np.array(array)).double() for name, array in head.arrays.items()}
    embeddings = weights["embed_tokens.weight"]
    states = list(fused(head, weights, torch.from_numpy(features).double()))
    mask = fused(head, weights, weights["mask_hidden"].reshape(1, len(head.taps), head.target_width))[0]
    drafts, text = [], [*TEXT, *CHAIN]
    for end in (len(TEXT), len(TEXT) + NUM_ACCEPTED):
        pairs = [*zip(text[1 : end + 1], states[:end], strict=True), *[(MASK, mask)] * (NUM_DEPTHS - 1)]
        keys, values, hidden = [], [], []
        for position, (token, state) in enumerate(pairs):
            hidden.append(step(head, weights, embeddings[token], state, position, keys, values))
        for number in range(1, head.num_layers):
            hidden = upper_layer(head, weights, f"layers.{number}.", hidden)
        last = [norm(row, weights["norm.weight"], head.eps) for row in hidden]
        rows = [scattered(head, weights["lm_head.weight"] @ row) for row in last]
        drafts.append(torch.stack(rows[-NUM_DEPTHS:]))
    return torch.stack(drafts).numpy()


def fused(head, weights, taps):  # type: ignore[no-untyped-def]
    """The head's own states, of the target's [rows, taps, width]."""
    if head.fc_norm:
        gains = torch.stack([weights[f"fc_norm.{i}.weight"] for i in range(len(head.taps))])
        taps = norm(taps, gains, head.eps)
    joined = taps.flatten(1)
    if head.norm_before_fc:
        joined = norm(joined, weights["input_norm.weight"], head.eps)
    return joined @ weights["fc.weight"].T


def step(head, weights, embedded, state, position, keys, values):  # type: ignore[no-untyped-def]
    """One row through the first layer: the residual stream behind it, before the last norm."""
    hidden = norm(state, weights["layer.hidden_norm.weight"], head.eps)
    pair = torch.cat((norm(embedded, weights["layer.input_layernorm.weight"], head.eps), hidden))
    residual = hidden if head.norm_before_residual else state
    return decoder_layer(head, weights, "layer.", pair, residual, position, keys, values)


def upper_layer(head, weights, name, rows):  # type: ignore[no-untyped-def]
    """All rows through a layer above the first, as transformers' Llama has them."""
    keys, values, after = [], [], []
    for position, x in enumerate(rows):
        normed = norm(x, weights[name + "input_layernorm.weight"], head.eps)
        after.append(decoder_layer(head, weights, name, normed, x, position, keys, values))
    return after


def decoder_layer(head, weights, name, attended, residual, position, keys, values):  # type: ignore[no-untyped-def]
    query, key, value = (
        (weights[f"{name}self_attn.{part}_proj.weight"] @ attended).reshape(-1, head.head_dim) for part in "qkv"
    )
    keys.append(turned(head, key, position))
    values.append(value)
    repeat = head.n_head // head.n_kv_head
    all_keys, all_values = (
        torch.stack(rows).repeat_interleave(repeat, 1) for rows in (keys, values)
    )  # [cells, heads, d]
    scores = torch.einsum("hd,chd->hc", turned(head, query, position), all_keys) / math.sqrt(head.head_dim)
    mixed = torch.einsum("hc,chd->hd", scores.softmax(-1), all_values).flatten()
    x = residual + weights[f"{name}self_attn.o_proj.weight"] @ mixed
    inner = norm(x, weights[f"{name}post_attention_layernorm.weight"], head.eps)
    gate = torch.nn.functional.silu(weights[f"{name}mlp.gate_proj.weight"] @ inner)
    return x + weights[f"{name}mlp.down_proj.weight"] @ (gate * (weights[f"{name}mlp.up_proj.weight"] @ inner))


def norm(x, gains, eps):  # type: ignore[no-untyped-def]
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gains


def turned(head, rows, position):  # type: ignore[no-untyped-def]
    """rows [heads, d]: element i turns with element i + d / 2."""
    frequencies, scale = frequencies_of(head)
    angles = (position * frequencies).repeat(2)
    first, second = rows.chunk(2, -1)
    return (rows * angles.cos() + torch.cat((-second, first), -1) * angles.sin()) * scale


def frequencies_of(head):  # type: ignore[no-untyped-def]
    """As transformers' modeling_rope_utils has them, and what cosines and sines are multiplied by."""
    d, scaling = head.head_dim, head.rope_scaling or {}
    plain = head.theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    factor, original = scaling.get("factor", 1.0), scaling.get("original_max_position_embeddings", 0)
    match scaling.get("rope_type", scaling.get("type")):
        case "linear":
            return plain / factor, 1.0
        case "llama3":
            wavelengths = 2 * math.pi / plain
            smooth = (original / wavelengths - 1.0) / (4.0 - 1.0)
            medium = (1 - smooth) * plain / factor + smooth * plain
            slow = torch.where(wavelengths > original / 1.0, plain / factor, medium)
            return torch.where(wavelengths < original / 4.0, plain, slow), 1.0
        case "yarn":
            low, high = (
                d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(head.theta)) for turns in (32, 1)
            )
            low, high = max(math.floor(low), 0), min(math.ceil(high), d - 1)
            ramp = ((torch.arange(d // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
            return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1.0
    return plain, 1.0


def scattered(head, logits):  # type: ignore[no-untyped-def]
    if head.draft_tokens is None:
        return logits
    everywhere = torch.full((head.n_vocab,), -math.inf, dtype=torch.float64)
    everywhere[torch.from_numpy(head.draft_tokens)] = logits
    return everywhere
