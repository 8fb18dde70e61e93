"""Checks of the machine, and of what is built and installed for it: llama.cpp, our C library, compilers, packages."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping

from eaglelocal.core.amounts import count_noun, format_memory
from eaglelocal.core.own_package import suggest_extra
from eaglelocal.doctor.gather import NEWER_HEADERS
from eaglelocal.doctor.installation import Finding, Installation, Tools, ok, problem, warning
from eaglelocal.memory.budget import GPU_MARGIN_BYTES
from eaglelocal.probe.machine import Gpu, Machine, System

LOW_MEMORY_BYTES = 2 << 30
HIGH_SWAP_BYTES = 512 << 20
CONTAINER_COMMANDS = ("docker", "podman")  # container engines whose command has their name


def check_gpu_backend(facts: Installation) -> Finding:
    """Check that llama.cpp was built for the GPU: otherwise the GPU stays idle without any message."""
    machine = facts.machine
    missing = find_missing_backend(facts)
    if missing is not None:
        name = _join_gpu_names(list_unserved_gpus(machine)) or (machine.unified and machine.unified.chip) or "a GPU"
        text = f"llama.cpp cannot use {name}: this build has no {BACKEND_NAMES[missing]}"
        return problem("gpu_backend", text, reinstall_llama_cpp(facts, missing))
    served = list_visible_gpus(machine)
    if served:
        backends = sorted({BACKEND_NAMES[backend] for gpu in served if (backend := machine.backend_of(gpu))})
        return ok("gpu_backend", f"llama.cpp uses {_join_gpu_names(served)} through {' and '.join(backends)}")
    if hidden := [gpu for gpu in machine.gpus if gpu.hidden_by]:
        return ok("gpu_backend", f"llama.cpp could use {_join_gpu_names(hidden)}, but {hidden[0].hidden_by} hides it")
    if machine.unified is not None:
        return ok("gpu_backend", f"llama.cpp uses {machine.unified.chip or 'the GPU'} through Metal")
    if facts.trial is not None and facts.trial.devices:  # only llama.cpp sees them
        return ok("gpu_backend", f"llama.cpp sees {', '.join(facts.trial.devices)}")
    return ok("gpu_backend", "there is no GPU that llama.cpp can use")


def check_gpu_driver(facts: Installation) -> Finding | None:
    """Report GPUs that are present but whose driver does not answer."""
    machine = facts.machine
    if machine.unanswered:
        shown_by = "nvidia-smi"  # which shows whether the driver hangs or is slow
        return problem("gpu_driver", "; ".join(machine.unanswered), shown_by)
    mute = [gpu for gpu in machine.gpus if gpu.is_unresponsive]
    if not mute:
        return None
    name = _join_gpu_names(mute)
    if machine.system.container:
        text = f"{name} is present, but this container ({machine.system.container}) has no access to it"
        command = {"docker": "docker run --gpus all ...", "podman": "podman run --device nvidia.com/gpu=all ..."}
        return warning("gpu_driver", text, command.get(machine.system.container, ""))
    if mute[0].driver == "nvidia" or mute[0].name is None:
        return problem("gpu_driver", f"{name} is present, but its driver does not answer", "sudo reboot")
    driver = f"its driver is {mute[0].driver}" if mute[0].driver else "it has no driver"
    text = f"{name} is present, but {driver}; llama.cpp needs NVIDIA's driver"
    return warning("gpu_driver", text, install_driver(machine.system))


def check_hidden_gpus(facts: Installation) -> Finding | None:
    """Warn if a variable hides every GPU, most likely by mistake; hiding only some is taken as intended."""
    hidden = [gpu for gpu in facts.machine.gpus if gpu.hidden_by]
    if not hidden or list_visible_gpus(facts.machine):
        return None
    name, _, value = hidden[0].hidden_by.partition("=")
    return warning("hidden_gpus", f"{name}={value!r} hides every GPU from llama.cpp", f"unset {name}")


def check_gpu_devices(facts: Installation) -> Finding | None:
    """Report a GPU that llama.cpp was built for but does not see.

    Usually the driver is too old for the build, or this user may not open the device file.
    """
    machine, trial = facts.machine, facts.trial
    served = list_visible_gpus(machine)
    if trial is None or trial.failure or not served:
        return None
    if trial.devices:
        return ok("gpu_devices", f"llama.cpp sees {', '.join(trial.devices)}")
    if served[0].vendor != "nvidia" and (finding := find_inaccessible_device(facts, served[0])):
        return finding
    backend = machine.backend_of(served[0])
    newest = f" (its driver runs CUDA up to {served[0].max_cuda})" if served[0].max_cuda else ""
    text = f"llama.cpp has {BACKEND_NAMES[backend or 'cuda']}, but does not see {_join_gpu_names(served)}{newest}"
    return problem("gpu_devices", text, reinstall_llama_cpp(facts, backend))


def check_spill(facts: Installation) -> Finding | None:
    """Report that WSL 2 lets a full card spill into main memory, as far as a card is full now.

    The driver's policy against it does not hold there, and nothing fails: decoding takes many times as long.
    """
    if facts.machine.system.wsl != 2:
        return None
    cards = [gpu for gpu in list_visible_gpus(facts.machine) if gpu.vendor == "nvidia" and not gpu.shares_memory]
    full = [gpu for gpu in cards if gpu.usable_bytes is not None and gpu.usable_bytes < GPU_MARGIN_BYTES]
    if not cards:
        return None
    if not full:
        return ok("spill", "WSL 2 would move what exceeds the card's memory into main memory; now there is room")
    free = format_memory(full[0].usable_bytes or 0)
    text = f"only {free} of {full[0].name or 'the card'} are free: under WSL 2 more is moved into main memory without "
    return warning("spill", f"{text}an error, and decoding then takes many times as long", "nvidia-smi")


def find_inaccessible_device(facts: Installation, gpu: Gpu) -> Finding | None:
    """Report device files of AMD's and Intel's GPUs that only a group may open, or that the container lacks."""
    files, container = facts.device_files, facts.machine.system.container
    if files is None:
        return None
    if not files.paths and container:
        text = f"{gpu.name or 'a GPU'} is present, but this container ({container}) has no access to it"
        flags = "--device /dev/dri" + (" --device /dev/kfd" if facts.machine.backend_of(gpu) == "hip" else "")
        return problem("gpu_devices", text, f"{container} run {flags} ..." if container in CONTAINER_COMMANDS else "")
    if not files.inaccessible:
        return None
    path, group = files.inaccessible[0]
    text = f"llama.cpp does not see {gpu.name or 'the GPU'}: only the group {group} may open {path}"
    if container:
        command = f"{container} run --group-add {group} ..." if container in CONTAINER_COMMANDS else ""
        return problem("gpu_devices", text, command)
    return problem("gpu_devices", f"{text}; log in again after joining it", f"sudo usermod -aG {group} $USER")


def check_memory(facts: Installation) -> Finding:
    """Report how much memory a model can have, and the cgroup's limit if there is one."""
    found = facts.machine.memory
    if found.available_bytes is None:
        return ok("memory", "the amount of free memory is unknown")
    free = f"{format_memory(found.available_bytes)} of memory are free"
    is_low = found.available_bytes < LOW_MEMORY_BYTES
    if found.limit_bytes is not None and found.limit_bytes < (found.installed_bytes or math.inf):
        text = f"{free}: the cgroup allows {format_memory(found.limit_bytes)} of {format_memory(found.installed_bytes)}"
        return warning("memory", text, _raise_memory_limit(facts.machine))
    return warning("memory", f"only {free}", _list_processes(facts.machine)) if is_low else ok("memory", free)


