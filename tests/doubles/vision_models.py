"""Small vision models, each with its projector (mmproj): random weights, but the answers depend on the picture.

Keys and tensors of projectors are those that tools/mtmd/clip.cpp of the pinned llama.cpp reads. The kinds:

phi4      positions as in text, and no text tokens around a picture; it has as many tokens as it is large
pixtral   the same, with a token more for each row of the picture, and a text token behind it
idefics3  a picture is cut into tiles, each a chunk of its own with text tokens between them
gemma3    tokens of one picture see each other (no causal mask); windows; every picture is as large
gemma4    the same, but in layers with windows only; some 70 tokens at least, as llama.cpp has it
gemma4e   causal, as libmtmd knows E2B by its width; layers have inputs of their own, some share keys and values
qwen2vl   M-RoPE: a picture takes as many positions as its longer side has tokens
qwen3vl   the same, and rows of pictures are wider than the model (deepstack)
qwen35    the same as qwen2vl, and layers with recurrent state
qwen35mtp the same, and a layer that predicts ahead, rightly every other time
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np

from .mtp_models import foreseen
from .random_models import TargetShape, finish, write_vocabulary
from .runnable_models import weights
from .weightless_models import SKETCHES, Sketch, Tensor, tensors_of, write_keys

N_VOCAB, WIDTH = 320, 64
EYE_WIDTH, EYE_FF, EYE_HEADS, EYE_LAYERS = 32, 48, 2, 2  # n_ff must differ: clip.cpp takes equal ones for swapped
TURN_BEGINS, TURN_ENDS = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}"
    f"{TURN_BEGINS}{{{{ message.role }}}}\n{{{{ message.content }}}}{TURN_ENDS}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{TURN_BEGINS}assistant\n{{% endif %}}"
)
TEXT = replace(
    SKETCHES["llama"], n_embd=WIDTH, n_vocab=N_VOCAB, n_head=2, kv_heads=1, n_ff=128, head_dim=32, n_ctx=2048
)
MROPE = {"rope.dimension_sections": [4, 6, 6, 0]}  # halves of a head: of time, height and width
DELTA_NET = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
GEMMA4 = {
    "attention.sliding_window": 96,
    "attention.sliding_window_pattern": [True, True, False, True],
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "rope.dimension_count_swa": 16,
    "embedding_length_per_layer_input": 0,
    "rope.freq_base_swa": 1e4,
}
DEEPSTACK = (0, 1)  # layers of the eye that are seen by the target's first layers
QWEN_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target and its projector. marks: tokens libmtmd looks up. keys: of the projector. splitter: pre-tokenizer."""

    sketch: Sketch
    projector: str
    marks: tuple[str, ...]
    merge: int = 2  # patches on a side of what becomes one token
    image_size: int = 32
    patch_size: int = 4
    keys: Mapping[str, int | bool] = field(default_factory=dict)
    splitter: str = "qwen2"

    @property
    def controls(self) -> tuple[str, ...]:
        return (TURN_BEGINS, TURN_ENDS, *self.marks)

    @property
    def shape(self) -> TargetShape:
        """The target's shape, for heads that are written for it."""
        s = self.sketch
        return TargetShape(
            n_embd=s.n_embd, n_layer=s.n_layer, n_ff=64, n_vocab=N_VOCAB, n_ctx=s.n_ctx, controls=self.controls
        )

    @property
    def width(self) -> int:
        return self.sketch.n_embd

    @property
    def fan_in(self) -> int:
        return EYE_WIDTH * self.merge**2


