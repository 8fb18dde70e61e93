"""A head read from a file drafts in torch what llama.cpp drafts from that file, at every depth of a chain.

Both are given the target's states as llama.cpp has them. llama.cpp is driven by the engine's own drafter, and row by
row for the logits; torch unrolls what it learns on.
"""

from __future__ import annotations

import ctypes as C
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from doubles.eagle_files import WIDTH, Form, head_source, small_kind, write_form, write_small_target
from doubles.runnable_models import N_VOCAB

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_context import LlamaHeadContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch, PairBatch
from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import Committed, Node
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.eagle_info import (
    FC_NORM_EPS_KEY,
    MASK_HIDDEN_KEY,
    MASK_TOKEN_KEY,
    NUM_DEPTHS_KEY,
    WINDOW_KEY,
    EagleInfo,
)
from eaglelocal.gguf.header import Header, ValueType
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import KeyValue
from eaglelocal.loading.draft_loader import make_eagle, read_head_format

torch = pytest.importorskip("torch")

from eaglelocal.training.draft_head import (  # noqa: E402
    DraftHead,
    DraftVocabulary,
    choose_vocabulary,
    make_draft_head,
    read_head_shape,
)
from eaglelocal.training.eagle_head import EagleHead  # noqa: E402

pytestmark = pytest.mark.full

PARAMS = ContextParams(n_ctx=256, n_batch=64, kv_type="f32", flash_attn="off")
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, N_VOCAB - 1, 30)]
ROOT_TOKEN, DEPTH = 17, 5
ANCHOR = len(TEXT) - 1  # where the chain begins
TOLERANCE = 2e-3  # of logits whose standard deviation is about 1
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
TARGETS = {"llama": ("llama", False), "llama tied": ("llama", True), "qwen3": ("qwen3", False)}


def scaled(kind: str | None) -> tuple[KeyValue, ...]:
    """Linear scaling, as files say it; it is what llama.cpp takes where only the factor stands."""
    named = () if kind is None else (KeyValue("eagle3.rope.scaling.type", ValueType.STRING, kind),)
    return (*named, KeyValue("eagle3.rope.scaling.factor", ValueType.FLOAT32, 2.0))


def real(key: str, value: float) -> KeyValue:
    return KeyValue(key, ValueType.FLOAT32, value)


def with_keys(*entries: KeyValue, **fields: object) -> Form:
    return Form(kind=small_kind(**fields), entries=entries)


def masked() -> tuple[KeyValue, ...]:
    hidden = tuple(np.random.default_rng(9).normal(size=3 * WIDTH).tolist())
    return (
        KeyValue(MASK_TOKEN_KEY, ValueType.UINT32, 9),
        KeyValue(NUM_DEPTHS_KEY, ValueType.UINT32, DEPTH),
        KeyValue(MASK_HIDDEN_KEY, ValueType.ARRAY, hidden, ValueType.FLOAT32),
    )


FORMS = {
    "EAGLE-3": Form(kind=small_kind()),
    "EAGLE-3.1": Form(kind=small_kind(fc_norm=True, norm_output=True)),
    "one norm before fc": Form(kind=small_kind(norm_before_fc=True, norm_output=True, norm_before_residual=True)),
    "residual behind the norm": Form(kind=small_kind(norm_before_residual=True)),
    "all of it": Form(kind=small_kind(fc_norm=True, norm_output=True, norm_before_residual=True)),
    "more heads": Form(kind=small_kind(n_head=4, n_kv_head=2)),
    "four taps": Form(kind=small_kind(num_taps=4, first_tap=0, fc_norm=True, norm_output=True)),
    "one norm of two taps": Form(kind=small_kind(num_taps=2, norm_before_fc=True)),
    "a window": with_keys(KeyValue(WINDOW_KEY, ValueType.UINT32, 8), norm_output=True),
    "a window below the chain": with_keys(KeyValue(WINDOW_KEY, ValueType.UINT32, 2)),
    "llama3": Form(kind=small_kind(rope_scaling=LLAMA3)),
    "linear": with_keys(*scaled("linear")),
    "linear unsaid": with_keys(*scaled(None)),
    "a factor that is not used": with_keys(*scaled("none")),
    "another theta": with_keys(real("eagle3.rope.freq_base", 500.0)),
    "another epsilon": with_keys(real("eagle3.attention.layer_norm_rms_epsilon", 0.05), fc_norm=True, norm_output=True),
    "fc_norm's own epsilon": with_keys(real(FC_NORM_EPS_KEY, 0.5), fc_norm=True),
    "fewer words, in any order": Form(
        kind=small_kind(draft_vocab=100), d2t=tuple(np.random.default_rng(8).permutation(N_VOCAB)[:100].tolist())
    ),
    "all words": Form(kind=small_kind(draft_vocab=None)),
    "its own embeddings": Form(kind=small_kind(own_embeddings=True)),
    "narrower than its target": Form(kind=small_kind(width=128, own_embeddings=True, fc_norm=True)),
    "a lent output": Form(kind=small_kind(draft_vocab=None), lends_output=True),
    "P-EAGLE": with_keys(*masked(), fc_norm=True),
    "P-EAGLE with its own embeddings": with_keys(*masked(), own_embeddings=True, norm_before_fc=True),
    "P-EAGLE with a window": with_keys(*masked(), KeyValue(WINDOW_KEY, ValueType.UINT32, 8)),
}


