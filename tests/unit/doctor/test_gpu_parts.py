"""Headers and device files, as they lie on disks that are made for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eaglelocal.doctor.gather import NEWER_HEADERS, find_device_files, find_missing_vulkan_parts


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_all_of_vulkan_is_missing(tmp_path: Path) -> None:
    assert find_missing_vulkan_parts({}, has_glslc=False, root=tmp_path) == (
        "glslc",
        "Vulkan headers",
        "SPIR-V headers",
    )


@pytest.mark.parametrize("folder", ["share/cmake", "lib64/cmake", "lib/x86_64-linux-gnu/cmake"])
def test_nothing_of_vulkan_is_missing(tmp_path: Path, folder: str) -> None:
    put(tmp_path / "usr/include/vulkan/vulkan_core.h", "#define VK_EXT_layer_settings 1")
    put(tmp_path / "usr" / folder / "SPIRV-Headers/SPIRV-HeadersConfig.cmake")
    assert find_missing_vulkan_parts({}, has_glslc=True, root=tmp_path) == ()


def test_headers_of_an_older_system(tmp_path: Path) -> None:
    put(tmp_path / "usr/include/vulkan/vulkan_core.h", "#define VK_HEADER_VERSION 239")
    put(tmp_path / "usr/share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake")
    assert find_missing_vulkan_parts({}, has_glslc=True, root=tmp_path) == (NEWER_HEADERS,)
    put(tmp_path / "sdk/include/vulkan/vulkan_core.h", "#define VK_EXT_layer_settings 1")
    assert find_missing_vulkan_parts({"VULKAN_SDK": str(tmp_path / "sdk")}, has_glslc=True, root=tmp_path) == ()


def test_files_of_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_device_files(tmp_path).paths == ()
    nodes = [put(tmp_path / "dev/dri" / name) for name in ("renderD128", "renderD129")]
    put(tmp_path / "dev/dri/card0")
    found = find_device_files(tmp_path)
    assert (found.paths, found.inaccessible) == (tuple(nodes), ())
    monkeypatch.setattr(os, "access", lambda path, mode: path != nodes[1])  # nothing is closed to root
    ((path, group),) = find_device_files(tmp_path).inaccessible
    assert path == nodes[1] and group