def check_threads(facts: Installation) -> Finding:
    cpu = facts.machine.cpu
    usable = count_noun(cpu.usable_threads, "thread")
    granted = f"{cpu.quota_cores:g} of {cpu.physical_cores or cpu.logical_cores}" if cpu.quota_cores else ""
    if granted and (cpu.quota_cores or 0.0) < (cpu.physical_cores or cpu.logical_cores or 1):
        text = f"the cgroup grants {granted} cores: llama.cpp gets {usable}"
        update = f"docker update --cpus {cpu.physical_cores or cpu.logical_cores or 1} CONTAINER"
        return warning("threads", text, update if facts.machine.system.container == "docker" else "")
    if cpu.allowed_cores and cpu.logical_cores and cpu.allowed_cores < cpu.logical_cores:
        text = f"this shell may use {cpu.allowed_cores} of {cpu.logical_cores} processors: llama.cpp gets {usable}"
        return warning("threads", text, f"taskset -c 0-{cpu.logical_cores - 1} eaglelocal chat")
    return ok("threads", f"llama.cpp gets {usable}")


def check_swap(facts: Installation) -> Finding | None:
    """Warn if much is swapped out: a swapped-out model is read from disk, layer by layer, for every token."""
    found = facts.machine.memory
    if found.swap_total_bytes is None or found.swap_free_bytes is None or is_macos(facts.machine.system):
        return None  # macOS swaps out idle memory even while memory is free
    used = found.swap_total_bytes - found.swap_free_bytes
    if used < HIGH_SWAP_BYTES:
        return None
    text = f"{format_memory(used)} are swapped out; swapping them back in slows decoding down"
    fits = used < (found.available_bytes or 0) // 2
    return warning("swap", text, "sudo swapoff -a && sudo swapon -a" if fits else _list_processes(facts.machine))


