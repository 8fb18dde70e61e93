"""Checks of what is built and installed: llama.cpp, eaglelocal's C library, compilers and packages."""

from __future__ import annotations

import shlex

from eaglelocal.doctor.finding import NEWER_HEADERS, Finding, ok, problem, warning
from eaglelocal.doctor.installation import Installation
from eaglelocal.doctor.machine_checks import choose_backend, find_missing_backend
from eaglelocal.doctor.repair_commands import (
    BACKEND_NAMES,
    find_missing_tools,
    install_compilers,
    install_toolkit,
    reinstall_llama_cpp,
)


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
    if needs_build(facts):
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
    """List the optional packages that are not installed. Only some commands need them, so it is never a problem."""
    if not facts.missing_extras:
        return None
    missing = "; ".join(f"{extra}: {', '.join(names)}" for extra, names in facts.missing_extras.items())
    names = ",".join(facts.missing_extras)
    command = f"{facts.tools.pip} install 'eaglelocal[{names}]'"
    return ok("extras", f"optional packages are not installed ({missing}); to install them: {command}")


def needs_build(facts: Installation) -> bool:
    return not has_required_version(facts) or not facts.native.exists or find_missing_backend(facts) is not None


def has_required_version(facts: Installation) -> bool:
    return (facts.machine.llama_cpp.version or "").split("+")[0] == facts.required_version
