"""Which program fills the clipboard, and that copying never fails if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.tui.terminal import clipboard

PROGRAMS = clipboard.PROGRAMS  # while tests run there are none
WAYLAND, X, SSH = {"WAYLAND_DISPLAY": "wayland-0"}, {"DISPLAY": ":0"}, {"SSH_CONNECTION": "a b"}


@pytest.mark.parametrize(
    ("there", "environ", "filled"),
    [
        (("wl-copy", "xclip"), {**WAYLAND, **X}, "wl-copy"),
        (("wl-copy", "xclip"), X, "xclip"),
        (("xsel",), X, "xsel"),
        (("pbcopy",), {}, "pbcopy"),
        (("wl-copy", "xclip", "xsel"), {}, ""),
        (("wl-copy", "pbcopy"), {**WAYLAND, **SSH}, ""),
        ((), {**WAYLAND, **X}, ""),
    ],
)
def test_the_program_of_the_desktop_gets_the_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: tuple[str, ...], environ: dict[str, str], filled: str
) -> None:
    monkeypatch.setattr(clipboard, "PROGRAMS", PROGRAMS)
    for name in there:
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\nexec /bin/cat > {tmp_path}/{name}.got\n")
        program.chmod(0o755)
    assert clipboard.copy_text("é\nb", {**environ, "PATH": str(tmp_path)}) is bool(filled)
    assert {path.name: path.read_text() for path in tmp_path.glob("*.got")} == (
        {f"{filled}.got": "é\nb"} if filled else {}
    )


def test_a_program_that_cannot_be_run_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clipboard, "PROGRAMS", PROGRAMS)
    (tmp_path / "xclip").write_text("no program")
    (tmp_path / "xclip").chmod(0o755)
    clipboard.copy_text("text", {**X, "PATH": str(tmp_path)})
