"""Names of graphics cards, from two lists of Linux systems: libdrm's amdgpu.ids, and pci.ids.

A list is searched line by line and not kept: pci.ids is large, and one line of it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

AMDGPU_IDS = ("usr/share/libdrm/amdgpu.ids", "usr/local/share/libdrm/amdgpu.ids")
PCI_IDS = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids", "usr/local/share/pci.ids")


def find_card_name(root: Path, *, vendor: str, device: str, revision: str) -> str | None:
    """Return a card's name, None if unlisted. Ids are four (the revision two) lower-case hex digits: 1002, 744c, c8."""
    if vendor == "1002":
        exact = find_amd_name(_read_lines(root, AMDGPU_IDS), device=device, revision=revision)
        if exact:
            return exact
    return find_pci_name(_read_lines(root, PCI_IDS), vendor=vendor, device=device)


def find_amd_name(lines: Iterable[str], *, device: str, revision: str) -> str | None:
    """Return the name from lines such as "744C,\tC8,\tAMD Radeon RX 7900 XTX"; None if unlisted."""
    for line in lines:
        words = [word.strip() for word in line.split(",", 2)]
        if len(words) == 3 and (words[0].lower(), words[1].lower()) == (device, revision):
            return words[2] or None
    return None


def find_pci_name(lines: Iterable[str], *, vendor: str, device: str) -> str | None:
    """Return the sales name, which is in brackets; None if unlisted.

    The lines are "8086  Intel Corporation" and, below it, "\t56a0  DG2 [Arc A770]".
    """
    inside = False
    for line in lines:
        if line.startswith(("#", "\t\t")) or not line.strip():
            continue
        if not line.startswith("\t"):
            if inside:
                return None
            inside = line.lower().startswith(f"{vendor} ")
        elif inside and line[1:5].lower() == device:
            return _parse_sales_name(line[5:].strip())
    return None


def _parse_sales_name(name: str) -> str | None:
    _, bracket, sold_as = name.partition("[")
    return (sold_as.rpartition("]")[0] if bracket else name).strip() or None


def _read_lines(root: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the first file that exists."""
    for name in names:
        try:
            with (root / name).open(encoding="utf-8", errors="replace") as file:
                yield from file
                return
        except OSError:
            continue
