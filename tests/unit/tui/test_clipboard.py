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
    copied = clipboard.copy_text("é\nb", {**environ, "PATH": str(tmp_path)})
    assert copied == (clipboard.CLIPBOARD if filled else "")
    assert {path.name: path.read_text() for path in tmp_path.glob("*.got")} == (
        {f"{filled}.got": "é\nb"} if filled else {}
    )


def test_a_program_that_cannot_be_run_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clipboard, "PROGRAMS", PROGRAMS)
    (tmp_path / "xclip").write_text("no program")
    (tmp_path / "xclip").chmod(0o755)
    assert clipboard.copy_text("text", {**X, "PATH": str(tmp_path)}) == ""


def write_program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(("refused", "arguments"), [("", "load-buffer -w -"), ("-w", "load-buffer -")])
def test_inside_tmux_its_buffer_gets_the_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: str, arguments: str
) -> None:
    """`set-clipboard external` ignores what programs ask for, and old ones do not know -w."""
    monkeypatch.setattr(clipboard, "PROGRAMS", PROGRAMS)
    got, how = tmp_path / "got", tmp_path / "how"
    write_program(tmp_path, "tmux", f'[ "$2" = "{refused}" ] && exit 1; /bin/cat > {got}; echo "$@" > {how}')
    environ = {"TMUX": "/tmp/socket,1,0", **SSH, "PATH": str(tmp_path)}
    assert clipboard.copy_text("é\nb", environ) == clipboard.TMUX_BUFFER
    assert (got.read_text(), how.read_text().strip()) == ("é\nb", arguments)
    assert clipboard.copy_text("x", {**SSH, "PATH": str(tmp_path)}) == ""


def test_a_program_that_fails_is_not_believed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clipboard, "PROGRAMS", PROGRAMS)
    write_program(tmp_path, "xclip", "exit 1")
    assert clipboard.copy_text("x", {**X, "PATH": str(tmp_path)}) == ""
    write_program(tmp_path, "xsel", f"/bin/cat > {tmp_path}/got")
    assert clipboard.copy_text("x", {**X, "PATH": str(tmp_path)}) == clipboard.CLIPBOARD


def test_what_may_not_have_been_copied_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clipboard.copy_and_describe("x") == "copied 1 character"  # the terminal was asked
    monkeypatch.setenv("TMUX", "/tmp/socket,1,0")
    assert "tmux set -g set-clipboard on" in clipboard.copy_and_describe("x")
    monkeypatch.setattr(clipboard, "copy_text", lambda text: clipboard.TMUX_BUFFER)
    assert clipboard.copy_and_describe("xy") == "copied 2 characters to tmux's buffer: prefix and ] paste it"
