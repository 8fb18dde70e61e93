"""Shell commands that repair an installation, with this machine's pip, package manager and backends."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from eaglelocal.doctor.installation import Installation, Tools
from eaglelocal.probe.machine import Gpu, System

NAMES = {"cuda": "CUDA", "hip": "HIP (ROCm)", "vulkan": "Vulkan", "sycl": "SYCL", "metal": "Metal"}
BUILD_FLAGS = {
    "cuda": "-DGGML_CUDA=on",
    "hip": "-DGGML_HIP=on",
    "vulkan": "-DGGML_VULKAN=on",
    "sycl": "-DGGML_SYCL=on -DCMAKE_C_COMPILER=icx -DCMAKE_CXX_COMPILER=icpx",
    "metal": "-DGGML_METAL=on",
}
MACOS = "macos"
# distribution -> the command that installs compilers, or a backend's tools; FAMILY maps derivatives to their parent
COMPILERS = {
    MACOS: "xcode-select --install",
    "debian": "sudo apt install build-essential cmake",
    "fedora": "sudo dnf install gcc gcc-c++ cmake",
    "arch": "sudo pacman -S base-devel cmake",
    "suse": "sudo zypper install gcc gcc-c++ cmake",
    "alpine": "sudo apk add build-base cmake linux-headers",
}
TOOLKITS: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        "debian": "sudo apt install nvidia-cuda-toolkit",
        "fedora": "sudo dnf install cuda-toolkit",
        "arch": "sudo pacman -S cuda",
        "suse": "sudo zypper install cuda-toolkit",
    },
    "hip": {
        "debian": "sudo apt install hipcc libhipblas-dev librocblas-dev",
        "fedora": "sudo dnf install rocm-hip-devel hipblas-devel rocblas-devel",
        "arch": "sudo pacman -S rocm-hip-sdk",
    },
    "vulkan": {
        "debian": "sudo apt install libvulkan-dev glslc spirv-headers",
        "fedora": "sudo dnf install vulkan-loader-devel vulkan-headers glslc spirv-headers-devel",
        "arch": "sudo pacman -S vulkan-headers vulkan-icd-loader shaderc spirv-headers",
        "suse": "sudo zypper install vulkan-devel shaderc spirv-headers",
        "alpine": "sudo apk add vulkan-loader-dev vulkan-headers shaderc spirv-headers",
    },
}
DRIVERS = {
    "ubuntu": "sudo ubuntu-drivers install",
    "debian": "sudo apt install nvidia-driver",
    "fedora": "sudo dnf install akmod-nvidia",
    "arch": "sudo pacman -S nvidia",
}
FAMILY = {
    "ubuntu": "debian",
    "linuxmint": "debian",
    "pop": "debian",
    "raspbian": "debian",
    "rhel": "fedora",
    "centos": "fedora",
    "rocky": "fedora",
    "almalinux": "fedora",
    "manjaro": "arch",
    "endeavouros": "arch",
    "cachyos": "arch",
    "opensuse-leap": "suse",
    "opensuse-tumbleweed": "suse",
    "sles": "suse",
}


def reinstall(facts: Installation, backend: str | None) -> str:
    """Return the command that builds llama.cpp anew, with the backend if one is given."""
    flags = f'CMAKE_ARGS="{BUILD_FLAGS[backend]}" ' if backend else ""
    nvcc = facts.tools.nvcc
    if backend == "cuda" and nvcc and str(nvcc.parent) not in facts.environ.get("PATH", "").split(os.pathsep):
        flags += f"CUDACXX={shlex.quote(str(nvcc))} "  # cmake looks in PATH only
    return f"{flags}{facts.tools.pip} install --no-cache-dir --force-reinstall llama-cpp-python=={facts.wanted_version}"


def backend_to_build(gpu: Gpu, tools: Tools) -> str:
    """Return the quickest backend whose compiler is there, else Vulkan; CUDA for NVIDIA, as it is easily had."""
    if gpu.vendor == "nvidia":
        return "cuda"
    found = {"hip": tools.hipcc, "sycl": tools.icpx}
    return next((name for name in gpu.backends if found.get(name)), "vulkan")


def missing_toolkit(backend: str, tools: Tools) -> tuple[str, ...]:
    """Return the missing tools that a backend needs beside a C compiler."""
    if backend == "vulkan":
        return tools.missing_of_vulkan
    name, path = {"cuda": ("nvcc", tools.nvcc), "hip": ("hipcc", tools.hipcc)}.get(backend, ("", None))
    return (name,) if name and path is None else ()


def install_compilers(system: System) -> str:
    return COMPILERS.get(family_of(system), COMPILERS["debian"])


def install_toolkit(backend: str, system: System) -> str:
    """Return the command that installs a backend's tools; empty where this system's packages are not known."""
    return TOOLKITS.get(backend, {}).get(family_of(system), "")


def install_driver(system: System) -> str:
    return DRIVERS.get(system.distribution or "", DRIVERS.get(family_of(system), ""))


def is_macos(system: System) -> bool:
    return (system.name or "").startswith("macOS")


def family_of(system: System) -> str:
    if is_macos(system):
        return MACOS
    name = system.distribution or ""
    return FAMILY.get(name, name)
