"""Each check over facts that are made for it: recorded machines, and installations with one thing wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from doubles.recorded_machines import NAMES, recorded_machine
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.cli.doctor import findings_lines, findings_object, summarize
from eaglelocal.cli.output import WIDTH
from eaglelocal.doctor.checks import CHECKS, check_port, run_checks
from eaglelocal.doctor.gather import NEWER_HEADERS, _find_missing_packages, list_gated_repos
from eaglelocal.doctor.installation import (
    DeviceFiles,
    Disk,
    Finding,
    Hub,
    Installation,
    LlamaTrial,
    NativePart,
    Port,
    Tools,
)
from eaglelocal.errors import UsageError
from eaglelocal.learning.drift import DriftReport, Level
from eaglelocal.probe.machine import Cpu, Gpu, LlamaCpp, Machine, MainMemory, System, Unified
from eaglelocal.probe.nvml_gpus import apply_visibility

GIB = 1 << 30
NODE = Path("/dev/dri/renderD128")
BUILT = Tools(c=Path("/usr/bin/cc"), cxx=Path("/usr/bin/c++"))
WELL = Installation(
    machine=Machine(
        gpus=(),
        unified=None,
        cpu=Cpu(physical_cores=8, logical_cores=16, allowed_cores=16, usable_threads=8),
        memory=MainMemory(total_bytes=32 * GIB, available_bytes=28 * GIB, installed_bytes=32 * GIB),
        cache_free_bytes=100 * GIB,
        llama_cpp=LlamaCpp(version="0.3.36", backends=("cpu",)),
        system=System(name="Ubuntu 24.04", distribution="ubuntu"),
    ),
    tools=BUILT,
    native=NativePart(library=Path("/site/libnative_step.so")),
    trial=LlamaTrial(),
    disks=(Disk(folder=Path("/cache/hub"), holds="downloads", free_bytes=100 * GIB),),
    hub=Hub(cache=Path("/cache/hub"), has_token=True),
    port=Port(number=8421),
    required_version="0.3.36",
)
MachineOf = Callable[[str], Machine]


@pytest.fixture
def machine_of(tmp_path: Path) -> MachineOf:
    return lambda name: recorded_machine(name, tmp_path)


def on(machine: Machine, **changes: object) -> Installation:
    return dataclasses.replace(WELL, machine=machine, **changes)  # type: ignore[arg-type]


def changed(facts: Installation, **changes: object) -> Installation:
    """The same machine but for some of its fields."""
    return dataclasses.replace(facts, machine=dataclasses.replace(facts.machine, **changes))  # type: ignore[arg-type]


def found(facts: Installation, check: str) -> Finding:
    (finding,) = [finding for finding in run_checks(facts) if finding.check == check]
    return finding


def levels(facts: Installation) -> dict[str, str]:
    return {finding.check: finding.level for finding in run_checks(facts) if finding.level != "ok"}


def test_nothing_is_wrong_where_nothing_is_wrong() -> None:
    assert levels(WELL) == {}
    assert summarize(run_checks(WELL)) == "nothing is wrong"


# ---- GPUs and their backends
@pytest.mark.parametrize(
    ("name", "tools", "text", "command"),
    [
        (
            "2x-rtx-4090",
            BUILT,
            "llama.cpp cannot use 2 x NVIDIA GeForce RTX 4090: this build has no CUDA",
            'CMAKE_ARGS="-DGGML_CUDA=on" pip install --no-cache-dir --force-reinstall --no-deps '
            "llama-cpp-python==0.3.36",
        ),
        (
            "arc-a770",
            BUILT,
            "llama.cpp cannot use Intel Arc A770: this build has no Vulkan",
            'CMAKE_ARGS="-DGGML_VULKAN=on" pip install --no-cache-dir --force-reinstall --no-deps '
            "llama-cpp-python==0.3.36",
        ),
        (
            "arc-a770",
            dataclasses.replace(BUILT, icpx=Path("/opt/icpx")),
            "llama.cpp cannot use Intel Arc A770: this build has no SYCL",
            'CMAKE_ARGS="-DGGML_SYCL=on -DCMAKE_C_COMPILER=icx -DCMAKE_CXX_COMPILER=icpx" '
            "pip install --no-cache-dir --force-reinstall --no-deps llama-cpp-python==0.3.36",
        ),
        (
            "wsl",
            dataclasses.replace(BUILT, pip="/venv/bin/python -m pip"),
            "llama.cpp cannot use NVIDIA GeForce RTX 4070 Laptop GPU: this build has no CUDA",
            'CMAKE_ARGS="-DGGML_CUDA=on" /venv/bin/python -m pip install --no-cache-dir --force-reinstall --no-deps '
            "llama-cpp-python==0.3.36",
        ),
    ],
)
def test_a_gpu_without_its_backend_is_said_first(
    name: str, tools: Tools, text: str, command: str, machine_of: MachineOf
) -> None:
    first = run_checks(on(machine_of(name), tools=tools))[0]
    assert (first.check, first.level, first.text, first.command) == ("gpu_backend", "problem", text, command)


@pytest.mark.parametrize(("free_gib", "level"), [(6.0, "ok"), (0.5, "warning")])
def test_wsl_lets_a_full_card_spill(machine_of: MachineOf, free_gib: float, level: str) -> None:
    facts = changed(on(machine_of("wsl")), llama_cpp=LlamaCpp(version="0.3.36", backends=("cpu", "cuda")))
    (gpu,) = facts.machine.gpus
    facts = changed(facts, gpus=(dataclasses.replace(gpu, free_bytes=int(free_gib * GIB)),))
    assert found(facts, "spill").level == level
    elsewhere = changed(facts, system=System(name="Ubuntu 24.04"))
    assert not [finding for finding in run_checks(elsewhere) if finding.check == "spill"]


def test_an_amd_card_wants_rocm_where_its_compiler_is(machine_of: MachineOf) -> None:
    facts = on(machine_of("rx-7900-xtx"))
    facts = changed(facts, llama_cpp=LlamaCpp(version="0.3.36", backends=("cpu",)))
    assert "-DGGML_VULKAN=on" in found(facts, "gpu_backend").command
    rocm = dataclasses.replace(facts, tools=dataclasses.replace(BUILT, hipcc=Path("/opt/rocm/bin/hipcc")))
    assert "-DGGML_HIP=on" in found(rocm, "gpu_backend").command


def test_apple_chips_want_metal(machine_of: MachineOf) -> None:
    facts = on(machine_of("m2-max"))
    assert found(facts, "gpu_backend").level == "ok"
    without = changed(facts, llama_cpp=LlamaCpp(version="0.3.36", backends=("cpu",)), system=System(name="macOS 15.1"))
    assert "-DGGML_METAL=on" in found(without, "gpu_backend").command
    assert found(dataclasses.replace(without, tools=Tools()), "compiler").command == "xcode-select --install"


@pytest.mark.parametrize("name", ["rtx-3090", "rtx-a6000", "rx-7900-xtx", "cpu-only"])
def test_machines_whose_build_fits(name: str, machine_of: MachineOf) -> None:
    assert found(on(machine_of(name)), "gpu_backend").level == "ok"


def test_the_processors_own_graphics_are_not_missed() -> None:
    graphics = Gpu(index=0, name="UHD 630", vendor="intel", backends=("sycl", "vulkan"), shares_memory=True)
    assert levels(changed(WELL, gpus=(graphics,))) == {}


@pytest.mark.parametrize(
    ("gpu", "flag"),
    [
        (Gpu(index=0, name="NVIDIA GB10", capability="12.1", shares_memory=True), "-DGGML_CUDA=on"),
        (
            Gpu(
                index=0,
                name="AMD Radeon 8060S Graphics",
                vendor="amd",
                backends=("hip", "vulkan"),
                shares_memory=True,
                total_bytes=GIB,
            ),
            "-DGGML_VULKAN=on",
        ),
    ],
)
def test_large_gpus_that_share_memory_are_missed(gpu: Gpu, flag: str) -> None:
    assert flag in found(changed(WELL, gpus=(gpu,)), "gpu_backend").command


def test_a_card_that_is_lent_to_a_virtual_machine_is_not_missed() -> None:
    lent = Gpu(index=0, name="AMD Radeon RX 7600", vendor="amd", backends=("hip", "vulkan"), driver="vfio-pci")
    assert levels(changed(WELL, gpus=(lent,))) == {}


def test_a_card_that_was_not_given_to_the_container(machine_of: MachineOf) -> None:
    facts = on(machine_of("container-without-nvml"))
    finding = found(facts, "gpu_driver")
    assert finding.text == "NVIDIA GeForce RTX 3090 is present, but this container (docker) has no access to it"
    assert (finding.level, finding.command) == ("warning", "docker run --gpus all ...")
    assert found(facts, "gpu_backend").level == "ok"  # another build would not help


@pytest.mark.parametrize(
    ("driver", "level", "command"),
    [
        ("nouveau", "warning", "sudo ubuntu-drivers install"),
        (None, "warning", "sudo ubuntu-drivers install"),
        ("nvidia", "problem", "sudo reboot"),
    ],
)
def test_a_card_whose_driver_is_not_nvidias_or_does_not_answer(driver: str | None, level: str, command: str) -> None:
    finding = found(changed(WELL, gpus=(Gpu(index=0, name="GeForce", driver=driver),)), "gpu_driver")
    assert (finding.level, finding.command) == (level, command)


def test_a_driver_that_hangs_and_a_card_that_fell_off_the_bus() -> None:
    hangs = changed(WELL, unanswered=("NVIDIA's driver did not answer within 8 s",))
    assert levels(hangs) == {"gpu_driver": "problem"}
    assert found(hangs, "gpu_driver").command == "nvidia-smi", "it may be slow, and a guess is no reason to reboot"
    assert levels(changed(WELL, gpus=(Gpu(index=1, driver="550.120"),))) == {"gpu_driver": "problem"}


def test_a_backend_that_sees_no_device(machine_of: MachineOf) -> None:
    machine = machine_of("rtx-3090")
    blind = found(on(machine, trial=LlamaTrial()), "gpu_devices")
    assert blind.level == "problem"
    assert "does not see NVIDIA GeForce RTX 3090 (its driver runs CUDA up to 12.4)" in blind.text
    assert found(on(machine, trial=LlamaTrial(devices=("CUDA0",))), "gpu_devices").text == "llama.cpp sees CUDA0"


RADEON = Gpu(index=0, name="AMD Radeon RX 7900 XTX", vendor="amd", backends=("hip", "vulkan"))


@pytest.mark.parametrize(
    ("files", "container", "backend", "text", "command"),
    [
        (DeviceFiles(), "docker", "vulkan", "(docker) has no access to it", "docker run --device /dev/dri ..."),
        (DeviceFiles(), "podman", "hip", "has no access to it", "podman run --device /dev/dri --device /dev/kfd ..."),
        (DeviceFiles(), "lxc", "hip", "(lxc) has no access to it", ""),
        (
            DeviceFiles(paths=(NODE,), inaccessible=((NODE, "render"),)),
            None,
            "vulkan",
            "the group render",
            "sudo usermod -aG",
        ),
        (DeviceFiles(paths=(NODE,), inaccessible=((NODE, "109"),)), "docker", "hip", "group 109", "--group-add 109"),
        (DeviceFiles(paths=(NODE,)), "docker", "vulkan", "does not see AMD Radeon RX 7900 XTX", "-DGGML_VULKAN=on"),
        (DeviceFiles(), None, "vulkan", "does not see AMD Radeon RX 7900 XTX", "-DGGML_VULKAN=on"),
        (None, None, "vulkan", "does not see AMD Radeon RX 7900 XTX", "-DGGML_VULKAN=on"),
    ],
)
def test_a_card_whose_files_are_closed_or_not_there(
    files: DeviceFiles | None, container: str | None, backend: str, text: str, command: str
) -> None:
    built = LlamaCpp(version="0.3.36", backends=("cpu", backend))
    facts = changed(WELL, gpus=(RADEON,), llama_cpp=built, system=System(container=container))
    finding = found(dataclasses.replace(facts, device_files=files), "gpu_devices")
    assert finding.level == "problem"
    assert text in finding.text and command in finding.command
    sees = dataclasses.replace(facts, device_files=files, trial=LlamaTrial(devices=("Vulkan0",)))
    assert found(sees, "gpu_devices").level == "ok"  # whatever its files look like


def test_a_device_that_only_llama_cpp_knows() -> None:
    assert found(WELL, "gpu_backend").text == "there is no GPU that llama.cpp can use"
    seen = dataclasses.replace(WELL, trial=LlamaTrial(devices=("Vulkan0",)))
    assert found(seen, "gpu_backend").text == "llama.cpp sees Vulkan0"


def test_what_a_build_for_vulkan_needs() -> None:
    wants = changed(WELL, gpus=(RADEON,))
    missing = dataclasses.replace(wants, tools=dataclasses.replace(BUILT, missing_vulkan_parts=("glslc",)))
    assert found(missing, "toolkit").command == "sudo apt install libvulkan-dev glslc spirv-headers"
    old = dataclasses.replace(wants, tools=dataclasses.replace(BUILT, missing_vulkan_parts=(NEWER_HEADERS,)))
    assert "vulkan.lunarg.com" in found(old, "toolkit").text and not found(old, "toolkit").command
    assert "toolkit" not in levels(wants)


@pytest.mark.parametrize("value", ["", "-1", "7", "GPU-00000000"])
def test_a_variable_that_hides_every_gpu(value: str, machine_of: MachineOf) -> None:
    machine = machine_of("rtx-3090")
    facts = on(apply_visibility(machine, {"CUDA_VISIBLE_DEVICES": value}), trial=LlamaTrial())
    assert found(facts, "hidden_gpus").command == "unset CUDA_VISIBLE_DEVICES"
    assert f"CUDA_VISIBLE_DEVICES={value!r}" in found(facts, "hidden_gpus").text
    assert not any("reinstall" in finding.command for finding in run_checks(facts))  # another build would see as little
    assert "gpu_devices" not in levels(facts)
    assert "hidden_gpus" not in levels(on(apply_visibility(machine, {"CUDA_VISIBLE_DEVICES": "0"})))


def test_a_variable_that_leaves_a_gpu_is_meant(machine_of: MachineOf) -> None:
    machine = dataclasses.replace(machine_of("2x-rtx-4090"), llama_cpp=machine_of("rtx-3090").llama_cpp)
    facts = on(apply_visibility(machine, {"CUDA_VISIBLE_DEVICES": "1"}), trial=LlamaTrial())
    assert "hidden_gpus" not in levels(facts)
    assert "does not see NVIDIA GeForce RTX 4090 (" in found(facts, "gpu_devices").text


# ---- what is built
@pytest.mark.parametrize(
    ("version", "text"),
    [
        (None, "llama-cpp-python is not installed"),
        ("0.3.35", "llama-cpp-python 0.3.35 is installed, but eaglelocal needs 0.3.36"),
    ],
)
def test_a_wrong_llama_cpp(version: str | None, text: str) -> None:
    finding = found(changed(WELL, llama_cpp=LlamaCpp(version=version, backends=("cpu",))), "library_version")
    assert (finding.level, finding.text) == ("problem", text)
    assert finding.command == "pip install --no-cache-dir --force-reinstall --no-deps llama-cpp-python==0.3.36"


def test_a_wrong_llama_cpp_is_replaced_by_one_with_the_same_backend(machine_of: MachineOf) -> None:
    old = LlamaCpp(version="0.3.35", backends=("cpu", "cuda"))
    finding = found(changed(on(machine_of("rtx-3090")), llama_cpp=old), "library_version")
    assert finding.command.startswith('CMAKE_ARGS="-DGGML_CUDA=on" pip install')


def test_a_local_build_number_is_the_same_version() -> None:
    assert levels(changed(WELL, llama_cpp=LlamaCpp(version="0.3.36+cu124", backends=("cpu",)))) == {}


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        ("ubuntu", "sudo apt install build-essential cmake"),
        ("fedora", "sudo dnf install gcc gcc-c++ cmake"),
        ("manjaro", "sudo pacman -S base-devel cmake"),
        ("alpine", "sudo apk add build-base cmake linux-headers"),
    ],
)
def test_no_compiler_is_a_problem_only_where_something_must_be_built(distribution: str, command: str) -> None:
    bare = dataclasses.replace(WELL, tools=Tools())
    assert found(bare, "compiler").level == "ok"
    system = System(name=distribution, distribution=distribution)
    wrong = changed(bare, llama_cpp=LlamaCpp(version="0.1"), system=system)
    assert found(wrong, "compiler").text == "no C and no C++ compiler, and llama.cpp or eaglelocal must be built"
    assert (found(wrong, "compiler").level, found(wrong, "compiler").command) == ("problem", command)


def test_the_toolkit_of_a_missing_backend(machine_of: MachineOf) -> None:
    cards = on(machine_of("2x-rtx-4090"))
    assert found(cards, "toolkit").command == "sudo pacman -S cuda"
    assert "toolkit" not in levels(dataclasses.replace(cards, tools=dataclasses.replace(BUILT, nvcc=Path("/nvcc"))))


def test_our_own_c_part() -> None:
    missing = dataclasses.replace(WELL.native, exists=False, install_from="/src/my eagle")
    finding = found(dataclasses.replace(WELL, native=missing), "native_part")
    assert finding.command == "pip install --force-reinstall --no-deps '/src/my eagle'"
    old = dataclasses.replace(WELL.native, is_outdated=True)
    assert levels(dataclasses.replace(WELL, native=old)) == {"native_part": "warning"}


def test_a_build_that_reads_no_images_runs_texts() -> None:
    finding = found(dataclasses.replace(WELL, trial=LlamaTrial(image_problem="libmtmd is missing")), "images")
    assert (finding.level, finding.text) == ("warning", "models cannot read images: libmtmd is missing")
    assert "llama-cpp-python==0.3.36" in finding.command


def test_a_library_that_does_not_load_and_packages_that_are_missing() -> None:
    assert levels(dataclasses.replace(WELL, trial=LlamaTrial(failure="it crashes (SIGILL)"))) == {
        "library_loads": "problem"
    }
    finding = found(dataclasses.replace(WELL, missing_packages=("rich", "typer")), "packages")
    assert (finding.level, finding.command) == ("problem", "pip install rich typer")
    native = dataclasses.replace(WELL.native, install_from="/src/my eagle")
    extras = dataclasses.replace(WELL, extras={"train": ("torch",), "ssl": ("cryptography",), "web": ()}, native=native)
    assert found(extras, "extras").command == "pip install '/src/my eagle[train,ssl]'"
    assert levels(extras) == {}
    complete = dataclasses.replace(WELL, extras={"train": (), "ssl": ()})
    assert found(complete, "extras").text == "all extras are installed: train, ssl"


def test_every_extra_for_users_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = ["rich", 'torch>=2; extra == "train"', 'cryptography; extra == "ssl"', 'pytest; extra == "dev"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requires)
    monkeypatch.setattr("eaglelocal.doctor.gather._is_installed", lambda name: False)
    assert _find_missing_packages() == (("rich",), {"train": ("torch",), "ssl": ("cryptography",)})


# ---- folders, settings, what earlier runs left
@pytest.mark.parametrize(
    ("disk", "level"),
    [
        (Disk(folder=Path("/c"), holds="downloads", free_bytes=GIB), "problem"),
        (Disk(folder=Path("/c"), holds="downloads", free_bytes=10 * GIB), "warning"),
        (Disk(folder=Path("/c"), holds="generated models", free_bytes=90 * GIB, is_writable=False), "problem"),
    ],
)
def test_disks(disk: Disk, level: str) -> None:
    facts = dataclasses.replace(WELL, disks=(dataclasses.replace(disk, free_bytes=14 * GIB, is_writable=True), disk))
    assert levels(facts) == {"disk": level}
    assert found(facts, "disk").command.endswith("=/a/folder/on/another/disk")


@pytest.mark.parametrize(
    ("hub", "level"),
    [
        (Hub(cache=Path("/h")), "ok"),
        (Hub(cache=Path("/h"), gated=("meta-llama/Llama-3.1-8B-Instruct",)), "warning"),
        (Hub(cache=Path("/h"), gated=("google/gemma-3-4b-it",), has_token=True), "ok"),
        (Hub(cache=Path("/h"), has_token=True, is_token_malformed=True), "warning"),
    ],
)
def test_a_token_is_missed_only_where_one_is_needed(hub: Hub, level: str) -> None:
    finding = found(dataclasses.replace(WELL, hub=hub), "hub_token")
    assert finding.level == level
    assert (finding.command == "hf auth login") == (level == "warning")


def test_a_wrong_token_in_a_variable_is_not_mended_by_logging_in() -> None:
    hub = Hub(cache=Path("/h"), has_token=True, is_token_malformed=True, token_variable="HF_TOKEN")
    assert found(dataclasses.replace(WELL, hub=hub), "hub_token").command == "unset HF_TOKEN"


def test_which_references_are_gated() -> None:
    references = (
        "meta-llama/Llama-3.1-8B:Q4_K_M",
        None,
        "demo@1b",
        "bartowski/Llama-3.1-8B-GGUF",
        "/google/x",
        "./google/x",
    )
    assert list_gated_repos(references) == ("meta-llama/Llama-3.1-8B",)


def test_what_the_hub_says_next_to_its_token() -> None:
    hub = Hub(cache=Path("/a hub"), has_token=True, is_offline=True, num_partial=2, partial_bytes=3 * GIB)
    facts = dataclasses.replace(WELL, hub=hub)
    assert levels(facts) == {"offline": "warning", "partial_downloads": "warning"}
    assert found(facts, "partial_downloads").command == (
        "find '/a hub' -path '*/models--*/blobs/*.incomplete' -mmin +10 -delete"
    )


def test_a_variable_that_the_hubs_client_cannot_use_is_named() -> None:
    problem = UsageError("all_proxy is 'x://y', which is not the address of a proxy", hint="unset all_proxy")
    hub = Hub(cache=Path("/hub"), has_token=True, client_problem=problem)
    facts = dataclasses.replace(WELL, hub=hub, environ={"all_proxy": "x://y"})
    assert levels(facts) == {"hub_client": "warning"}
    assert found(facts, "hub_client").command == "unset all_proxy" and "'x://y'" in found(facts, "hub_client").text


def test_stale_calibrations_are_named_with_their_build() -> None:
    one = ((Path("/s/a b.json"), "llama-cpp-python 0.3.30 (cpu)"),)
    facts = dataclasses.replace(WELL, stale_calibrations=one, current_build="llama-cpp-python 0.3.36 (cpu)")
    finding = found(facts, "calibration")
    assert finding.text.startswith("a calibration is outdated: measured with llama-cpp-python 0.3.30 (cpu), now")
    assert (finding.level, finding.command) == ("warning", "(cd /s && rm 'a b.json')")
    two = tuple((Path(f"/my state/{i}.json"), "old") for i in range(2))
    finding = found(dataclasses.replace(WELL, stale_calibrations=two), "calibration")
    assert finding.command == "(cd '/my state' && rm 0.json 1.json)"


def test_drafts_that_stopped_fitting_are_reported_with_a_remedy() -> None:
    assert not [finding for finding in run_checks(WELL) if finding.check == "drift"]
    code = DriftReport("m", "code", Level.ALARM, 0.2, 0.7, ("model file",))
    prose = DriftReport("m", "prose", Level.NOTICE, 0.4, 0.7, ())
    finding = found(dataclasses.replace(WELL, drifts=(prose, code)), "drift")
    assert (finding.level, finding.command) == ("warning", "eaglelocal train --target REF")
    assert finding.text.startswith("m, code: 20% of first drafted tokens are accepted, 70% were before")
    assert finding.text.endswith("changed: model file (and 1 more)")
    finding = found(dataclasses.replace(WELL, drifts=(prose,)), "drift")
    assert finding.command == "eaglelocal serve --learn"


def test_settings_that_cannot_be_read_name_the_way_to_them() -> None:
    file = Path("/home/me/config.toml")
    wrong = dataclasses.replace(WELL, config_file=file, settings_problem=f"{file}: unknown setting spce")
    assert found(wrong, "settings").command == "${EDITOR:-vi} /home/me/config.toml"
    variable = dataclasses.replace(
        WELL,
        settings_problem="environment: unknown setting EAGLELOCAL_SPCE",
        settings_hint="did you mean EAGLELOCAL_SPEC?",
        environ={"EAGLELOCAL_SPCE": "3", "EAGLELOCAL_TOP_K": "1"},
    )
    finding = found(variable, "settings")
    assert finding.command == "unset EAGLELOCAL_SPCE"
    assert finding.text.endswith("did you mean EAGLELOCAL_SPEC?")


def test_ports_and_leftovers() -> None:
    facts = dataclasses.replace(
        WELL, port=Port(number=8421, taken_by="nginx (pid 7)"), stale_announcements=(Path("x"),)
    )
    assert levels(facts) == {"port": "warning", "leftovers": "warning"}
    assert found(facts, "port").command == "eaglelocal serve --port 8422"


# ---- memory and processors
def test_limits_of_a_container(machine_of: MachineOf) -> None:
    facts = on(machine_of("cgroup-limited"))
    assert levels(facts) == {"memory": "warning", "threads": "warning"}
    assert found(facts, "memory").text == "3.2 GiB of memory are free: the cgroup allows 4.0 GiB of 256.0 GiB"
    assert found(facts, "threads").text == "the cgroup grants 1.5 of 16 cores: llama.cpp gets 1 thread"


def test_a_limit_is_raised_never_lowered() -> None:
    system = System(name="Debian", container="docker")
    memory = MainMemory(total_bytes=24 * GIB, available_bytes=20 * GIB, installed_bytes=64 * GIB, limit_bytes=24 * GIB)
    assert found(changed(WELL, memory=memory, system=system), "memory").command.startswith("docker update --memory 48g")
    beyond = dataclasses.replace(memory, limit_bytes=100 * GIB)
    assert found(changed(WELL, memory=beyond, system=system), "memory").level == "ok"


def test_on_a_mac_swapping_is_usual_and_ps_is_another() -> None:
    memory = MainMemory(total_bytes=16 * GIB, available_bytes=GIB, swap_total_bytes=8 * GIB, swap_free_bytes=GIB)
    facts = changed(WELL, memory=memory, system=System(name="macOS 15.1"))
    assert levels(facts) == {"memory": "warning"}
    assert found(facts, "memory").command == "ps aux -m | head"


def test_little_memory_fewer_processors_and_swap() -> None:
    memory = MainMemory(
        total_bytes=4 * GIB, available_bytes=GIB, installed_bytes=4 * GIB, swap_total_bytes=8 * GIB, swap_free_bytes=GIB
    )
    cpu = Cpu(physical_cores=8, logical_cores=16, allowed_cores=4, usable_threads=4)
    facts = changed(WELL, memory=memory, cpu=cpu)
    assert levels(facts) == {"memory": "warning", "swap": "warning", "threads": "warning"}
    assert found(facts, "swap").text.startswith("7.0 GiB are swapped out")
    assert found(facts, "threads").command == "taskset -c 0-15 eaglelocal chat"
    assert found(facts, "threads").text == "this shell may use 4 of 16 processors: llama.cpp gets 4 threads"


# ---- how it is shown
@pytest.mark.parametrize("name", NAMES)
def test_every_machine_can_be_examined_and_shown(name: str, machine_of: MachineOf) -> None:
    findings = run_checks(on(machine_of(name), tools=Tools()))
    lines = findings_lines(findings)
    assert [line for line in lines if len(line) > WIDTH and "$ " not in line] == []
    assert len(findings_object(findings)["findings"]) == len(findings)  # type: ignore[arg-type]


def test_the_worst_comes_first_and_has_its_command_below() -> None:
    findings = [
        Finding(check="a", level="ok", text="fine"),
        Finding(check="b", level="warning", text="hm"),
        Finding(check="c", level="problem", text="no " * 40, command="mend --it"),
    ]
    lines = findings_lines(findings)
    assert [line[:7] for line in lines if not line.startswith(" ")] == ["problem", "warning", "ok     "]
    assert "         $ mend --it" in lines
    assert summarize(findings) == "1 problem, 1 warning"


@given(st.data())
def test_no_check_fails_on_a_machine_of_which_little_is_known(data: st.DataObject) -> None:
    number = st.none() | st.integers(0, 1 << 45)
    gpu = st.builds(
        Gpu,
        index=st.integers(0, 3),
        name=st.none() | st.text(max_size=5),
        total_bytes=number,
        driver=st.sampled_from([None, "nvidia", "amdgpu", "vfio-pci"]),
        vendor=st.sampled_from(["nvidia", "amd", "intel"]),
        shares_memory=st.booleans(),
    )
    machine = Machine(
        gpus=tuple(data.draw(st.lists(gpu, max_size=3))),
        unified=data.draw(st.none() | st.builds(Unified, chip=st.none() | st.text(max_size=5))),
        cpu=data.draw(
            st.builds(Cpu, physical_cores=st.none() | st.integers(1, 8), quota_cores=st.none() | st.floats(0.1, 9))
        ),
        memory=data.draw(
            st.builds(
                MainMemory, available_bytes=number, limit_bytes=number, swap_total_bytes=number, swap_free_bytes=number
            )
        ),
        cache_free_bytes=data.draw(number),
        llama_cpp=data.draw(
            st.builds(
                LlamaCpp,
                version=st.sampled_from([None, "0.3.36", "x"]),
                backends=st.sampled_from([(), ("cpu",), ("cpu", "cuda")]),
            )
        ),
    )
    assert CHECKS
    assert findings_lines(run_checks(on(machine, tools=data.draw(st.sampled_from([BUILT, Tools()])))))


@pytest.mark.parametrize(("is_ours", "state"), [(True, "is that of a running eaglelocal server"), (False, "is free")])
def test_a_port_that_serve_can_use_or_has(is_ours: bool, state: str) -> None:
    finding = check_port(dataclasses.replace(WELL, port=Port(number=8421, is_ours=is_ours)))
    assert (finding.level, finding.text) == ("ok", f"port 8421 {state}")
