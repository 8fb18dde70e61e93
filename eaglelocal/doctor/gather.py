"""Collection of the facts for the checks. Changes nothing and never raises.

A fact that cannot be read counts as "nothing wrong": doctor must not fail on an unusual machine.
"""

from __future__ import annotations

import contextlib
import grp
import importlib.metadata
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from eaglelocal import locations
from eaglelocal.backend.llama_library import BUILD, CHECKED_VERSION
from eaglelocal.backend.native_step import FILE as NATIVE_LIBRARY
from eaglelocal.client.running_servers import find_running_servers, find_stale_files
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.own_package import NAME, find_source
from eaglelocal.doctor.installation import DeviceFiles, Disk, Hub, Installation, NativePart, Port, Tools, try_library
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.hub.client_settings import check_settings
from eaglelocal.learning.drift import read_reports
from eaglelocal.loading import calibration_store
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.probe import free_bytes
from eaglelocal.probe.process_info import find_port_listener, is_port_taken
from eaglelocal.probe.subprocess_calls import attempt_or
from eaglelocal.settings import Settings

CUDA_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
ROCM_FOLDERS = ("/opt/rocm/bin",)
# owners whose repositories require accepting a license; quantized copies of other owners do not
GATED_OWNERS = ("meta-llama", "google", "mistralai", "CohereLabs", "black-forest-labs")
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
MIN_IDLE_S = 600.0  # a partial file written to more recently may belong to a running download
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
OWN_EXTRA = "dev"  # for work on eaglelocal itself; users do not need it


def accept_all(settings: Settings) -> None:
    """Accept settings that could be read: the check of callers that know no more about them."""


def gather_facts(
    machine: Machine, environ: Mapping[str, str] = os.environ, *, check: Callable[[Settings], None] = accept_all
) -> Installation:
    """Collect all facts. Takes a second or two, mostly to load llama.cpp in another process.

    check  raises UsageError for settings that can be read, but not used
    """
    settings, settings_problem, settings_hint = _load_settings(environ, check)
    missing, extras = _find_missing_packages()
    native = read_native_part()
    is_loadable = native.exists and (machine.llama_cpp.version or "").split("+")[0] == CHECKED_VERSION
    return Installation(
        machine=machine,
        tools=attempt_or(lambda: find_tools(environ), Tools()),
        native=native,
        trial=try_library() if is_loadable else None,
        device_files=attempt_or(find_device_files, None) if sys.platform.startswith("linux") else None,
        disks=_read_disks(environ),
        hub=attempt_or(lambda: read_hub(settings, environ), Hub(cache=locations.hub_cache_dir(environ))),
        port=attempt_or(lambda: read_port(settings), Port(number=settings.port)),
        required_version=CHECKED_VERSION,
        missing_packages=missing,
        extras=extras,
        config_file=locations.config_file(),
        settings_problem=settings_problem,
        settings_hint=settings_hint,
        stale_calibrations=attempt_or(lambda: tuple(calibration_store.list_stale_files(machine, BUILD)), ()),
        current_build=calibration_store.describe_build(BUILD, machine),
        stale_announcements=attempt_or(lambda: tuple(find_stale_files()), ()),
        drifts=attempt_or(lambda: tuple(read_reports()), ()),
        environ=environ,
    )


# ---- build tools
def find_tools(environ: Mapping[str, str]) -> Tools:
    glslc = _find_program(environ, "glslc")
    return Tools(
        c=_find_compiler(environ, "CC", ("cc", "gcc", "clang")),
        cxx=_find_compiler(environ, "CXX", ("c++", "g++", "clang++")),
        nvcc=_find_program(environ, "nvcc", CUDA_FOLDERS),
        hipcc=_find_program(environ, "hipcc", ROCM_FOLDERS),
        icpx=_find_program(environ, "icpx"),
        glslc=glslc,
        missing_vulkan_parts=attempt_or(lambda: find_missing_vulkan_parts(environ, has_glslc=glslc is not None), ()),
        pip=choose_pip_command(environ),
    )