# ---- what is built and installed
def check_library_version(facts: Installation) -> Finding:
    """Check that llama-cpp-python has the one version whose internal interfaces eaglelocal was checked with."""
    installed, required = facts.machine.llama_cpp.version, facts.required_version
    command = reinstall_llama_cpp(facts, choose_backend(facts))
    if installed is None:
        return problem("library_version", "llama-cpp-python is not installed", command)
    if not has_required_version(facts):
        text = f"llama-cpp-python {installed} is installed, but eaglelocal needs {required}"
        return problem("library_version", text, command)
    backends = ", ".join(facts.machine.llama_cpp.backends) or "no backend"
    return ok("library_version", f"llama-cpp-python {installed}, built for {backends}")


def check_library_load(facts: Installation) -> Finding | None:
    """Report that llama.cpp does not load. It is tried in a separate process, which a broken build may crash."""
    if facts.trial is None or not facts.trial.failure:
        return None
    why = facts.trial.failure.removeprefix("llama.cpp cannot be loaded: ")
    text = f"llama.cpp does not load: {why}"
    return problem("library_loads", text, reinstall_llama_cpp(facts, choose_backend(facts)))


def check_images(facts: Installation) -> Finding | None:
    """Warn if no model can read images: llama.cpp was built without that part, or Pillow is missing."""
    if facts.trial is None or not facts.trial.image_problem:
        return None
    command = reinstall_llama_cpp(facts, choose_backend(facts))
    return warning("images", f"models cannot read images: {facts.trial.image_problem}", command)


def check_native_part(facts: Installation) -> Finding:
    """Check eaglelocal's C library, without which no engine starts."""
    command = f"{facts.tools.pip} install --force-reinstall --no-deps {shlex.quote(facts.native.install_from)}"
    if not facts.native.exists:
        text = f"eaglelocal's C library is not compiled ({facts.native.library.name} is missing)"
        return problem("native_part", text, command)
    if facts.native.is_outdated:
        return warning("native_part", "eaglelocal's C library is older than its source", command)
    return ok("native_part", "eaglelocal's C library is compiled")


def check_compiler(facts: Installation) -> Finding:
    """Check for C and C++ compilers. A missing one is a problem only if something must be built."""
    missing = [name for name, path in (("C", facts.tools.c), ("C++", facts.tools.cxx)) if path is None]
    if not missing:
        return ok("compiler", f"C and C++ compilers: {facts.tools.c}, {facts.tools.cxx}")
    text = f"no {' and no '.join(missing)} compiler"
    if not has_required_version(facts) or not facts.native.exists or find_missing_backend(facts) is not None:
        text += ", and llama.cpp or eaglelocal must be built"
        return problem("compiler", text, install_compilers(facts.machine.system))
    return ok("compiler", f"{text}; none is needed, as everything is built")


