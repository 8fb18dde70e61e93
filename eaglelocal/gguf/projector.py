"""A typed view of a projector: the file beside a model (mmproj-*.gguf) that makes pictures readable for it.

How wide its rows are is looked up where llama.cpp takes it from (clip_n_mmproj_embd in tools/mtmd/clip.cpp of the
pinned version), for it refuses a projector that is as wide as another model; where that is not known, the header's
word counts, and where that says nothing, nothing is refused. Knows no target but its header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.keys import ArchitectureKeys
from eaglelocal.gguf.model_info import architecture_of

ARCHITECTURE = "clip"
LLAVA_NORM = "mm.3.bias"
ROW, BIAS = 1, 0  # of a tensor's shape: the rows that come out of a matrix, what is added to them
_LAST = ("mm.2.weight", ROW)
_FIRST_BIAS = ("mm.2.bias", BIAS)
# by the kind of projector: the tensor whose shape says how wide the rows are that it gives
WIDTHS: Mapping[str, tuple[str, int]] = MappingProxyType(
    dict.fromkeys(
        ("mlp", "phi4", "pixtral", "lightonocr", "dots_ocr", "dots3note_v", "muse-glimmer", "lfm2", "kimivl")
        + ("paddleocr", "kimik25", "yasa2", "deepseek4v", "mimovl"),
        _LAST,
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
# of one picture, where the header does not say how large it may be: tokens, and patches on a side of each
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
HINT = "choose the one that was made for it, or `--mmproj none`"


@dataclass(frozen=True, slots=True)
class Projector:
    """What its header says.

    kind         of projector, as llama.cpp names it
    width        of the rows that a target reads; None: nobody says
    num_patches  of the largest picture that is encoded at once
    num_merged   patches that become one token, where a picture's size decides how many it takes
    has_windows  most layers attend to parts of a picture, which takes a mask
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

    def within(self, max_tokens: int | None) -> Projector:
        """For pictures of at most so many tokens."""
        if max_tokens is None:
            return self
        return replace(self, num_patches=min(self.num_patches, max_tokens * self.num_merged))

    @classmethod
    def from_header(cls, header: Header) -> Projector:
        """Raises ModelFileError on a file that makes no pictures readable."""
        check_sees(header)
        keys = ArchitectureKeys(header, "clip.vision")
        kind = kind_of_projector(header)
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


def check_sees(header: Header) -> None:
    """Raises ModelFileError where a file is no projector, or one for sounds alone."""
    architecture = architecture_of(header)
    if architecture != ARCHITECTURE:
        message = f"{header.path.name} is no projector, which makes pictures readable: it is of architecture"
        raise ModelFileError(f"{message} {architecture}", hint="give an mmproj-*.gguf")
    if is_for_sounds(header):
        raise ModelFileError(f"{header.path.name} makes no pictures readable, only sounds", hint="give another mmproj")


def is_for_sounds(header: Header) -> bool:
    """A projector that knows no pictures."""
    return architecture_of(header) == ARCHITECTURE and header.metadata.get("clip.has_vision_encoder") is not True


def check_projector(projector: Projector, target: Header, *, name: str) -> None:
    """Raises IncompatibleError, with the widths, where the projector was made for another model."""
    wanted = input_width(target)
    if None not in (projector.width, wanted) and projector.width != wanted:
        told = f"{name} gives rows of width {projector.width}, the target reads {wanted}"
        raise IncompatibleError(f"{told}: it was made for another model", hint=HINT)


def input_width(target: Header) -> int | None:
    """Of the rows that a target reads in the place of tokens: wider where pictures reach several of its layers."""
    keys = ArchitectureKeys(target, architecture_of(target))
    n_embd = keys.optional_count("embedding_length")
    if n_embd is None or target.array_count(f"{keys.prefix}.deepstack_mapping"):
        return None
    return n_embd * (1 + (keys.optional_count("n_deepstack_layers") or 0))


def kind_of_projector(header: Header) -> str:
    told = header.metadata.get("clip.projector_type") or header.metadata.get("clip.vision.projector_type")
    return told if isinstance(told, str) else ""


def _width(header: Header, kind: str) -> int | None:
    name, axis = WIDTHS.get(kind, ("", 0))
    if kind == "mlp" and LLAVA_NORM in header.tensors:
        name, axis = LLAVA_NORM, BIAS
    tensor = header.tensors.get(name)
    if tensor is None or axis >= len(tensor.shape):
        return None if kind == "granite4_vision" else _told_width(header)
    layers = sum(1 for each in header.tensors if DEEPSTACK.fullmatch(each)) if kind == "qwen3vl_merger" else 0
    return tensor.shape[axis] * (1 + layers)


def _told_width(header: Header) -> int | None:
    return ArchitectureKeys(header, "clip.vision").optional_count("projection_dim") or None


def _num_patches(keys: ArchitectureKeys, kind: str, patch_size: int) -> int:
    """Of the largest picture: as the header says, as llama.cpp has it for the kind, else a square of the usual size."""
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
    told = keys.optional_count("spatial_merge_size") or keys.optional_count("projector.scale_factor")
    return (told or MAX_TOKENS.get(kind, (0, 1))[1]) ** 2
