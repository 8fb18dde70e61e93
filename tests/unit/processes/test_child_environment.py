"""What child processes get of our environment: what they need, and no secret."""

from __future__ import annotations

import os

import pytest

from eaglelocal.processes.child_process import make_environment

BASIC = {"PATH", "HOME", "LANG", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH"}
SETTINGS = {
    *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"),
    *("ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES", "GGML_CUDA_ENABLE_UNIFIED_MEMORY", "GGML_BACKEND_PATH"),
    *(
        "LLAMA_CPP_LIB_PATH",
        "LLAMA_GRAPH_REUSE_DISABLE",
        "ONEAPI_DEVICE_SELECTOR",
        "ZES_ENABLE_SYSMAN",
        "VK_ICD_FILENAMES",
    ),
    *("OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "OPENBLAS_NUM_THREADS", "LC_NUMERIC", "LD_PRELOAD", "MALLOC_ARENA_MAX"),
    *("ROCBLAS_USE_HIPBLASLT", "NCCL_P2P_DISABLE", "METAL_DEVICE_WRAPPER_TYPE", "__NV_PRIME_RENDER_OFFLOAD"),
    *("XDG_STATE_HOME", "XDG_CACHE_HOME", "EAGLELOCAL_ENGINE_LOG", "EAGLELOCAL_ATTENTION", "MESA_VK_DEVICE_SELECT"),
}
SECRETS = {
    *("EAGLELOCAL_API_KEY", "EAGLELOCAL_WATCHED_KEY", "HF_TOKEN", "OPENAI_API_KEY", "NVIDIA_API_KEY", "LLAMA_API_KEY"),
    *("AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "SMTP_PASS", "HTTPS_PROXY", "SSH_AUTH_SOCK", "PYTHONSTARTUP", "LONG"),
    *("NVIDIA_APIKEY", "NVIDIA_API_KEYS", "LLAMA_API_TOKENS", "LLAMA_PASSWD", "GPU_CREDENTIALS", "AMD_AUTH"),
}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*BASIC, *SETTINGS, *SECRETS):
        monkeypatch.setenv(name, f"value of {name}")


def test_a_child_gets_what_it_needs_and_no_secrets() -> None:
    assert {name for name in make_environment() if name in BASIC | SETTINGS | SECRETS} == BASIC


def test_a_child_with_settings_gets_those_of_drivers_and_libraries_too() -> None:
    environment = make_environment(with_settings=True)
    assert {name for name in environment if name in BASIC | SETTINGS | SECRETS} == BASIC | SETTINGS
    assert all(environment[name] == os.environ[name] for name in SETTINGS)
