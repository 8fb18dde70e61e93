"""The configuration of a published head, from any dialect, as one plain description.

Dialects differ in the place of a flag, the meaning of its absence, and the way they count layers. Settings that a
configuration leaves open stay open (`HeadReading`): a trial decides them later (`cli/head_trial.py`).

SafeAILab and SpecForge write flat keys, SpecForge and ModelOpt (NVIDIA) more of them below `eagle_config`,
speculators the layer's shape below `transformer_layer_config`. P-EAGLE heads come flat, of speculators or of NeMo.
"""

from __future__ import annotations

from collections.abc import Mapping

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.hub.heads.rope import Rope, read_rope

MAX_COUNT = 2**31 - 1
MAX_TAPS = 16
MAX_HEAD_DIM = 4096
OTHER_HEAD = "choose another head of this target"
FETCH_REST = "fetch the rest of the head"
POST_NORM = ("norm_output", "return_hidden_post_norm")  # two names of one flag
MASK_TOKENS = ("mask_token_id", "pard_token", "ptd_token_id")  # of a P-EAGLE head, in the order in which vLLM tries
NUM_DEPTHS = 8  # tokens that a P-EAGLE head drafts unless its configuration says otherwise: the trainers' default
TAPS_KEY = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReading:
    """An interpretation of the settings that a head's configuration leaves open."""

    taps: tuple[int, ...]  # layer inputs: id k is the stream that enters layer k
    norm_before_residual: bool
    norm_output: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    dialect: str
    num_layers: int
    width: int
    n_head: int
    n_kv_head: int
    head_dim: int
    n_ff: int
    rms_eps: float
    rope: Rope
    max_context: int
    window: int | None  # of sliding-window attention, in tokens
    vocab_size: int | None  # of the target
    draft_vocab: int | None
    target_hidden_size: int | None
    layer_ids: tuple[int, ...] | None  # as they are written
    ids_are_nested: bool  # below eagle_config, where SGLang and ModelOpt count outputs of layers
    fc_norm: bool
    norm_before_fc: bool
    norm_output: bool
    norm_before_residual: bool | None  # None: not said
    ties_embeddings: bool
    verifier: str  # the target that it names, or empty
    mask: int | None  # mask token of a P-EAGLE head; None: it is an EAGLE head
    num_depths: int | None  # tokens that a P-EAGLE head was trained to draft in one pass; None: not stated


