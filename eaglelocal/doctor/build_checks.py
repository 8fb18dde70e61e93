"""Checks of what was built and installed: llama.cpp, eaglelocal's C library, compilers, packages."""

from __future__ import annotations

import shlex

from eaglelocal.doctor.finding import Finding, ok, problem, warning
from eaglelocal.doctor.gpu_parts import NEWER_HEADERS
from eaglelocal.doctor.installation import Installation
from eaglelocal.doctor.machine_checks import present_backend, wanted_backend
from eaglelocal.doctor.repair_commands import (
    NAMES,
    install_compilers,
    install_toolkit,
    missing_toolkit,
    reinstall,
)


def library_version(facts: Installation) -> Finding:
    """Check that llama-cpp-python has exactly the version whose internal interfaces were verified."""
    installed, wanted = facts.machine.llama_cpp.version, facts.wanted_version
    if installed is None:
        return problem("library_version", "llama-cpp-python is not installed", reinstall(facts, present_backend(facts)))
    if not has_wanted_version(facts):
        text = f"llama-cpp-python {installed} is installed, but eaglelocal needs {wanted}"
        return problem("library_version", text, reinstall(facts, present_backend(facts)))
    backends = ", ".join(facts.machine.llama_cpp.backends) or "no backend"
    return ok("library_version", f"llama-cpp-python {installed}, built for {backends}")


def library_loads(facts: Installation) -> Finding | None:
    """Report that llama.cpp does not load. It is tried in a separate process, which a broken build can end."""
    if facts.trial is None or not facts.trial.failure:
        return None
    text = f"llama.cpp cannot be loaded: {facts.trial.failure}"
    return problem("library_loads", text, reinstall(facts, present_backend(facts)))


def images(facts: Installation) -> Finding | None:
    """Warn where no model can read images: llama.cpp was built without that part, or Pillow is missing."""
    if facts.trial is None or not facts.trial.blindness:
        return None
    command = reinstall(facts, present_backend(facts))
    return warning("images", f"models cannot be shown images: {facts.trial.blindness}", command)


def native_part(facts: Installation) -> Finding:
    """Check eaglelocal's C library, without which no engine starts."""
    install = f"{facts.tools.pip} install --force-reinstall --no-deps {shlex.quote(facts.native.install_from)}"
    if not facts.native.exists:
        text = f"eaglelocal's own C part is not compiled ({facts.native.library.name} is missing)"
        return problem("native_part", text, install)
    if facts.native.is_outdated:
        return warning("native_part", "eaglelocal's own C part is older than its source", install)
    return ok("native_part", "eaglelocal's own C part is compiled")


def compiler(facts: Installation) -> Finding:
    """Check for C and C++ compilers. Missing ones are a problem only where something must be built."""
    missing = [name for name, path in (("C", facts.tools.c), ("C++", facts.tools.cxx)) if path is None]
    if not missing:
        return ok("compiler", f"C and C++ compilers: {facts.tools.c}, {facts.tools.cxx}")
    words = f"no {' and no '.join(missing)} compiler"
    if must_build(facts):
        text = f"{words}, and llama.cpp or eaglelocal must be built"
        return problem("compiler", text, install_compilers(facts.machine.system))
    return ok("compiler", f"{words}, and none needed: everything is built")


def toolkit(facts: Installation) -> Finding | None:
    """Report the missing build tools of the backend that llama.cpp lacks; None where nothing is missing."""
    wanted = wanted_backend(facts)
    missing = missing_toolkit(wanted, facts.tools) if wanted else ()
    if wanted is None or not missing:
        return None
    text = f"building llama.cpp for {NAMES[wanted]} needs what is not found: {', '.join(missing)}"
    if NEWER_HEADERS in missing:
        return problem("toolkit", f"{text}; this system's are older, and https://vulkan.lunarg.com has newer ones", "")
    return problem("toolkit", text, install_toolkit(wanted, facts.machine.system))


def packages(facts: Installation) -> Finding:
    if facts.missing_packages:
        names = ", ".join(facts.missing_packages)
        command = f"{facts.tools.pip} install {shlex.join(facts.missing_packages)}"
        return problem("packages", f"packages that eaglelocal needs are missing: {names}", command)
    return ok("packages", "every package that eaglelocal needs is installed")


def extras(facts: Installation) -> Finding | None:
    """List optional packages that are not installed and that only some commands need; never a problem."""
    if not facts.missing_extras:
        return None
    told = "; ".join(f"{extra}: {', '.join(names)}" for extra, names in facts.missing_extras.items())
    names = ",".join(facts.missing_extras)
    install = f"{facts.tools.pip} install 'eaglelocal[{names}]'"
    return ok("extras", f"optional packages that are not installed ({told}); {install} brings them")


def must_build(facts: Installation) -> bool:
    return not has_wanted_version(facts) or not facts.native.exists or wanted_backend(facts) is not None


def has_wanted_version(facts: Installation) -> bool:
    return (facts.machine.llama_cpp.version or "").split("+")[0] == facts.wanted_version
