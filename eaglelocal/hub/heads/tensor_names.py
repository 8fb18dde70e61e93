"""Tensor names of every dialect, mapped to one set of names; tensors of other kinds of heads are refused with a reason.

SafeAILab and SpecForge call the first layer `midlayer`, speculators `layers.0`, NeMo and checkpoints saved from inside
another model put a prefix before everything. Upper layers are `layers.1` and so on everywhere. A tensor that is not
known here is an error, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.hub.heads.safetensors_files import StoredTensor

PREFIXES = ("module.", "model.", "eagle_module.", "draft_model.", "draft.")
RENAMED = (("midlayer.", "layers.0."), ("eagle_lm_head.", "lm_head."), ("layers.0.", "layer."))
LAYER = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
)
REQUIRED = frozenset({"fc.weight", "norm.weight", "layer.hidden_norm.weight", *(f"layer.{part}" for part in LAYER)})
MASK_HIDDEN = "mask_hidden"  # of P-EAGLE heads
OPTIONAL = frozenset({"input_norm.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d", MASK_HIDDEN})
FC_NORM = re.compile(r"fc_norm\.(\d{1,2})\.weight")
# buffers that can be computed, and frozen copies of parts of the target
NEEDLESS = ("rotary_emb.inv_freq", "verifier_lm_head.weight", "verifier_norm.weight")
# parts of a tensor's name, and what a head that has it does
FOREIGN = (
    ("q_norm", "normalises its queries and keys"),
    ("k_norm", "normalises its queries and keys"),
    ("kv_a_proj", "has latent attention (MLA)"),
    ("q_a_proj", "has latent attention (MLA)"),
    ("experts.", "is a mixture of experts"),
    ("sinks", "has attention sinks"),
    ("lora_", "is an adapter"),
)
UPPER_LAYER = re.compile(r"layers\.([1-9]\d?)\.")
MAX_SHOWN = 6


@dataclass(frozen=True, slots=True)
class HeadTensors:
    """A head's tensors under their common names."""

    named: Mapping[str, StoredTensor]
    fc_norms: tuple[StoredTensor, ...]  # one for each tap; or none
    prefix: str  # what stood before the names, such as `model.`
    layer_name: str  # what the first layer was called: midlayer or layers.0
    num_layers: int
    dropped: tuple[str, ...]  # known and not needed

    def __getitem__(self, name: str) -> StoredTensor:
        return self.named[name]

    def get(self, name: str) -> StoredTensor | None:
        return self.named.get(name)


def name_tensors(stored: Mapping[str, StoredTensor]) -> HeadTensors:
    """Return the tensors under their common names.

    Raises IncompatibleError on a head that is of another kind, ModelFileError on names that are no head's.
    """
    named: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        common = normalize_tensor_name(name)
        if common in named:
            raise ModelFileError(f"tensors {named[common].name} and {name} are both {common}")
        named[common] = tensor
    dropped = {name: tensor for name, tensor in named.items() if _is_needless(name, tensor)}
    kept = {name: tensor for name, tensor in named.items() if name not in dropped}
    num_layers = _count_layers(kept)
    _check(kept, num_layers)
    fc_norms = {int(found[1]): kept.pop(found[0]) for found in filter(None, map(FC_NORM.fullmatch, list(kept)))}
    if sorted(fc_norms) != list(range(len(fc_norms))):
        raise ModelFileError(f"there are norms of taps {sorted(fc_norms)}, which leaves holes")
    layer = kept["layer.hidden_norm.weight"].name
    return HeadTensors(
        named=kept,
        fc_norms=tuple(fc_norms[tap] for tap in range(len(fc_norms))),
        prefix=_find_prefix(layer),
        layer_name="midlayer" if "midlayer." in layer else "layers.0",
        num_layers=num_layers,
        dropped=tuple(dropped),
    )


def normalize_tensor_name(name: str) -> str:
    """Return `layer.mlp.up_proj.weight` for `model.layers.0.mlp.up_proj.weight` and `midlayer.mlp.up_proj.weight`."""
    name = name.removeprefix(_find_prefix(name))
    for old, new in RENAMED:
        if name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def _find_prefix(name: str) -> str:
    rest = name
    while prefix := next((prefix for prefix in PREFIXES if rest.startswith(prefix)), ""):
        rest = rest.removeprefix(prefix)
    return name.removesuffix(rest)


def _is_needless(name: str, tensor: StoredTensor) -> bool:
    """Return whether a tensor changes nothing, as a bias of zeros."""
    return name.endswith(NEEDLESS) or (name.endswith(".bias") and tensor.is_float and not tensor.floats().any())


def name_upper_layer(layer: int) -> str:
    """Return what stands before the names of the tensors of layer 1 and those after it."""
    return f"layers.{layer}."


def _count_layers(named: Mapping[str, StoredTensor]) -> int:
    return 1 + max((int(found[1]) for found in map(UPPER_LAYER.match, named) if found), default=0)


def _check(named: Mapping[str, StoredTensor], num_layers: int) -> None:
    upper = {name_upper_layer(layer) + part for layer in range(1, num_layers) for part in LAYER}
    required = REQUIRED | upper
    unknown = [name for name in named if name not in required | OPTIONAL and not FC_NORM.fullmatch(name)]
    for name in unknown:
        if reason := _find_foreign_part(name):
            raise IncompatibleError(
                f"the head {reason} (tensor {named[name].name}), which llama.cpp's eagle3 graph cannot",
                hint="choose another head of this target",
            )
    missing = sorted(required - named.keys())
    if "layer.hidden_norm.weight" in missing:
        what = "an EAGLE-1 or EAGLE-2 head" if "fc.weight" in named else "no EAGLE head"
        raise ModelFileError(
            f"this is {what}: {_join_names(missing)} are missing", hint="EAGLE-3, EAGLE-3.1 and P-EAGLE heads are run"
        )
    if unknown:
        raise ModelFileError(f"tensors that no EAGLE-3 head has: {_join_names([named[name].name for name in unknown])}")
    if missing:
        raise ModelFileError(f"the head lacks {_join_names(missing)}", hint="fetch the rest of the head")


def _find_foreign_part(name: str) -> str:
    if name.endswith(".bias"):
        return "has biases"
    return next((reason for part, reason in FOREIGN if part in name), "")


def _join_names(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_SHOWN])
    return shown if len(names) <= MAX_SHOWN else f"{shown} and {len(names) - MAX_SHOWN} more"