def check_toolkit(facts: Installation) -> Finding | None:
    """Report the missing build tools of the backend that llama.cpp lacks; None if nothing is missing."""
    backend = find_missing_backend(facts)
    missing = find_missing_tools(backend, facts.tools) if backend else ()
    if backend is None or not missing:
        return None
    text = f"to build llama.cpp for {BACKEND_NAMES[backend]}, this is missing: {', '.join(missing)}"
    if NEWER_HEADERS in missing:
        newer = "this system's headers are older, install newer ones from https://vulkan.lunarg.com"
        return problem("toolkit", f"{text}; {newer}")
    return problem("toolkit", text, install_toolkit(backend, facts.machine.system))


def check_packages(facts: Installation) -> Finding:
    if facts.missing_packages:
        names = ", ".join(facts.missing_packages)
        command = f"{facts.tools.pip} install {shlex.join(facts.missing_packages)}"
        return problem("packages", f"packages that eaglelocal needs are not installed: {names}", command)
    return ok("packages", "all packages that eaglelocal needs are installed")


def check_extras(facts: Installation) -> Finding | None:
    """List the extras, and what they lack. Only some commands need them, so it is never a problem."""
    if not facts.extras:
        return None
    incomplete = {extra: missing for extra, missing in facts.extras.items() if missing}
    if not incomplete:
        return ok("extras", f"all extras are installed: {', '.join(facts.extras)}")
    missing = "; ".join(f"{extra}: {', '.join(names)}" for extra, names in incomplete.items())
    command = suggest_extra(",".join(incomplete), facts.native.install_from, facts.tools.pip)
    return Finding("extras", "ok", f"extras that are not installed ({missing}); to install them:", command)


def has_required_version(facts: Installation) -> bool:
    return (facts.machine.llama_cpp.version or "").split("+")[0] == facts.required_version


# ---- GPUs and their backends
def list_visible_gpus(machine: Machine) -> list[Gpu]:
    """Return the GPUs that llama.cpp should see here."""
    return [gpu for gpu in machine.gpus if not gpu.is_unresponsive and not gpu.hidden_by and machine.backend_of(gpu)]


def list_unserved_gpus(machine: Machine) -> list[Gpu]:
    """Return the GPUs that only another build could use."""
    return [gpu for gpu in machine.gpus if gpu.is_worth_building_for and not machine.backend_of(gpu)]


def find_missing_backend(facts: Installation) -> str | None:
    """Return the backend that llama.cpp should be built with and is not; None if it has what it needs.

    One served GPU is enough: another one may only drive the screen.
    """
    machine = facts.machine
    if machine.unified is not None:
        return None if "metal" in machine.llama_cpp.backends else "metal"
    if any(gpu.is_worth_building_for and machine.backend_of(gpu) for gpu in machine.gpus):
        return None
    cards = list_unserved_gpus(machine)
    return choose_backend_to_build(max(cards, key=lambda gpu: gpu.total_bytes or 0), facts.tools) if cards else None


def choose_backend(facts: Installation) -> str | None:
    """Return the backend for a new build: the missing one, else the one that serves the first useful GPU now."""
    machine = facts.machine
    if machine.unified is not None:
        return "metal"
    if missing := find_missing_backend(facts):
        return missing
    cards = [gpu for gpu in machine.gpus if gpu.is_worth_building_for]
    return next((backend for gpu in cards if (backend := machine.backend_of(gpu))), None)


def _join_gpu_names(gpus: list[Gpu]) -> str:
    """Return the GPUs' names, equal ones counted: 2 x NVIDIA GeForce RTX 4090."""
    names = [gpu.name or "a GPU" for gpu in gpus]
    return ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )


def _raise_memory_limit(machine: Machine) -> str:
    """Return the command that doubles the container's memory limit, up to all memory; empty if none is known."""
    limit, installed = machine.memory.limit_bytes or 0, machine.memory.installed_bytes or 0
    gib = max(min(2 * limit, installed) >> 30, 1)
    command = f"docker update --memory {gib}g --memory-swap {gib}g CONTAINER"
    return command if machine.system.container == "docker" else ""


def _list_processes(machine: Machine) -> str:
    return "ps aux -m | head" if is_macos(machine.system) else "ps aux --sort=-rss | head"


# ---- shell commands that repair an installation, for this machine's pip, package manager and backends
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
