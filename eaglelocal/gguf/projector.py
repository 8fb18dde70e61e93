"""A typed view of a projector: the file (mmproj-*.gguf) that encodes images for a model.

The width of its rows is read from the tensor where llama.cpp takes it (clip_n_mmproj_embd in tools/mtmd/clip.cpp of the
pinned version), because llama.cpp refuses a projector made for another width. For kinds without a known tensor the
header's value counts, and without one nothing is refused. Of the target only the header is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.architectures import ArchitectureKeys
from eaglelocal.gguf.header import Header

ARCHITECTURE = "clip"
LLAVA_NORM = "mm.3.bias"
ROW, BIAS = 1, 0  # axis of a tensor's shape that is the width: rows of a matrix, length of a bias
_LAST_WEIGHT = ("mm.2.weight", ROW)
_FIRST_BIAS = ("mm.2.bias", BIAS)
# kind of projector -> the tensor, and the axis of its shape, that give the width of its rows
WIDTHS: Mapping[str, tuple[str, int]] = MappingProxyType(
    dict.fromkeys(
        ("mlp", "phi4", "pixtral", "lightonocr", "dots_ocr", "dots3note_v", "muse-glimmer", "lfm2", "kimivl")
        + ("paddleocr", "kimik25", "yasa2", "deepseek4v", "mimovl"),
        _LAST_WEIGHT,
    )
    | dict.fromkeys(
        ("qwen2vl_merger", "qwen2.5vl_merger", "qwen2.5o", "qwen3vl_merger", "ling3vl", "exaone4_5", "youtuvl"),
        _FIRST_BIAS,
    )
    | dict.fromkeys(("internvl", "nemotron_v2_vl"), ("mm.model.mlp.3.weight", ROW))
    | dict.fromkeys(("step3vl", "llama4", "hunyuanvl", "idefics3"), ("mm.model.fc.weight", ROW))
    | dict.fromkeys(("deepseekocr", "deepseekocr2"), ("mm.model.fc.weight", ROW))
    | dict.fromkeys(("gemma3", "gemma3nv"), ("mm.input_projection.weight", 0))
    | dict.fromkeys(("gemma4v", "gemma4uv"), ("mm.input_projection.weight", ROW))
    | dict.fromkeys(("glm4v", "glm5v", "minicpmv4_6"), ("mm.down.weight", ROW))
    | {
        "resampler": ("resampler.proj.weight", 0),
        "adapter": ("adapter.linear.dense_4h_to_h.weight", ROW),
        "minimax_m3": ("mm.merger.fc2.bias", BIAS),
        "janus_pro": ("mm.1.bias", BIAS),
    }
)
# if the header has no largest image size: most tokens of an image, and a token's side in patches
MAX_TOKENS: Mapping[str, tuple[int, int]] = MappingProxyType(
    dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen2.5o", "qwen3vl_merger", "ling3vl"), (4096, 2))
    | dict.fromkeys(("exaone4_5", "glm4v", "muse-glimmer"), (4096, 2))
    | {
        "pixtral": (1024, 1),
        "lfm2": (256, 2),
        "kimivl": (1024, 2),
        "kimik25": (4096, 2),
        "gemma4v": (1120, 3),
        "gemma4uv": (1120, 3),
        "minimax_m3": (576, 2),
        "youtuvl": (62500, 2),
        "hunyuanvl": (16384, 2),
    }
)
DEEPSTACK = re.compile(r"v\.deepstack\.\d+\.fc1\.weight")
HINT = "--mmproj none"


@dataclass(frozen=True, slots=True)
class Projector:
    """A projector as its header describes it.

    kind         as llama.cpp names it
    width        of the rows that a target reads; None: unknown
    num_patches  of the largest image that is encoded at once
    num_merged   patches that become one token, for kinds where an image's size decides its tokens
    has_windows  most layers attend to parts of an image, which takes a mask
    """

    kind: str
    width: int | None
    num_patches: int
    num_merged: int
    patch_size: int
    n_embd: int
    n_ff: int
    n_head: int
    has_windows: bool
    weights_bytes: int

    def limit_tokens(self, max_tokens: int | None) -> Projector:
        """Return the projector for images of at most `max_tokens` tokens; None: no limit."""
        if max_tokens is None:
            return self
        return replace(self, num_patches=min(self.num_patches, max_tokens * self.num_merged))

    @classmethod
    def from_header(cls, header: Header) -> Projector:
        """Read a projector's header. Raises ModelFileError if the file does not encode images."""
        check_is_projector(header)
        keys = ArchitectureKeys(header, "clip.vision")
        kind = read_projector_kind(header)
        patch_size = max(keys.optional_count("patch_size") or 1, 1)
        return cls(
            kind=kind,
            width=_width(header, kind),
            num_patches=_num_patches(keys, kind, patch_size),
            num_merged=_num_merged(keys, kind),
            patch_size=patch_size,
            n_embd=keys.optional_count("embedding_length") or 0,
            n_ff=keys.optional_count("feed_forward_length") or 0,
            n_head=keys.optional_count("attention.head_count") or 1,
            has_windows=any(keys.optional_count(key) for key in ("n_wa_pattern", "window_size")),
            weights_bytes=header.tensor_bytes,
        )


