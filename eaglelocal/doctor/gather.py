"""Collection of the facts for the checks. Reads and tries; changes nothing, and never raises.

A fact that cannot be found out counts as "nothing wrong": doctor must not fail on an unusual machine.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from eaglelocal import locations
from eaglelocal.backend.llama_library import BUILD, CHECKED_VERSION
from eaglelocal.backend.native_step import FILE as NATIVE_LIBRARY
from eaglelocal.client.running_servers import find_running_servers, find_stale_files
from eaglelocal.doctor.gpu_parts import device_files, missing_of_vulkan
from eaglelocal.doctor.installation import Disk, Hub, Installation, NativePart, Port, Tools
from eaglelocal.doctor.llama_trial import try_library
from eaglelocal.errors import UsageError
from eaglelocal.hub.client_settings import check_settings
from eaglelocal.loading import calibration_store
from eaglelocal.probe.machine import Machine
from eaglelocal.probe.port_owner import is_taken, port_listener
from eaglelocal.probe.probe import free_bytes
from eaglelocal.settings import Settings

T = TypeVar("T")

NAME = "eaglelocal"
CUDA_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
ROCM_FOLDERS = ("/opt/rocm/bin",)
# owners whose repositories require accepting a licence; quantized copies of other owners do not
GATED_OWNERS = ("meta-llama", "google", "mistralai", "CohereLabs", "black-forest-labs")
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
STILL_LOADING_S = 600.0  # a partial file that was written to more recently may belong to a running download
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
TOLD_EXTRAS = ("train",)  # those that are reported to users


def gather_facts(machine: Machine, environ: Mapping[str, str] = os.environ) -> Installation:
    """Collect all facts. Takes a second or two, most of it for loading llama.cpp in another process."""
    found, settings_problem, settings_hint = _settings(environ)
    missing, extras = _packages()
    native = native_part()
    loadable = native.exists and (machine.llama_cpp.version or "").split("+")[0] == CHECKED_VERSION
    return Installation(
        machine=machine,
        tools=_attempt(lambda: tools(environ), Tools()),
        native=native,
        trial=try_library() if loadable else None,
        device_files=_attempt(device_files, None) if sys.platform.startswith("linux") else None,
        disks=_disks(environ),
        hub=_attempt(lambda: hub(found, environ), Hub(cache=locations.hub_cache_dir(environ))),
        port=_attempt(lambda: port(found), Port(number=found.port)),
        wanted_version=CHECKED_VERSION,
        missing_packages=missing,
        missing_extras=extras,
        config_file=locations.config_file(),
        settings_problem=settings_problem,
        settings_hint=settings_hint,
        stale_calibrations=_attempt(lambda: tuple(calibration_store.stale_files(machine, BUILD)), ()),
        current_build=calibration_store.describe_build(BUILD, machine),
        stale_announcements=_attempt(lambda: tuple(find_stale_files()), ()),
        environ=environ,
    )


# ---- build tools
def tools(environ: Mapping[str, str]) -> Tools:
    glslc = _program(environ, "glslc")
    return Tools(
        c=_compiler(environ, "CC", ("cc", "gcc", "clang")),
        cxx=_compiler(environ, "CXX", ("c++", "g++", "clang++")),
        nvcc=_program(environ, "nvcc", CUDA_FOLDERS),
        hipcc=_program(environ, "hipcc", ROCM_FOLDERS),
        icpx=_program(environ, "icpx"),
        glslc=glslc,
        missing_of_vulkan=_attempt(lambda: missing_of_vulkan(environ, has_glslc=glslc is not None), ()),
        pip=pip_command(environ),
    )


def _compiler(environ: Mapping[str, str], variable: str, names: tuple[str, ...]) -> Path | None:
    """Return the compiler that the variable names, as build tools do, else the first of `names` that exists."""
    named = shlex.split(environ.get(variable) or "")
    return next((path for name in (named[:1] or names) if (path := _program(environ, name))), None)


def _program(environ: Mapping[str, str], name: str, folders: tuple[str, ...] = ()) -> Path | None:
    path = os.pathsep.join([environ.get("PATH", ""), *folders])
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def pip_command(environ: Mapping[str, str]) -> str:
    """Return the shortest command that runs pip for this Python."""
    ours = Path(sys.executable).parent
    found = _program(environ, "pip")
    if found is not None and found.parent == ours:
        return "pip"
    python = shlex.quote(sys.executable)
    return f"{python} -m pip" if _has_distribution("pip") else f"UV_PYTHON={python} uv pip"


def native_part() -> NativePart:
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
        install_from=str(checkout) if is_checkout else NAME,
    )


def _packages() -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the required packages that are missing, and those that each reported extra lacks."""
    missing: list[str] = []
    extras: dict[str, tuple[str, ...]] = {}
    for name, extra in _requirements():
        if _has_distribution(name):
            continue
        if extra is None:
            missing.append(name)
        elif extra in TOLD_EXTRAS:
            extras[extra] = (*extras.get(extra, ()), name)
    return tuple(missing), extras


