"""Lists of what llama.cpp can do with each architecture, where it would abort or give wrong results without an error.

Literal lists, read from src/models and src/llama-arch.cpp of the pinned llama.cpp (0c1e57098). They
must be checked again whenever the pin moves. Names are those of `general.architecture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.errors import ModelFileError
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.header import ArrayValue, Header

# that llama.cpp has a name for (LLM_ARCH_NAMES); a file of any other is refused before it is loaded
KNOWN_ARCHITECTURES = frozenset(
    {
        "afmoe", "apertus", "arcee", "arctic", "arwkv7", "baichuan", "bailingmoe", "bailingmoe2", "bailingmoe3", "bert",
        "bitnet", "bloom", "chameleon", "chatglm", "codeshell", "cogvlm", "cohere2", "cohere2moe", "command-r", "dbrx",
        "deci", "deepseek", "deepseek2", "deepseek2-ocr", "deepseek32", "deepseek4", "dflash", "dots1", "dots3note",
        "dream", "eagle3", "ernie4_5", "ernie4_5-moe", "eurobert", "exaone", "exaone-moe", "exaone4", "falcon",
        "falcon-h1", "gemma", "gemma-embedding", "gemma2", "gemma3", "gemma3n", "gemma4", "gemma4-assistant", "glm-dsa",
        "glm4", "glm4moe", "glm5-next", "gpt-oss", "gpt2", "gptneox", "granite", "granite_swa", "granitehybrid",
        "granitemoe", "graniteswitch", "grok", "grovemoe", "hrm_text", "hunyuan-dense", "hunyuan-moe", "hunyuan_vl",
        "hy_v3", "hy_v4", "internlm2", "jais", "jais2", "jamba", "jina-bert-v2", "jina-bert-v3", "kimi-k3",
        "kimi-linear", "laguna", "lfm2", "lfm2moe", "llada", "llada-moe", "llama", "llama-embed", "llama4", "maincoder",
        "mamba", "mamba2", "maple", "mellum", "mimo2", "minicpm", "minicpm3", "minimax-01", "minimax-m2", "minimax-m3",
        "mistral3", "mistral4", "modern-bert", "mpt", "muse-glimmer", "nanbeige", "nemotron", "nemotron_h",
        "nemotron_h_moe", "neo-bert", "nomic-bert", "nomic-bert-moe", "olmo", "olmo2", "olmoe", "openelm", "orion",
        "paddleocr", "pangu-embedded", "phi2", "phi3", "phimoe", "plamo", "plamo2", "plamo3", "plm", "pockettts",
        "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen3tts",
        "qwen3vl", "qwen3vlmoe", "qwen4exp", "refact", "rnd1", "rwkv6", "rwkv6qwen2", "rwkv7", "seed_oss",
        "smallthinker", "smollm3", "spark2_5", "stablelm", "starcoder", "starcoder2", "step35", "t5", "t5encoder",
        "talkie", "wavtokenizer-dec", "xverse",
    }
)  # fmt: skip

EAGLE, BLOCK = "eagle3", "dflash"  # draft heads: of EAGLE's kind, and those that draft a block at a time
HEAD_ARCHITECTURES = (EAGLE, BLOCK)

# Graphs that set t_layer_inp for every layer; on any other, asking for a layer input aborts the process.
# qwen4exp sets it too, but as wide as its hyper-connections instead of n_embd, which aborts as well.
LAYER_INPUT_ARCHITECTURES = frozenset(
    {
        "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama",
        "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3",
        "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
    }
)  # fmt: skip


class FinalState(StrEnum):
    """The way to read the state after the last layer, before the output norm."""

    LAYER_INPUT = "layer input"  # as the input of layer n_layer
    NEXTN = "nextn"  # as the nextn state, unmasked (all rows)


# How layer id == n_layer is read. Others return zeros (llama, qwen3), abort, or return the state after the output
# norm, which is not what heads are trained on (gemma4, qwen35, qwen3next, bailingmoe3).
FINAL_STATE: Mapping[str, FinalState] = MappingProxyType(
    {
        "deepseek4": FinalState.LAYER_INPUT,
        "gpt-oss": FinalState.NEXTN,
        "mimo2": FinalState.LAYER_INPUT,
        "nemotron_h": FinalState.LAYER_INPUT,
        "nemotron_h_moe": FinalState.LAYER_INPUT,
    }
)

# graphs whose nextn state is the one after the output norm, for all rows; on others only rows of logits can have it
NORMED_NEXTN = frozenset(
    {
        "bailingmoe3", "deepseek2", "gemma4", "glm4moe", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe",
    }
)  # fmt: skip

# which llama.cpp refuses to divide by tensors: llm_arch_supports_sm_tensor
NO_TENSOR_SPLIT = frozenset(
    {
        "bailingmoe3", "bitnet", "deepseek2", "deepseek32", "dots3note", "falcon-h1", "gemma3n", "glm-dsa", "glm5-next",
        "granitehybrid", "grok", "hy_v4", "jamba", "kimi-k3", "kimi-linear", "mamba", "mamba2", "minicpm3",
        "minimax-01", "minimax-m2", "minimax-m3", "mistral4", "mpt", "nemotron_h", "nemotron_h_moe", "olmo2", "olmoe",
        "plamo2", "qwen3tts", "qwen4exp", "t5",
    }
)  # fmt: skip

# graphs that compute no logits beside the state after the output norm, which Medusa heads read
NO_NORMED_STATE = frozenset({"lfm2", "lfm2moe"})

RECURRENT_ARCHITECTURES = frozenset({"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"})

HYBRID_ARCHITECTURES = frozenset(
    {
        "bailingmoe3", "deepseek4", "falcon-h1", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear",
        "lfm2", "lfm2moe", "minimax-01", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe", "qwen3next",
        "qwen4exp",
    }
)  # fmt: skip

# earlier states of a sequence can be kept (`n_rs_seq`) and restored; on others llama.cpp silently keeps none
SNAPSHOT_ARCHITECTURES = frozenset(
    {
        "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35",
        "qwen35moe", "qwen4exp",
    }
)  # fmt: skip

# among those, architectures whose texts with drafts equal plain ones (tests/engine/test_hybrid.py), or that share a
# graph with one
ROLLBACK_ARCHITECTURES = frozenset(
    {
        "bailingmoe3", "deepseek4", "glm5-next", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35",
        "qwen35moe", "qwen4exp",
    }
)  # fmt: skip

# whose MTP layer was tested as a draft (tests/engine/test_mtp.py)
MTP_ARCHITECTURES = frozenset(
    {
        "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "gemma4", "glm-dsa", "glm4moe", "hy_v3",
        "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "step35",
    }
)  # fmt: skip
# whose MTP layer reads and returns all parallel states of a token
HYPER_CONNECTED_ARCHITECTURES = frozenset({"deepseek4"})
SEVERAL_MTP_ARCHITECTURES = frozenset({"hy_v3", "mimo2", "step35"})  # whose files may have several such layers
SELECTING_MTP_ARCHITECTURES = frozenset({"mimo2", "step35"})  # among those, these return only states of output rows
# whose MTP layers cannot draft, and why
UNUSED_MTP: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("bailingmoe2", "dots3note", "exaone-moe", "exaone4", "glm4", "glm5-next"),
            "llama.cpp loads them but cannot run them",
        ),
        "hy_v4": "llama.cpp has no graph of them, and conversion leaves them out",
        "qwen4exp": "llama.cpp has no graph of them yet (its pull requests 27836 and 28097)",
        "qwen3next": "llama.cpp cannot undo rejected tokens in its recurrent state",
    }
)
ASSISTANTS: Mapping[str, str] = MappingProxyType({"gemma4-assistant": "gemma4"})  # MTP files -> their target

# keys whose presence means recurrent state, in an architecture that is not in these lists yet
RECURRENT_KEY_STEMS = ("ssm.", "wkv.", "shortconv.")

# graphs that assert n_embd_head == n_rot: RoPE rotates the whole head
WHOLE_ROPE_ARCHITECTURES = frozenset(
    {
        "apertus", "arcee", "arctic", "baichuan", "chameleon", "codeshell", "cogvlm", "cohere2moe", "dbrx", "deci",
        "deepseek", "dots1", "dream", "ernie4_5", "ernie4_5-moe", "exaone", "exaone-moe", "exaone4", "falcon",
        "granite", "granite_swa", "granitemoe", "graniteswitch", "grok", "grovemoe", "hunyuan-dense", "hunyuan-moe",
        "hunyuan_vl", "hy_v3", "internlm2", "jais2", "llada", "llada-moe", "llama", "llama-embed", "llama4",
        "maincoder", "mellum", "minicpm", "mistral3", "olmo", "olmo2", "olmoe", "orion", "paddleocr",
        "pangu-embedded", "plamo", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe",
        "rnd1", "seed_oss", "smallthinker", "smollm3", "starcoder2", "talkie", "xverse",
    }
)  # fmt: skip

# graphs that assert that a head's keys and values have the same width
EQUAL_WIDTH_ARCHITECTURES = WHOLE_ROPE_ARCHITECTURES | frozenset(
    {
        "afmoe", "bailingmoe2", "bitnet", "bloom", "chatglm", "cohere2", "command-r", "deepseek4", "glm4",
        "glm4moe", "gpt2", "gptneox", "granitehybrid", "jais", "laguna", "maple", "minimax-01", "minimax-m2",
        "minimax-m3", "mpt", "muse-glimmer", "nanbeige", "nemotron", "nemotron_h", "nemotron_h_moe", "openelm", "phi2",
        "phi3", "phimoe", "qwen", "qwen35", "qwen35moe", "qwen3next", "qwen4exp", "refact", "spark2_5", "stablelm",
        "starcoder",
    }
)  # fmt: skip

# the one graph that asserts that nothing is rotated; any other hangs on a RoPE of 0 dimensions
NO_ROPE_ARCHITECTURES = frozenset({"glm5-next"})

# few tensors per layer: llama.cpp reserves eight graph nodes per tensor, and aborts if its graph needs more
SMALL_GRAPH_ARCHITECTURES = frozenset({"phi3"})


def check_known(architecture: str, file_name: str) -> None:
    """Raise ModelFileError if llama.cpp has no graph for the architecture, with what would be needed.

    Before llama.cpp merges a model, its files are made with other spellings of its name, and with other tensors.
    """
    if architecture in KNOWN_ARCHITECTURES:
        return
    alike = [known for known in sorted(KNOWN_ARCHITECTURES) if _squeeze(known) == _squeeze(architecture)]
    hint = "a release of eaglelocal with a llama.cpp that has it; docs/new_model.md says what else"
    if alike:
        hint = f"a file whose architecture is {alike[0]}: the same model, made for a released llama.cpp"
    raise ModelFileError(f"{file_name}: llama.cpp here has no graph for the architecture {architecture}", hint=hint)


def _squeeze(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


# ---- arch keys: typed access to the keys of one architecture: `block_count` of a llama model is `llama.block_count`
#
# Errors name the key that is missing or of the wrong kind. Callers know what the keys mean.
MAX_COUNT = 2**31 - 1  # llama.cpp keeps its hyperparameters in 32 bits
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
TOKENS_KEY = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class ArchitectureKeys:
    """The keys of a header: those below `prefix`, and others by full name (tokenizer., general.)."""

    header: Header
    prefix: str

    def _full(self, key: str) -> str:
        return f"{self.prefix}.{key}"

    @property
    def model_name(self) -> str:
        """The name in the file, else the file's name without its ending."""
        return self.text("general.name") or self.header.path.stem

    def error(self, problem: str) -> ModelFileError:
        return malformed_error(self.header.path.name, problem)

    def count(self, key: str) -> int:
        """Return a count. Raises ModelFileError where it is missing or not a count."""
        value = self.optional_count(key)
        if value is None:
            raise self.error(f"lacks the key {self._full(key)}")
        return value

    def optional_count(self, key: str) -> int | None:
        return self._check_count(self._full(key), self.header.metadata.get(self._full(key)))

    def _check_count(self, name: str, value: object) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
            raise self.error(f"{name} is {_describe(value)}, not a count")
        return value

    def counts(self, key: str) -> tuple[int, ...] | None:
        """Return a count, or one count per layer, as a tuple; None where the key is absent."""
        name = self._full(key)
        value = self.header.metadata.get(name)
        if not isinstance(value, ArrayValue):
            single = self._check_count(name, value)
            return None if single is None else (single,)
        if not 0 < value.count <= MAX_LAYERS:
            raise self.error(f"{name} has {value.count} entries")
        return tuple(self._check_count(name, item) or 0 for item in self.header.array(name) or ())

    def flags_per_layer(self, key: str, n_layer: int) -> tuple[bool, ...] | None:
        """Return a list of flags, one for each layer; None if the key is not a list. Raises ModelFileError if short."""
        name = self._full(key)
        listed = self.header.array(name)
        if listed is None:
            return None
        if len(listed) < n_layer:
            raise self.error(f"{name} has {len(listed)} entries for {n_layer} layers")
        return tuple(bool(entry) for entry in listed[:n_layer])

    def flag(self, name: str) -> bool:
        """Return a bool by its full name; False where it is absent."""
        value = self.header.metadata.get(name, False)
        if not isinstance(value, bool):
            raise self.error(f"{name} is {_describe(value)}, not a bool")
        return value

    def real(self, name: str) -> float | None:
        value = self.header.metadata.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{name} is {_describe(value)}, not a number")
        return float(value)

    def text(self, name: str) -> str | None:
        value = self.header.metadata.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{name} is {_describe(value)}, not text")
        return value

    def count_by_name(self, name: str) -> int | None:
        """Return a count, such as a token id, by its full name; None where it is absent."""
        return self._check_count(name, self.header.metadata.get(name))


def _describe(value: object) -> str:
    return f"an array of {value.count}" if isinstance(value, ArrayValue) else repr(value)


# ---- task: to generate text, or to pool the states of a text's rows into a vector or a score
POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # llama_pooling_type; 0 is none
RANKS = 4  # pairs of texts, with a classifier


def read_task(header: Header) -> ModelTask:
    pooling = header.metadata.get(f"{header.metadata.get('general.architecture')}.pooling_type")
    return ModelTask.RANK if pooling == RANKS else ModelTask.EMBEDDING if pooling in POOLINGS else ModelTask.TEXT
