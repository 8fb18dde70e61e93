"""Shell commands that repair an installation, for this machine's pip, package manager and backends."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from eaglelocal.doctor.installation import Installation, Tools
from eaglelocal.probe.machine import Gpu, System

BACKEND_NAMES = {"cuda": "CUDA", "hip": "HIP (ROCm)", "vulkan": "Vulkan", "sycl": "SYCL", "metal": "Metal"}
BUILD_FLAGS = {
    "cuda": "-DGGML_CUDA=on",
    "hip": "-DGGML_HIP=on",
    "vulkan": "-DGGML_VULKAN=on",
    "sycl": "-DGGML_SYCL=on -DCMAKE_C_COMPILER=icx -DCMAKE_CXX_COMPILER=icpx",
    "metal": "-DGGML_METAL=on",
}
MACOS = "macos"
# distribution -> the command that installs compilers, or a backend's tools; FAMILIES lists the derivatives of each
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
FAMILIES = {
    "debian": ("ubuntu", "linuxmint", "pop", "raspbian"),
    "fedora": ("rhel", "centos", "rocky", "almalinux"),
    "arch": ("manjaro", "endeavouros", "cachyos"),
    "suse": ("opensuse-leap", "opensuse-tumbleweed", "sles"),
}


def reinstall_llama_cpp(facts: Installation, backend: str | None) -> str:
    """Return the command that builds llama.cpp again, with a backend if one is given."""
    flags = f'CMAKE_ARGS="{BUILD_FLAGS[backend]}" ' if backend else ""
    nvcc = facts.tools.nvcc
    if backend == "cuda" and nvcc and str(nvcc.parent) not in facts.environ.get("PATH", "").split(os.pathsep):
        flags += f"CUDACXX={shlex.quote(str(nvcc))} "  # cmake searches PATH only
    package = f"llama-cpp-python=={facts.required_version}"
    return f"{flags}{facts.tools.pip} install --no-cache-dir --force-reinstall --no-deps {package}"


def choose_backend_to_build(gpu: Gpu, tools: Tools) -> str:
    """Return the fastest backend whose compiler is installed, else Vulkan; for NVIDIA always CUDA, easy to install."""
    if gpu.vendor == "nvidia":
        return "cuda"
    compilers = {"hip": tools.hipcc, "sycl": tools.icpx}
    return next((name for name in gpu.backends if compilers.get(name)), "vulkan")


def find_missing_tools(backend: str, tools: Tools) -> tuple[str, ...]:
    """Return the missing tools that a backend needs in addition to a C compiler."""
    if backend == "vulkan":
        return tools.missing_vulkan_parts
    name, path = {"cuda": ("nvcc", tools.nvcc), "hip": ("hipcc", tools.hipcc)}.get(backend, ("", None))
    return (name,) if name and path is None else ()


def install_compilers(system: System) -> str:
    return COMPILERS.get(find_family(system), COMPILERS["debian"])


def install_toolkit(backend: str, system: System) -> str:
    """Return the command that installs a backend's tools; empty if this system's packages are not known."""
    return TOOLKITS.get(backend, {}).get(find_family(system), "")


def install_driver(system: System) -> str:
    return DRIVERS.get(system.distribution or "", DRIVERS.get(find_family(system), ""))


def is_macos(system: System) -> bool:
    return (system.name or "").startswith("macOS")


def find_family(system: System) -> str:
    if is_macos(system):
        return MACOS
    name = system.distribution or ""
    return next((family for family, derivatives in FAMILIES.items() if name in derivatives), name)