def _find_compiler(environ: Mapping[str, str], variable: str, names: tuple[str, ...]) -> Path | None:
    """Return the compiler in the variable, as build tools do, else the first of `names` that exists."""
    named = shlex.split(environ.get(variable) or "")
    return next((path for name in (named[:1] or names) if (path := _find_program(environ, name))), None)


def _find_program(environ: Mapping[str, str], name: str, folders: tuple[str, ...] = ()) -> Path | None:
    path = os.pathsep.join([environ.get("PATH", ""), *folders])
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def choose_pip_command(environ: Mapping[str, str]) -> str:
    """Return the shortest command that runs pip for this Python."""
    ours = Path(sys.executable).parent
    found = _find_program(environ, "pip")
    if found is not None and found.parent == ours:
        return "pip"
    python = shlex.quote(sys.executable)
    return f"{python} -m pip" if _is_installed("pip") else f"UV_PYTHON={python} uv pip"


def read_native_part() -> NativePart:
    sources = NATIVE_LIBRARY.parent.glob("*.[ch]")
    checkout = Path(__file__).parents[2]
    is_checkout = (checkout / "pyproject.toml").is_file()
    is_outdated = False
    with contextlib.suppress(OSError):  # the times mean nothing in an installed wheel
        newest = max((source.stat().st_mtime for source in sources), default=0.0)
        is_outdated = is_checkout and newest > NATIVE_LIBRARY.stat().st_mtime
    return NativePart(
        library=NATIVE_LIBRARY,
        exists=NATIVE_LIBRARY.is_file(),
        is_outdated=is_outdated,
        install_from=find_source(),
    )


