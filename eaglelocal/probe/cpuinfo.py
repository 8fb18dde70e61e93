"""Parsers of the CPU's name and of the vector extensions that ggml has kernels for. Opens no files.

The sources are /proc/cpuinfo, whose keys differ between x86, ARM and RISC-V, and sysctl on macOS.
"""

from __future__ import annotations

from collections.abc import Mapping

# extensions with ggml kernels, by the systems' names, in the order in which they are shown
X86 = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip
ARM = ("neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "svei8mm", "svebf16", "sve2", "sme", "sme2")
APPLE = {
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_SME": "sme",
    "hw.optional.arm.FEAT_SME2": "sme2",
    "hw.optional.avx1_0": "avx",
    "hw.optional.fma": "fma",
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
}
NAME_KEYS = ("model name", "Model", "Hardware", "cpu model", "uarch", "cpu")
FLAG_KEYS = ("flags", "Features")

Processor = Mapping[str, str]


def parse_cpuinfo(text: str) -> tuple[Processor, ...]:
    """Return the blocks of /proc/cpuinfo; the last may describe the board and not a processor."""
    blocks = [dict(_parse_fields(block)) for block in text.split("\n\n")]
    return tuple(block for block in blocks if block)


def _parse_fields(block: str) -> list[tuple[str, str]]:
    rows = [line.partition(":") for line in block.splitlines()]
    return [(key.strip(), value.strip()) for key, colon, value in rows if colon]


def find_cpu_name(blocks: tuple[Processor, ...]) -> str | None:
    """Return the processor's name, else the board's; None if neither is stated."""
    for key in NAME_KEYS:
        for block in blocks:
            if block.get(key):
                return block[key]
    return None


def find_vector_extensions(blocks: tuple[Processor, ...]) -> tuple[str, ...] | None:
    """Return the extensions that every processor has; None if the system does not state them."""
    flags = [frozenset(block[key].split()) for block in blocks for key in FLAG_KEYS if key in block]
    if flags:
        shared = frozenset.intersection(*flags)
        return tuple(name for name in (*X86, *ARM) if name in shared)
    isas = [block["isa"] for block in blocks if "isa" in block]
    return _parse_riscv_isa(isas[0]) if isas else None


def _parse_riscv_isa(isa: str) -> tuple[str, ...]:
    """Return the vector extensions in rv64imafdcv_zvfh: single letters up to the first underscore, then words."""
    letters, *words = isa.lower().split("_")
    single = ("v",) if "v" in letters.removeprefix("rv") else ()
    return (*single, *(word for word in words if word.startswith("zv")))


def map_cores(blocks: tuple[Processor, ...]) -> dict[int, str]:
    """Map logical CPUs to a name of their physical core, as far as the system states it."""
    keys: dict[int, str] = {}
    for block in blocks:
        number, core = block.get("processor", ""), block.get("core id")
        if number.isdecimal() and core is not None:
            keys[int(number)] = f"{block.get('physical id', '0')}:{core}"
    return keys


def parse_sysctl(text: str) -> dict[str, str]:
    """Parse lines "key: value" of macOS's sysctl."""
    return dict(_parse_fields(text))


def find_apple_extensions(sysctl: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for key, name in APPLE.items() if sysctl.get(key) == "1")
