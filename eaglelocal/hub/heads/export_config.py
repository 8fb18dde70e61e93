"""The configuration of an exported head: the inverse of head_config.py.

`specforge` writes flat keys, as SpecForge does and P-EAGLE's trainer too; SGLang and vLLM read them. `speculators`
writes the layer's shape below `transformer_layer_config`, and names the target; vLLM and the package speculators read
it. Both state every flag, because readers disagree about what a missing one means.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.hub.heads.export_tensors import ExportHead, read_target_tokens
from eaglelocal.hub.heads.head_config import TAPS_KEY
from eaglelocal.hub.heads.rope import read_rope_keys

SPECULATORS, SPECFORGE = "speculators", "specforge"
EXPORT_FORMATS = {SPECULATORS: "layers.0", SPECFORGE: "midlayer"}  # with what the first layer is called
DRAFT_LENGTH = 3  # tokens that vLLM drafts where nobody says otherwise
TORCH_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ROPE_FACTORS = "rope_freqs.weight"


def find_export_problem(info: EagleInfo, form: str) -> str:
    """Return why a head cannot be written in a format without a change of what it computes; empty where it can."""
    if problem := next(info.find_own_problems(), ""):
        return problem
    if len(set(info.target_layers)) != len(info.target_layers):
        return f"it taps the layers {list(info.target_layers)}, one of them twice, and engines give each once"
    if info.fc_norm_eps != info.rms_eps:
        return f"its fc_norm has the epsilon {info.fc_norm_eps:g}, its other norms {info.rms_eps:g}"
    if info.fc_norm and info.norm_before_fc:
        return "it has fc_norm and norm_before_fc, which exclude each other"
    if form == SPECULATORS and info.mask is not None and info.fc_norm:
        return "vLLM does not pass fc_norm on to P-EAGLE heads of the format speculators"
    return ""


def list_export_notes(info: EagleInfo, form: str) -> Iterator[str]:
    """Yield what an engine that reads the format does not do as this head needs it."""
    if form == SPECFORGE and info.norm_before_residual:
        yield "SGLang does not read norm_before_residual, and drafts worse with this head; vLLM does read it"
    if form == SPECFORGE and info.mask is not None:
        yield "SGLang runs no P-EAGLE heads; vLLM does"
    if form == SPECFORGE and info.window:
        yield f"SGLang takes the attention window from --speculative-draft-window-size {info.window}"
    if not info.has_own_output:
        yield "it has no output of its own: engines lend it their target's"


def make_config(head: ExportHead, form: str, target_repo: str) -> dict[str, object]:
    """Return the config.json. Raises IncompatibleError with the reason why the head cannot be written."""
    if problem := find_export_problem(head.info, form):
        hint = f"--format {SPECFORGE}" if "speculators" in problem else ""
        raise IncompatibleError(f"the head {head.info.name} cannot be exported: {problem}", hint=hint)
    layer, flags = _describe_layer(head), _describe_flags(head)
    if form == SPECULATORS:
        return _make_speculators_config(head.info, layer, flags, target_repo)
    return {"architectures": ["LlamaForCausalLMEagle3"], **layer, **flags, **_describe_flat(head)}


def _describe_layer(head: ExportHead) -> dict[str, object]:
    """Return the keys of a Llama layer."""
    header, info = head.header, head.info
    factors = read_tensor(header.path, header, ROPE_FACTORS) if ROPE_FACTORS in header.tensors else None
    windows = {"sliding_window": info.window, "layer_types": ["sliding_attention"] * info.n_layer}
    return {
        "model_type": "llama",
        "hidden_size": info.width,
        "intermediate_size": info.n_ff,
        "num_attention_heads": info.n_head,
        "num_key_value_heads": info.n_kv_head,
        "head_dim": info.head_dim,
        "num_hidden_layers": info.n_layer,
        "hidden_act": "silu",
        "rms_norm_eps": float(str(np.float32(info.rms_eps))),
        **read_rope_keys(header.metadata, factors, head_dim=info.head_dim).config(),
        "max_position_embeddings": _read_context(header),
        "vocab_size": info.n_vocab,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": TORCH_TYPES[head.dtype("fc.weight")],
        **(windows if info.window else {}),
    }


def _read_context(header: Header) -> int:
    context = header.metadata.get("eagle3.context_length")
    return context if isinstance(context, int) else 2048


def _describe_flags(head: ExportHead) -> dict[str, object]:
    info = head.info
    tokens = read_target_tokens(head.header, info)
    other_width = info.target_hidden_size != info.width
    return {
        "draft_vocab_size": info.n_vocab if tokens is None else len(tokens),
        **({"target_hidden_size": info.target_hidden_size} if other_width else {}),
        "fc_norm": info.fc_norm,
        "norm_before_fc": info.norm_before_fc,
        "norm_output": info.norm_output,
        "norm_before_residual": info.norm_before_residual,
        TAPS_KEY: _list_taps(head),
    }


def _list_taps(head: ExportHead) -> list[int]:
    """Return the tapped layers by their inputs, as vLLM and speculators count them."""
    return [head.info.target_layers[tap] for tap in head.tap_order]


def _describe_flat(head: ExportHead) -> dict[str, object]:
    info = head.info
    outputs = [layer - 1 for layer in _list_taps(head)]  # SGLang counts a layer's output, below eagle_config only
    below = {"use_aux_hidden_state": True, TAPS_KEY: outputs}
    parallel = {"ptd_token_id": info.mask, "num_depths": info.num_depths}
    lent = {} if info.has_own_output else {"draft_vocab_size": None}  # SGLang lends its target's output then
    return {**lent, **({} if info.mask is None else parallel), "eagle_config": below}


def _make_speculators_config(
    info: EagleInfo, layer: dict[str, object], flags: dict[str, object], target_repo: str
) -> dict[str, object]:
    is_parallel = info.mask is not None
    method = "peagle" if is_parallel else "eagle3"
    length = info.num_depths if is_parallel else DRAFT_LENGTH
    return {
        "architectures": ["PEagleSpeculator" if is_parallel else "Eagle3Speculator"],
        "speculators_model_type": method,
        "speculators_config": {
            "algorithm": method,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": length}],
            "verifier": {"name_or_path": target_repo, "architectures": []},
        },
        "transformer_layer_config": layer,
        **flags,
        **({"mask_token_id": info.mask} if is_parallel else {}),
        "tie_word_embeddings": False,
        "torch_dtype": layer["torch_dtype"],
    }