class ConfigKeys:
    """Typed access to the configuration: `transformer_layer_config` first, then the top level, then `eagle_config`."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.top = config
        self.eagle = _read_nested(config, "eagle_config")
        self.layer = _read_nested(config, "transformer_layer_config")
        self.merged = {**self.eagle, **config, **self.layer}

    def count(self, key: str, default: int | None = None) -> int:
        value = self.optional_count(key)
        if value is None:
            value = default
        if value is None:
            raise ModelFileError(f"config.json lacks {key}")
        return value

    def optional_count(self, key: str) -> int | None:
        value = self.merged.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_COUNT:
            raise ModelFileError(f"config.json: {key} is {str(value)[:40]}, not a count")
        return value

    def flag(self, *names: str) -> bool | None:
        """Return a bool under any of its names; None where it is not stated."""
        for name in names:
            value = self.merged.get(name)
            if isinstance(value, bool):
                return value
            if value is not None:
                raise ModelFileError(f"config.json: {name} is {str(value)[:40]}, not true or false")
        return None

    def text(self, key: str) -> str:
        value = self.merged.get(key)
        return value if isinstance(value, str) else ""


def _read_nested(config: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _read_head_dim(keys: ConfigKeys, usual: int) -> int:
    """Return the head dimension, which must be even: RoPE rotates one half against the other."""
    head_dim = keys.count("head_dim", max(usual, 1))
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise ModelFileError(f"config.json: heads are {head_dim} wide, not an even number up to {MAX_HEAD_DIM}")
    return head_dim


def read_config(config: Mapping[str, object], *, prefix: str, layer_name: str, is_parallel: bool = False) -> HeadConfig:
    """Read a configuration; `prefix` and `layer_name` begin the tensors' names, which differ between dialects.

    is_parallel  the tensors are those of a P-EAGLE head

    Raises ModelFileError if a value is missing or not a number, IncompatibleError if llama.cpp cannot run the head.
    """
    keys = ConfigKeys(config)
    activation = keys.text("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        message = f"the head's activation is {activation}, llama.cpp runs heads with silu"
        raise IncompatibleError(message, hint=OTHER_HEAD)
    width, n_head = keys.count("hidden_size"), keys.count("num_attention_heads")
    layer_ids, nested = _read_layer_ids(keys)
    return HeadConfig(
        dialect=find_dialect(keys, prefix, layer_name),
        num_layers=keys.count("num_hidden_layers", 1),
        width=width,
        n_head=n_head,
        n_kv_head=keys.count("num_key_value_heads", n_head),
        head_dim=_read_head_dim(keys, width // n_head),
        n_ff=keys.count("intermediate_size"),
        rms_eps=_read_epsilon(keys),
        rope=read_rope(keys.merged),
        max_context=keys.count("max_position_embeddings", 2048),
        window=_read_window(keys),
        vocab_size=keys.optional_count("vocab_size"),
        draft_vocab=keys.optional_count("draft_vocab_size"),
        target_hidden_size=keys.optional_count("target_hidden_size"),
        layer_ids=layer_ids,
        ids_are_nested=nested,
        fc_norm=keys.flag("fc_norm") or False,
        norm_before_fc=keys.flag("norm_before_fc") or False,
        norm_output=keys.flag(*POST_NORM) or False,
        norm_before_residual=keys.flag("norm_before_residual"),
        ties_embeddings=keys.flag("tie_word_embeddings") or False,
        verifier=_read_verifier(keys),
        mask=_read_mask(keys, is_parallel=is_parallel),
        num_depths=_read_num_depths(keys),
    )


def find_dialect(keys: ConfigKeys, prefix: str, layer_name: str) -> str:
    """Return the project that wrote the head.

    Only speculators, and the place of the layer ids, change how the configuration is read; the rest is for display.
    """
    architectures = keys.top.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if keys.layer or keys.top.get("speculators_model_type") or "Speculator" in architecture:
        return "speculators"
    if keys.top.get("producer") or "use_mtp_layernorm" in keys.eagle:
        return "ModelOpt"
    if prefix:
        return "NeMo"
    if "ptd_token_id" in keys.top or "pard_token" in keys.top:
        return "p-eagle-train"
    if architecture == "Eagle3LlamaForCausalLM":
        return "AngelSlim"
    return "SpecForge" if architecture == "LlamaForCausalLMEagle3" and layer_name == "midlayer" else "SafeAILab"


def list_readings(config: HeadConfig, *, num_taps: int, n_layer: int, last_tap: int) -> tuple[HeadReading, ...]:
    """Return the possible readings of the configuration for a target of `n_layer` layers, the likeliest first.

    `last_tap` is the target's highest layer input. Raises ModelFileError, or IncompatibleError if it lacks a tap.
    """
    residual = config.norm_before_residual
    residuals: tuple[bool, ...] = (residual or False,)
    if residual is None and config.dialect == "speculators" and config.mask is None:
        residuals = (True, False)  # speculators' loader of EAGLE heads takes true if the flag is missing, others false
    usual = (2, n_layer // 2, n_layer - 3)
    if config.layer_ids is None and num_taps != len(usual):
        raise ModelFileError(f"config.json does not say which {num_taps} layers are tapped ({TAPS_KEY})")
    layer_ids = usual if config.layer_ids is None else config.layer_ids
    if len(layer_ids) != num_taps:
        raise ModelFileError(f"config.json names {len(layer_ids)} layers, fc reads {num_taps}")
    taps = list_tap_readings(layer_ids, usual=usual, nested=config.ids_are_nested)
    possible = tuple(layers for layers in taps if 0 <= min(layers) <= max(layers) <= last_tap)
    if not possible:
        message = f"the head taps layers {list(layer_ids)}; of this target those to {last_tap} can be had"
        raise IncompatibleError(message, hint=OTHER_HEAD)
    norm_output = config.norm_output and config.mask is None  # rows of masks do not read another row's state
    return tuple(
        HeadReading(taps=layers, norm_before_residual=residual, norm_output=norm_output)
        for layers in possible
        for residual in residuals
    )


def list_tap_readings(
    layer_ids: tuple[int, ...], *, usual: tuple[int, ...], nested: bool
) -> tuple[tuple[int, ...], ...]:
    """Return the layer inputs that the ids may mean, the likeliest first.

    Ids count layer inputs (vLLM, speculators, llama.cpp) or layer outputs, which are one lower (SGLang, ModelOpt,
    below `eagle_config`). The usual three are known in both ways of counting; others stay open.

    >>> list_tap_readings((1, 15, 28), usual=(2, 16, 29), nested=False)
    ((2, 16, 29),)
    >>> list_tap_readings((3, 9, 20), usual=(2, 16, 29), nested=True)
    ((4, 10, 21), (3, 9, 20))
    """
    inputs, outputs = layer_ids, tuple(layer + 1 for layer in layer_ids)
    if usual in (inputs, outputs):
        return (usual,)
    return (outputs, inputs) if nested else (inputs, outputs)


def _read_mask(keys: ConfigKeys, *, is_parallel: bool) -> int | None:
    """Return the mask token of a P-EAGLE head; None for other heads.

    Raises ModelFileError if only one of configuration and tensors belongs to a P-EAGLE head.
    """
    names = [name for name in MASK_TOKENS if keys.merged.get(name) is not None]
    is_stated = keys.text("speculators_model_type") == "peagle" or keys.flag("parallel_drafting") or bool(names)
    if not (is_stated or is_parallel):
        return None
    if not is_parallel:
        raise ModelFileError("the head lacks mask_hidden, from which a P-EAGLE head drafts", hint=FETCH_REST)
    if not names:
        raise ModelFileError(
            f"config.json names no mask token, from which a P-EAGLE head drafts ({', '.join(MASK_TOKENS)})",
            hint=OTHER_HEAD,
        )
    token = keys.merged[names[0]]
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MAX_COUNT:
        raise ModelFileError(f"config.json: {names[0]} is {str(token)[:40]}, not a token")
    return token


def _read_num_depths(keys: ConfigKeys) -> int | None:
    """Return the tokens of one pass: below the first proposal method in speculators' form, at the top in NeMo's."""
    methods = _read_nested(keys.top, "speculators_config").get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    if not isinstance(first, Mapping) or first.get("speculative_tokens") is None:
        return keys.optional_count("num_depths")
    return ConfigKeys(first).count("speculative_tokens")


def _read_layer_ids(keys: ConfigKeys) -> tuple[tuple[int, ...] | None, bool]:
    for place, nested in ((keys.top, False), (keys.layer, False), (keys.eagle, True)):
        ids = place.get(TAPS_KEY)
        if not ids:  # ModelOpt writes an empty list for the usual ones
            continue
        if isinstance(ids, list) and len(ids) <= MAX_TAPS and all(type(layer) is int for layer in ids):
            return tuple(ids), nested
        raise ModelFileError(f"config.json: {TAPS_KEY} is {str(ids)[:60]}")
    return None, False


def _read_epsilon(keys: ConfigKeys) -> float:
    eps = keys.merged.get("rms_norm_eps", 1e-6)
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < 1:
        raise ModelFileError(f"config.json: rms_norm_eps is {str(eps)[:40]}")
    return float(eps)


def _read_window(keys: ConfigKeys) -> int | None:
    """Return the sliding window, None if unused: many models state one without using it; the layer's type decides."""
    window = keys.optional_count("sliding_window")
    types = keys.merged.get("layer_types")
    if isinstance(types, list) and types:
        return window if types[0] == "sliding_attention" else None
    is_used = keys.flag("use_sliding_window") or keys.text("model_type") == "mistral"
    return window if is_used else None


def _read_verifier(keys: ConfigKeys) -> str:
    """Return the target that the head was trained for, if it is named (by speculators); else empty."""
    speculators = _read_nested(keys.top, "speculators_config")
    name = _read_nested(speculators, "verifier").get("name_or_path")
    return name if isinstance(name, str) else ""
