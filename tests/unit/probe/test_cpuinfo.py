"""/proc/cpuinfo as real machines write it (shortened), and macOS's sysctl."""

from __future__ import annotations

import pytest

from eaglelocal.probe.cpuinfo import (
    find_apple_extensions,
    find_cpu_name,
    find_vector_extensions,
    map_cores,
    parse_cpuinfo,
    parse_sysctl,
)

RYZEN = """\
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD Ryzen 7 5800X 8-Core Processor
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu vme sse4_1 sse4_2 avx f16c fma avx2 sha_ni
bugs\t\t:

processor\t: 8
model name\t: AMD Ryzen 7 5800X 8-Core Processor
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu vme sse4_1 sse4_2 avx f16c fma avx2 sha_ni
"""
TWO_SOCKETS = """\
processor : 0
model name : Intel(R) Xeon(R) CPU E5-2670 0 @ 2.60GHz
physical id : 0
core id : 0
flags : sse4_2 avx

processor : 1
physical id : 1
core id : 0
flags : sse4_2 avx
"""
HYBRID = """\
processor : 0
model name : hypothetical
flags : avx2 avx512f

processor : 1
flags : avx2
"""
PI_5 = """\
processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU part\t: 0xd0b

Revision\t: d04170
Serial\t\t: 0123
Model\t\t: Raspberry Pi 5 Model B Rev 1.0
"""
GRAVITON = """\
processor : 0
Features : fp asimd asimdhp asimddp sve i8mm bf16 svei8mm svebf16
CPU implementer : 0x41
"""
VISIONFIVE = """\
processor\t: 0
hart\t\t: 1
isa\t\t: rv64imafdc_zicsr
mmu\t\t: sv39
uarch\t\t: sifive,u74-mc
"""
BANANA_F3 = "processor : 0\nisa : rv64imafdcv_zicsr_zvfh_zvkt\nuarch : spacemit,x60\n"


@pytest.mark.parametrize(
    ("text", "name", "extensions"),
    [
        (RYZEN, "AMD Ryzen 7 5800X 8-Core Processor", ("sse4_2", "avx", "f16c", "fma", "avx2")),
        (TWO_SOCKETS, "Intel(R) Xeon(R) CPU E5-2670 0 @ 2.60GHz", ("sse4_2", "avx")),
        (HYBRID, "hypothetical", ("avx2",)),
        (PI_5, "Raspberry Pi 5 Model B Rev 1.0", ("asimd", "asimdhp", "asimddp")),
        (GRAVITON, None, ("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "svei8mm", "svebf16")),
        (VISIONFIVE, "sifive,u74-mc", ()),
        (BANANA_F3, "spacemit,x60", ("v", "zvfh", "zvkt")),
        ("", None, None),
        ("garbage\n\n\n", None, None),
    ],
)
def test_name_and_vector_extensions(text: str, name: str | None, extensions: tuple[str, ...] | None) -> None:
    blocks = parse_cpuinfo(text)
    assert find_cpu_name(blocks) == name
    assert find_vector_extensions(blocks) == extensions


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (RYZEN, {0: "0:0", 8: "0:0"}),
        (TWO_SOCKETS, {0: "0:0", 1: "1:0"}),
        (PI_5, {}),
        ("", {}),
    ],
)
def test_which_logical_cpus_share_a_core(text: str, keys: dict[int, str]) -> None:
    assert map_cores(parse_cpuinfo(text)) == keys


def test_apple_extensions() -> None:
    text = "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_SME: 0\nhw.optional.AdvSIMD: 1\nhw.optional.x: 1\n"
    assert find_apple_extensions(parse_sysctl(text)) == ("asimd", "asimddp")
    assert find_apple_extensions({}) == ()