PAIRS = {
    "phi4": Pair(
        sketch=TEXT,
        projector="phi4",
        marks=(),
        merge=1,
        patch_size=8,
        keys={"clip.vision.image_min_pixels": 256, "clip.vision.image_max_pixels": 4096, "clip.use_gelu": True},
    ),
    "pixtral": Pair(
        sketch=TEXT,
        projector="pixtral",
        marks=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        keys={"clip.vision.spatial_merge_size": 2, "clip.use_silu": True},
    ),
    "idefics3": Pair(
        sketch=TEXT,
        projector="idefics3",
        marks=(
            *("<fake_token_around_image>", "<global-img>", "\n\n"),
            *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
        ),
        merge=4,
        keys={"clip.vision.projector.scale_factor": 4, "clip.vision.preproc_image_size": 64, "clip.use_gelu": True},
    ),
    "gemma3": Pair(
        sketch=replace(
            TEXT,
            arch="gemma3",
            n_layer=6,
            keys={"attention.sliding_window": 32, "rope.freq_base_swa": 1e4},
        ),
        projector="gemma3",
        marks=("<start_of_image>", "<end_of_image>"),
        keys={"clip.vision.projector.scale_factor": 2, "clip.use_gelu": True},
    ),
    "gemma4": Pair(
        sketch=replace(TEXT, arch="gemma4", keys=GEMMA4),
        projector="gemma4v",
        marks=("<|image>", "<image|>"),
        keys={"clip.vision.projector.scale_factor": 2, "clip.use_gelu": True},
    ),
    "gemma4e": Pair(
        sketch=replace(
            TEXT,
            arch="gemma4",
            n_embd=1536,
            n_ff=32,
            keys=GEMMA4
            | {
                "attention.sliding_window_pattern": [True, False, True, False],
                "attention.shared_kv_layers": 2,
                "embedding_length_per_layer_input": 16,
            },
        ),
        projector="gemma4v",
        marks=("<|image>", "<image|>"),
        keys={"clip.vision.projector.scale_factor": 2, "clip.use_gelu": True},
    ),
    "qwen2vl": Pair(
        sketch=replace(TEXT, arch="qwen2vl", keys=MROPE),
        projector="qwen2vl_merger",
        marks=QWEN_MARKS,
        keys={"clip.use_silu": True},
    ),
    "qwen3vl": Pair(
        sketch=replace(TEXT, arch="qwen3vl", keys=MROPE | {"n_deepstack_layers": len(DEEPSTACK)}),
        projector="qwen3vl_merger",
        marks=QWEN_MARKS,
        keys={"clip.use_gelu": True},
    ),
    "qwen35": Pair(
        sketch=replace(TEXT, arch="qwen35", keys=MROPE | DELTA_NET),
        projector="qwen3vl_merger",
        marks=QWEN_MARKS,
        keys={"clip.use_gelu": True},
    ),
    "qwen35mtp": Pair(
        sketch=replace(TEXT, arch="qwen35", n_layer=5, keys=MROPE | DELTA_NET | {"nextn_predict_layers": 1}),
        projector="qwen3vl_merger",
        marks=QWEN_MARKS,
        keys={"clip.use_gelu": True},
    ),
}
# not pixtral: libmtmd makes its rows' ends from memory that it does not clear, so that they are no numbers now and then
KINDS = tuple(kind for kind in PAIRS if kind != "pixtral")


def write_vision_pair(folder: Path, kind: str, seed: int = 0) -> tuple[Path, Path]:
    """Write a pair of that kind and return (target, projector)."""
    return write_pair(folder, kind, PAIRS[kind], seed)


def write_pair(folder: Path, kind: str, pair: Pair, seed: int = 0) -> tuple[Path, Path]:
    rng = np.random.default_rng(seed)
    target, projector = folder / f"{kind}.gguf", folder / f"mmproj-{kind}.gguf"
    write_seeing(target, pair, rng)
    write_projector(projector, pair, rng)
    return target, projector


def asked(content: str) -> str:
    """Return the prompt that the template makes of one message."""
    return f"{TURN_BEGINS}user\n{content}{TURN_ENDS}\n{TURN_BEGINS}assistant\n"


def write_seeing(path: Path, pair: Pair, rng: np.random.Generator) -> None:
    sketch = pair.sketch
    writer = gguf.GGUFWriter(str(path), sketch.arch)
    write_keys(writer, sketch)
    write_vocabulary(writer, N_VOCAB, pair.controls, pair.splitter)
    writer.add_chat_template(TEMPLATE)
    for name, shape in tensors_of(sketch):
        values = weights(rng, name, shape[::-1], sketch)
        if "nextn_predict_layers" in sketch.keys:
            # what attention adds is of the picture, and much the same for all tokens: they stay foreseeable
            foreseen(name, values, sketch.n_layer - 1, gain=0.8 if name.endswith("attn_output.weight") else 0.1)
        if name == "output.weight":
            values[mute(pair.controls)] = (
                0.0  # never the likeliest: answers go on, and are text that any client can show
            )
        if name == "token_embd.weight" and sketch.arch.startswith("gemma"):
            values /= np.float32(pair.width**0.5)  # by which these models multiply them, but not a picture's rows
        writer.add_tensor(name, values)
    finish(writer)


def mute(controls: tuple[str, ...]) -> list[int]:
    """Return all tokens but printable ASCII and words, which answers must not contain."""
    return [*range(32), *range(127, 256), *range(N_VOCAB - 1 - len(controls), N_VOCAB)]


def write_projector(path: Path, pair: Pair, rng: np.random.Generator) -> None:
    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", pair.projector)
    numbers = {
        "image_size": pair.image_size,
        "patch_size": pair.patch_size,
        "embedding_length": EYE_WIDTH,
        "feed_forward_length": EYE_FF,
        "block_count": EYE_LAYERS,
        "projection_dim": pair.width,
        "attention.head_count": EYE_HEADS,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5, 0.5, 0.5])
    for key, value in pair.keys.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(key, value)
    for name, shape in (*eye(pair), *PROJECTIONS[pair.projector](pair)):
        writer.add_tensor(name, seeing_weights(rng, name, shape))
    finish(writer)