def _requirements() -> Iterator[tuple[str, str | None]]:
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


def _has_distribution(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# ---- folders
def _disks(environ: Mapping[str, str]) -> tuple[Disk, ...]:
    folders = {"downloads": locations.hub_cache_dir(environ), "generated models": locations.generated_models_dir()}
    return tuple(
        Disk(
            folder=folder,
            holds=holds,
            free_bytes=_attempt(_free_in(folder), None),
            is_writable=_attempt(_writable(folder), True),
        )
        for holds, folder in folders.items()
    )


def _free_in(folder: Path) -> Callable[[], int]:
    return lambda: free_bytes(folder)


def _writable(folder: Path) -> Callable[[], bool]:
    """Return a function that tests write access to the folder, or to its nearest existing parent."""

    def ask() -> bool:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)

    return ask


def hub(settings: Settings, environ: Mapping[str, str]) -> Hub:
    cache = locations.hub_cache_dir(environ)
    variable = next((name for name in TOKEN_VARIABLES if environ.get(name)), "")
    token = environ[variable].strip() if variable else _token_file(environ)
    partial = [size for path in cache.glob("models--*/blobs/*.incomplete") if (size := _abandoned_bytes(path))]
    return Hub(
        cache=cache,
        has_token=bool(token),
        token_looks_wrong=bool(token) and not token.startswith("hf_") and not environ.get("HF_ENDPOINT"),
        token_variable=variable,
        is_offline=environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
        client_problem=_client_problem(environ),
        gated=gated_of((settings.target, settings.draft, *settings.models)),
        num_partial=len(partial),
        partial_bytes=sum(partial),
    )


def _client_problem(environ: Mapping[str, str]) -> str:
    try:
        check_settings(environ)
    except UsageError as problem:
        return problem.message
    return ""


def gated_of(references: tuple[str | None, ...]) -> tuple[str, ...]:
    """Return the repositories (user/repo, a quantization removed) whose owners are known to ask for a licence."""
    repos = ((reference or "").partition(":")[0] for reference in references)
    named = (repo for repo in repos if repo.count("/") == 1 and not Path(repo).exists())
    return tuple(dict.fromkeys(repo for repo in named if repo.partition("/")[0] in GATED_OWNERS))


def _token_file(environ: Mapping[str, str]) -> str:
    try:
        return locations.hub_token_file(environ).read_text(errors="replace").strip()
    except OSError:
        return ""


def _abandoned_bytes(path: Path) -> int:
    """Return the size of an interrupted download; 0 where it may still run."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size if time.time() - found.st_mtime > STILL_LOADING_S else 0


# ---- server and settings
def port(settings: Settings) -> Port:
    number = settings.port
    if number in [server.port for server in find_running_servers(remove_stale=False)]:
        return Port(number=number)
    if not is_taken(settings.host, number):
        return Port(number=number)
    return Port(number=number, taken_by=port_listener(number) or "another program")


def _settings(environ: Mapping[str, str]) -> tuple[Settings, str, str]:
    """Return the settings, or the default ones with the problem and its hint."""
    try:
        return Settings.load({}, environ, locations.config_file()), "", ""
    except UsageError as problem:
        return Settings(), problem.message, problem.hint


def _attempt(ask: Callable[[], T], otherwise: T) -> T:
    try:
        return ask()
    except Exception:  # one missing fact must not prevent the others
        return otherwise