def _find_missing_packages() -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the required packages that are missing, and what each extra for users lacks."""
    missing: list[str] = []
    extras: dict[str, tuple[str, ...]] = {}
    for name, extra in _read_requirements():
        lacking = () if _is_installed(name) else (name,)
        if extra is None:
            missing += lacking
        elif extra != OWN_EXTRA:
            extras[extra] = (*extras.get(extra, ()), *lacking)
    return tuple(missing), extras


def _read_requirements() -> Iterator[tuple[str, str | None]]:
    """Yield (distribution, the extra that requires it, or None), from our own metadata."""
    try:
        rows = importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:  # run from a folder, never installed
        return
    for row in rows:
        match, (_, _, marker) = _REQUIREMENT.match(row), row.partition(";")
        extra = _EXTRA.search(marker)
        if match and (extra or not marker.strip()) and match[1] != "llama-cpp-python":  # which has its own checks
            yield match[1], extra[1] if extra else None


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# ---- gpu parts: requirements of GPU builds other than compiler and driver: the parts of Vulkan, and access to device
# files
# llama.cpp uses this extension by name; the headers of Ubuntu 22.04 and Debian 12 are older
REQUIRED_EXTENSION = "VK_EXT_layer_settings"
NEWER_HEADERS = f"Vulkan headers with {REQUIRED_EXTENSION}"


def find_missing_vulkan_parts(
    environ: Mapping[str, str], *, has_glslc: bool, root: Path = Path("/")
) -> tuple[str, ...]:
    """Return what a Vulkan build of llama.cpp lacks here, as it is shown; empty if nothing."""
    roots = [root / "usr", root / "usr/local", *(Path(sdk) for sdk in [environ.get("VULKAN_SDK")] if sdk)]
    headers = [path for each in roots if (path := each / "include/vulkan/vulkan_core.h").is_file()]
    missing = [] if has_glslc else ["glslc"]
    if not headers:
        missing.append("Vulkan headers")
    elif not any(REQUIRED_EXTENSION in path.read_text(errors="replace") for path in headers):
        missing.append(NEWER_HEADERS)
    folders = ("share/cmake", "lib*/cmake", "lib/*/cmake")  # that cmake searches
    if not any(any(each.glob(f"{folder}/SPIRV-Headers*")) for each in roots for folder in folders):
        missing.append("SPIR-V headers")
    return tuple(missing)


def find_device_files(root: Path = Path("/")) -> DeviceFiles:
    """Return the device files through which AMD's and Intel's GPUs compute."""
    paths = tuple(path for pattern in ("dri/renderD*", "kfd") for path in sorted((root / "dev").glob(pattern)))
    inaccessible = tuple((path, _read_group(path)) for path in paths if not os.access(path, os.R_OK | os.W_OK))
    return DeviceFiles(paths=paths, inaccessible=inaccessible)


def _read_group(path: Path) -> str:
    number = path.stat().st_gid
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:  # a group of the host, unknown in this container
        return str(number)


# ---- folders
def _read_disks(environ: Mapping[str, str]) -> tuple[Disk, ...]:
    folders = {"downloads": locations.hub_cache_dir(environ), "generated models": locations.generated_models_dir()}

    def is_writable(folder: Path) -> bool:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)

    return tuple(
        Disk(
            folder=folder,
            holds=holds,
            free_bytes=attempt_or(partial(free_bytes, folder), None),
            is_writable=attempt_or(partial(is_writable, folder), True),
        )
        for holds, folder in folders.items()
    )


def read_hub(settings: Settings, environ: Mapping[str, str]) -> Hub:
    cache = locations.hub_cache_dir(environ)
    variable = next((name for name in TOKEN_VARIABLES if environ.get(name)), "")
    file = locations.hub_token_file(environ)
    saved = attempt_or(lambda: read_regular(file).decode(errors="replace").strip(), "")
    token = environ[variable].strip() if variable else saved
    client_problem = None
    try:
        check_settings(environ)
    except UsageError as error:
        client_problem = error
    sizes = [size for path in cache.glob("models--*/blobs/*.incomplete") if (size := _count_abandoned_bytes(path))]
    return Hub(
        cache=cache,
        has_token=bool(token),
        is_token_malformed=bool(token) and not token.startswith("hf_") and not environ.get("HF_ENDPOINT"),
        token_variable=variable,
        is_offline=environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
        client_problem=client_problem,
        gated=list_gated_repos((settings.target, settings.draft, *settings.models)),
        num_partial=len(sizes),
        partial_bytes=sum(sizes),
    )


def list_gated_repos(references: tuple[str | None, ...]) -> tuple[str, ...]:
    """Return the repositories (user/repo, a quantization removed) whose owners are known to ask for a license."""
    repos = ((reference or "").partition(":")[0] for reference in references)
    named = (repo for repo in repos if repo.count("/") == 1 and not Path(repo).exists())
    return tuple(dict.fromkeys(repo for repo in named if repo.partition("/")[0] in GATED_OWNERS))


def _count_abandoned_bytes(path: Path) -> int:
    """Return the bytes of an interrupted download; 0 if it may still be running."""
    found = attempt_or(path.stat, None)
    return found.st_size if found is not None and time.time() - found.st_mtime > MIN_IDLE_S else 0


# ---- server and settings
def read_port(settings: Settings) -> Port:
    number = settings.port
    if number in [server.port for server in find_running_servers(remove_stale=False)]:
        return Port(number=number, is_ours=True)
    if not is_port_taken(settings.host, number):
        return Port(number=number)
    return Port(number=number, taken_by=find_port_listener(number) or "another program")


def _load_settings(environ: Mapping[str, str], check: Callable[[Settings], None]) -> tuple[Settings, str, str]:
    """Return the settings, or the default ones with the problem and its hint."""
    settings = Settings()
    try:
        settings = Settings.load({}, environ, locations.config_file())
        check(settings)
    except (UsageError, ResourceError) as error:
        return settings, error.message, error.hint
    return settings, "", ""