def seeing_weights(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return weights of a projector, in numpy's shape: norms are about one, and colours have an effect."""
    if name.endswith(".bias") or name == "v.std_bias":
        values = rng.normal(0.0, 0.1, shape)
    elif len(shape) == 1:
        values = rng.uniform(0.5, 1.5, shape)
    elif name == "v.position_embd.weight":
        values = rng.normal(0.0, 0.3, shape)
    elif name.startswith("v.patch_embd"):  # a colour of its own for each channel, and a little of the pattern
        values = rng.normal(0.0, 1.0, (*shape[:2], 1, 1)) + rng.normal(0.0, 1.0, shape)
        values /= shape[-1] * shape[-2]
    else:
        values = rng.normal(0.0, 1.5 * shape[-1] ** -0.5, shape)
    return values.astype(np.float32)


def eye(pair: Pair) -> Iterator[Tensor]:
    """Yield the tensors of a vision transformer, as in most projectors."""
    width, side = EYE_WIDTH, pair.image_size // pair.patch_size
    yield "v.patch_embd.weight", (width, 3, pair.patch_size, pair.patch_size)
    if pair.projector in ("qwen2vl_merger", "qwen3vl_merger"):
        yield "v.patch_embd.weight.1", (width, 3, pair.patch_size, pair.patch_size)
    if pair.projector in ("gemma3", "idefics3", "phi4", "qwen3vl_merger"):
        yield "v.patch_embd.bias", (width,)
        yield "v.position_embd.weight", (side**2, width)
    if pair.projector == "gemma4v":
        yield "v.position_embd.weight", (2, 1024, width)  # of columns and of rows
    if pair.projector == "pixtral":
        yield "v.pre_ln.weight", (width,)
    elif pair.projector != "gemma4v":
        yield "v.post_ln.weight", (width,)
        yield "v.post_ln.bias", (width,)
    for layer in range(EYE_LAYERS):
        for name, shape in layer_of_eye(pair.projector):
            yield f"v.blk.{layer}.{name}", shape


def layer_of_eye(projector: str) -> Iterator[Tensor]:
    width, is_plain = EYE_WIDTH, projector in ("pixtral", "gemma4v")  # RMS norms, gates, no biases
    fused = projector == "qwen3vl_merger"
    matrices = {
        **(
            {"attn_qkv": (3 * width, width)} if fused else dict.fromkeys(("attn_q", "attn_k", "attn_v"), (width, width))
        ),
        "attn_out": (width, width),
        **({"ffn_gate": (EYE_FF, width)} if is_plain else {}),
        "ffn_up": (EYE_FF, width),
        "ffn_down": (width, EYE_FF),
    }
    norms = ["ln1", "ln2"] + (["attn_post_norm", "ffn_post_norm"] if projector == "gemma4v" else [])
    for name, shape in (matrices | dict.fromkeys(norms, (width,))).items():
        yield f"{name}.weight", shape
        if not is_plain:
            yield f"{name}.bias", shape[:1]
    if projector == "gemma4v":
        yield "attn_q_norm.weight", (width // EYE_HEADS,)
        yield "attn_k_norm.weight", (width // EYE_HEADS,)


def pixtral(pair: Pair) -> Iterator[Tensor]:
    yield "mm.input_norm.weight", (EYE_WIDTH,)
    yield "mm.patch_merger.weight", (EYE_WIDTH, pair.fan_in)
    yield "mm.1.weight", (pair.width, EYE_WIDTH)
    yield "mm.2.weight", (pair.width, pair.width)
    yield "v.token_embd.img_break", (pair.width,)


def idefics3(pair: Pair) -> Iterator[Tensor]:
    yield "mm.model.fc.weight", (pair.width, pair.fan_in)


def gemma3(pair: Pair) -> Iterator[Tensor]:
    yield "mm.soft_emb_norm.weight", (EYE_WIDTH,)
    yield "mm.input_projection.weight", (EYE_WIDTH, pair.width)  # it is turned before use


def gemma4(pair: Pair) -> Iterator[Tensor]:
    yield "mm.input_projection.weight", (pair.width, EYE_WIDTH)
    yield "v.std_bias", (EYE_WIDTH,)
    yield "v.std_scale", (EYE_WIDTH,)


def two_matrices(pair: Pair) -> Iterator[Tensor]:
    for name, rows in (("mm.0", pair.fan_in), ("mm.2", pair.width)):
        yield f"{name}.weight", (rows, pair.fan_in)
        yield f"{name}.bias", (rows,)


def qwen3(pair: Pair) -> Iterator[Tensor]:
    yield from two_matrices(pair)
    for layer in DEEPSTACK if pair.sketch.arch == "qwen3vl" else ():
        for name in ("weight", "bias"):
            yield f"v.deepstack.{layer}.norm.{name}", (pair.fan_in,)
        for fc, rows in (("fc1", pair.fan_in), ("fc2", pair.width)):
            yield f"v.deepstack.{layer}.{fc}.weight", (rows, pair.fan_in)
            yield f"v.deepstack.{layer}.{fc}.bias", (rows,)


PROJECTIONS = {
    "phi4": two_matrices,
    "pixtral": pixtral,
    "idefics3": idefics3,
    "gemma3": gemma3,
    "gemma4v": gemma4,
    "qwen2vl_merger": two_matrices,
    "qwen3vl_merger": qwen3,
}
