"""The environment of our child processes: what they need of ours, and our own import path.

A list of what is kept, not of what is removed: secrets have any name (DATABASE_URL, SMTP_PASS), and a variable that is
missing shows at once, while one that leaks never does. A process's environment can be read in /proc while it runs, so
it is left out before the start. Programs that users choose themselves (an editor, an agent) get everything.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

NAMES = frozenset(
    (
        *("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TZDIR"),
        *("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"),
    )
)
# What users set for llama.cpp, drivers, libraries of threads and numbers, and the C library; our paths and settings.
SETTINGS = (
    *("GGML_", "LLAMA_", "MTMD_"),
    *("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "ROCM_", "HSA_", "AMD_", "GPU_", "ONEAPI_", "SYCL_", "ZE_", "ZES_", "UR_"),
    *("ROCBLAS_", "HIPBLASLT_", "MIOPEN_", "RCCL_", "NCCL_", "INTEL_", "METAL_", "__NV_"),
    *("VK_", "MESA_", "RADV_", "ANV_", "DRI_"),
    *("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "VECLIB_"),
    *("LC_", "LD_", "DYLD_", "GLIBC_", "MALLOC_"),
    *("XDG_", "EAGLELOCAL_"),
)
_SECRET = re.compile(r"KEYS?(_|$)|TOKENS?(_|$)|SECRET|PASS|CREDENTIAL|(^|_)AUTH(_|$)")  # such as NVIDIA_API_KEY


def make_environment(*, with_settings: bool = False) -> dict[str, str]:
    """Return what a child needs: parent and child are one program, however it was started. No secrets.

    with_settings  it reads our settings, or loads llama.cpp or a driver, and so gets what users set for these
    """
    kept = {name: value for name, value in os.environ.items() if name in NAMES or (with_settings and is_setting(name))}
    return {**kept, "PYTHONPATH": _import_path()}


def is_setting(name: str) -> bool:
    return name.startswith(SETTINGS) and not _SECRET.search(name)


def _import_path() -> str:
    root = str(Path(__file__).parents[2])  # keep its place in sys.path: another copy of this package may come later
    paths = [entry for entry in sys.path if entry == root or (entry and entry != os.getcwd())]
    return os.pathsep.join(paths if root in paths else [*paths, root])