def check_is_projector(header: Header) -> None:
    """Check that the file is a projector for images. Raises ModelFileError if it is not, or only for audio."""
    architecture = header.architecture
    if architecture != ARCHITECTURE:
        message = f"{header.path.name} is not a projector for images: its architecture is {architecture}"
        raise ModelFileError(message, hint="give an mmproj-*.gguf")
    if is_audio_only(header):
        raise ModelFileError(f"{header.path.name} is a projector for audio, not for images", hint="give another mmproj")


def is_audio_only(header: Header) -> bool:
    """Return whether the file is a projector for audio only."""
    return header.architecture == ARCHITECTURE and header.metadata.get("clip.has_vision_encoder") is not True


def check_projector(projector: Projector, target: Header, *, name: str) -> None:
    """Check the projector against its target. Raises IncompatibleError, with the widths, if it is another model's."""
    target_width = input_width(target)
    if None not in (projector.width, target_width) and projector.width != target_width:
        message = f"{name} gives rows of width {projector.width}, the target reads {target_width}"
        raise IncompatibleError(f"{message}: it was made for another model", hint=HINT)


def input_width(target: Header) -> int | None:
    """Return the width of the rows that a target reads in place of tokens; None: unknown.

    It exceeds the embedding's where images are fed to several layers (deepstack).
    """
    keys = ArchitectureKeys(target, target.architecture)
    n_embd = keys.optional_count("embedding_length")
    if n_embd is None or target.array_count(f"{keys.prefix}.deepstack_mapping"):
        return None
    return n_embd * (1 + (keys.optional_count("n_deepstack_layers") or 0))


def read_projector_kind(header: Header) -> str:
    stated = header.metadata.get("clip.projector_type") or header.metadata.get("clip.vision.projector_type")
    return stated if isinstance(stated, str) else ""


def _width(header: Header, kind: str) -> int | None:
    name, axis = WIDTHS.get(kind, ("", 0))
    if kind == "mlp" and LLAVA_NORM in header.tensors:
        name, axis = LLAVA_NORM, BIAS
    tensor = header.tensors.get(name)
    if tensor is None or axis >= len(tensor.shape):
        stated = ArchitectureKeys(header, "clip.vision").optional_count("projection_dim") or None
        return None if kind == "granite4_vision" else stated
    layers = sum(1 for each in header.tensors if DEEPSTACK.fullmatch(each)) if kind == "qwen3vl_merger" else 0
    return tensor.shape[axis] * (1 + layers)


def _num_patches(keys: ArchitectureKeys, kind: str, patch_size: int) -> int:
    """Return the patches of the largest image, from the header, llama.cpp's limit for the kind, or `image_size`."""
    side = keys.optional_count("image_size") or 0
    if kind == "lightonocr":
        side = max(side, keys.optional_count("preproc_image_size") or 0)
    usual = (-(-side // patch_size)) ** 2
    if pixels := keys.optional_count("image_max_pixels"):
        return -(-pixels // patch_size**2)
    if kind not in MAX_TOKENS:
        return max(usual, 1)
    return MAX_TOKENS[kind][0] * _num_merged(keys, kind)


def _num_merged(keys: ArchitectureKeys, kind: str) -> int:
    stated = keys.optional_count("spatial_merge_size") or keys.optional_count("projector.scale_factor")
    return (stated or MAX_TOKENS.get(kind, (0, 1))[1]) ** 2


# ---- image limits: a limit on the tokens of an image, for models where its size decides how many it takes
#
# llama.cpp admits up to 4096 tokens per image for Qwen's family, reserves memory for half of that, and ends the
# process where it then runs out. A photograph would also exceed the context that many users run.
UNSPLIT_KINDS = ("gemma4uv", "gemma4v")  # an image's rows attend to later ones, so all must be in one batch
RESERVED_TOKENS = (
    46 * 46
)  # tokens for which llama.cpp reserves memory when it loads a projector with the largest limits
MIN_TOKENS = 16
CONTEXT_PART = 2  # an image takes at most this fraction of the context: 1/2


def max_image_tokens(kind: str, *, n_ctx: int, n_batch: int) -> int | None:
    """Return the most tokens an image may take with this kind of projector, limited by context, batch and memory.

    None: llama.cpp's own limit is low enough, or the kind does not size images by tokens.
    """
    if kind not in MAX_TOKENS:
        return None
    limit = min(n_ctx // CONTEXT_PART, RESERVED_TOKENS, n_batch if kind in UNSPLIT_KINDS else RESERVED_TOKENS)
    return max(limit, MIN_TOKENS) if limit < MAX_TOKENS[kind][0] else None