@dataclass(frozen=True)
class Said:
    """By llama.cpp. `logits` [depth, vocab] behind the root and the drafts before; `features` [rows, taps, width]."""

    drafts: list[int]
    logits: np.ndarray
    features: np.ndarray


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("targets")
    return {
        name: write_small_target(folder / f"{name}.gguf", architecture, tied=tied)
        for name, (architecture, tied) in TARGETS.items()
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_form_drafts_the_same(form: str, targets: dict[str, Path], tmp_path: Path) -> None:
    check_same(FORMS[form], targets["llama"], tmp_path)


@pytest.mark.parametrize("name", ["llama tied", "qwen3"])
@pytest.mark.parametrize("form", ["EAGLE-3.1", "a lent output"])
def test_next_to_every_target(form: str, name: str, targets: dict[str, Path], tmp_path: Path) -> None:
    check_same(FORMS[form], targets[name], tmp_path)


def check_same(form: Form, target: Path, folder: Path) -> None:
    path = write_form(folder, form, target)
    theirs, (ours, words) = said_by_llama(path, target), opened(path, target)
    logits = unrolled(ours, words, theirs)
    spread = theirs.logits[np.isfinite(theirs.logits)].std()
    assert spread > 0.3
    np.testing.assert_allclose(everywhere(logits, words), theirs.logits, atol=TOLERANCE * spread, rtol=0)
    assert everywhere(logits, words).argmax(-1).tolist() == theirs.drafts


FAULTS: dict[str, dict[str, object]] = {
    "norm_eps": {"norm_eps": 0.05},
    "fc_norm_eps": {"fc_norm_eps": 0.5},
    "rope_theta": {"rope_theta": 500.0},
    "rope_scale": {"rope_scale": 2.0},
    "rope_factors": {"rope_factors": tuple(np.linspace(1.0, 8.0, 32).tolist())},
    "window": {"window": 8},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": False},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_shape_that_is_wrong_shows(fault: str, targets: dict[str, Path], tmp_path: Path) -> None:
    """Each of these figures moves the logits further than the comparison lets pass."""
    path = write_form(tmp_path, FORMS["EAGLE-3.1"], targets["llama"])
    theirs, (draft_head, words) = said_by_llama(path, targets["llama"]), opened(path, targets["llama"])
    wrong = EagleHead(replace(draft_head.head.shape, **FAULTS[fault]))
    wrong.load_state_dict(draft_head.head.state_dict())
    draft_head.head = wrong
    logits = everywhere(unrolled(draft_head, words, theirs), words)
    drafted = np.isfinite(theirs.logits)
    assert np.abs(logits[drafted] - theirs.logits[drafted]).max() > 10 * TOLERANCE


@pytest.mark.parametrize(
    "entries",
    [
        (KeyValue("eagle3.rope.scaling.type", ValueType.STRING, "yarn"), real("eagle3.rope.scaling.factor", 4.0)),
        (KeyValue("eagle3.rope.dimension_count", ValueType.UINT32, 32),),
    ],
)
def test_a_rotation_that_is_not_computed_is_refused(
    entries: tuple[KeyValue, ...], targets: dict[str, Path], tmp_path: Path
) -> None:
    path = write_form(tmp_path, with_keys(*entries), targets["llama"])
    header = read_header(path)
    with pytest.raises(IncompatibleError, match="which training does not support"):
        read_head_shape(EagleInfo.from_header(header), max_context=64)


# ---- torch


def opened(path: Path, target: Path) -> tuple[DraftHead, DraftVocabulary]:
    source = head_source(target, path)
    assert source.start is not None
    source = replace(source, num_depths=source.start.num_depths)
    words = choose_vocabulary(source, None)
    draft_head = make_draft_head(source, words, max_context=64)
    rows = list(range(words.output.num_rows))
    draft_head.output = torch.nn.Parameter(torch.from_numpy(words.output.rows(rows)))  # a lent one is kept in bfloat16
    return draft_head, words


@torch.no_grad()
def unrolled(draft_head: DraftHead, words: DraftVocabulary, said: Said) -> np.ndarray:
    """[depth, draft vocabulary] of the chain at the end of TEXT, along what llama.cpp drafted."""
    tokens = [*TEXT, ROOT_TOKEN, *said.drafts]
    padding = np.zeros((len(tokens) - len(TEXT), *said.features.shape[1:]), np.float32)
    taps = torch.from_numpy(np.concatenate([said.features, padding])).unsqueeze(0)
    embedded = torch.from_numpy(words.read_embeddings(tokens)).unsqueeze(0)
    g = draft_head.head.fuse(list(taps.unbind(2)))
    states = draft_head.head(embedded, g, torch.tensor([[ANCHOR]]), DEPTH)
    return torch.cat([state[0] for state in states]).matmul(draft_head.output.T).numpy()


def everywhere(logits: np.ndarray, words: DraftVocabulary) -> np.ndarray:
    """[depth, vocab], minus infinity for tokens that the head does not say."""
    if words.tokens is None:
        return logits
    scattered = np.full((len(logits), N_VOCAB), -np.inf, np.float32)
    scattered[:, words.tokens] = logits
    return scattered


# ---- llama.cpp


def said_by_llama(path: Path, target: Path) -> Said:
    with ExitStack() as stack:
        header = read_header(path)
        info = EagleInfo.from_header(header)
        models = [LlamaModel(load_library(), file, Placement(repack=False)) for file in (target, path)]
        for model in models:
            stack.callback(model.close)
        context = LlamaContext(models[0], PARAMS, taps=info.target_layers)
        stack.callback(context.close)
        head = LlamaHeadContext(models[1], PARAMS, target=context, form=read_head_format(info))
        stack.callback(head.close)
        n = len(TEXT)
        context.decode(Batch(TEXT, list(range(n)), [(0,)] * n, [True] * n))
        features = context.copy_taps(list(range(n)))
        drafts, num_waiting = drafted(head, header, info, features)
        if info.mask is not None:  # one decode gave them all
            rows = [logits_of(models[1], head, num_waiting + depth) for depth in range(DEPTH)]
            return Said(drafts, np.stack(rows), features)
        head.remove(0, 0)
        return Said(drafts, rows_of(models[1], head, info, features, drafts), features)


def drafted(head: LlamaHeadContext, header: Header, info: EagleInfo, features: np.ndarray) -> tuple[list[int], int]:
    """The draft after the root, and how many rows stood before the root's in its decode."""
    drafter = make_eagle(head, header, info, num_choices=1)
    drafter.commit([Committed(0, 0, TEXT, features)])
    before = len(drafter._slots[0].waiting_tokens)
    [said] = drafter.draft([Node(0, ROOT, ROOT_TOKEN, len(TEXT))], DEPTH)
    num_waiting = before if info.window is None else min(before, info.window - 1)
    return list(said.tokens), num_waiting


def rows_of(
    model: LlamaModel, head: LlamaHeadContext, info: EagleInfo, features: np.ndarray, drafts: list[int]
) -> np.ndarray:
    """Each row in a decode of its own."""
    fused = head.encode([features])
    head.decode(PairBatch(TEXT[1:], fused[:-1], list(range(ANCHOR)), [0] * ANCHOR, []), 1, confident=False)
    if info.window is not None:
        head.forget(0, ANCHOR + 1 - info.window)
    logits, state = [], fused[-1]
    for step, token in enumerate([ROOT_TOKEN, *drafts[:-1]]):
        said = head.decode(PairBatch([token], [state], [ANCHOR + step], [0], [0]), 1, confident=True)
        logits.append(logits_of(model, head))
        state = said.states[0]
    return np.stack(logits)


def logits_of(model: LlamaModel, head: LlamaHeadContext, row: int = 0) -> np.ndarray:
    address = model.library.get_logits_row(head.handle, row)
    return np.frombuffer((C.c_float * N_VOCAB).from_address(address), np.float32).copy()
