"""Graphics cards on Linux's PCI bus: AMD's and Intel's, and NVIDIA's if NVML does not answer.

Reads only /sys. What a driver does not state there is None. The memory of Intel's cards follows from their model, or
from the size of the PCI window through which the CPU sees it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from eaglelocal.probe.machine import Gpu, PcieLink
from eaglelocal.probe.subprocess_calls import attempt_or, parse_count, read_text

VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
BACKENDS = {"nvidia": ("cuda", "vulkan"), "amd": ("hip", "vulkan"), "intel": ("sycl", "vulkan")}
MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
BRIDGE_CLASS = "0x0604"
DISPLAY_CLASSES = ("0x03", "0x12")  # display controllers; accelerators, such as AMD's Instinct
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # by GT/s
# memory of Intel's cards by device id, for models that come in one size
INTEL_CARDS_GIB = {"56a1": 8, "56a2": 8, "56a5": 6, "56a6": 4, "e20b": 12, "e20c": 10, "e211": 24, "e212": 16}
MIN_CARD_WINDOW_BYTES = 4 << 30  # integrated graphics have a smaller one
STRIX_HALO, STRIX_HALO_BYTES_S = "1586", 256_000_000_000  # gfx1151: 256 bits of LPDDR5X-8000, by AMD's data sheet


def read_cards(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return the cards by PCI address, numbered from 0; empty without a PCI bus."""
    devices = sorted((root / "sys/bus/pci/devices").glob("*:*:*.*"))
    found = (_read_card(root, device) for device in devices)
    return tuple(_number_cards([card for card in found if card is not None]))


def merge_gpus(nvml: tuple[Gpu, ...], cards: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return NVML's GPUs, then the other cards in their order.

    If NVML answers, NVIDIA cards found on the bus are left out: it knows better which of them can be used.
    """
    others = [card for card in cards if not nvml or card.vendor != "nvidia"]
    return (*nvml, *_number_cards(others, start=len(nvml)))


def parse_link_generation(speed: str) -> int | None:
    """Return the PCIe generation of a speed: 4 for "16.0 GT/s PCIe"."""
    return GENERATIONS.get(speed.partition(" ")[0])


def find_largest_window(resource: str) -> int:
    """Return the bytes of the largest PCI window in a device's `resource`; 0 if there is none.

    Its lines are "start end flags" in hex; the first six are windows.
    """
    sizes = [0]
    for line in resource.splitlines()[:6]:
        words = line.split()
        if len(words) == 3 and int(words[1], 16):
            sizes.append(int(words[1], 16) - int(words[0], 16) + 1)
    return max(sizes)


def _number_cards(cards: list[Gpu], *, start: int = 0) -> Iterator[Gpu]:
    return (dataclasses.replace(card, index=index) for index, card in enumerate(cards, start))


def _read_card(root: Path, device: Path) -> Gpu | None:
    """Return the card; None for a device that is not a graphics card of these makers."""
    vendor_id = read_text(device / "vendor").removeprefix("0x")
    vendor = VENDORS.get(vendor_id)
    if vendor is None or not read_text(device / "class").startswith(DISPLAY_CLASSES):
        return None
    device_id, revision = (read_text(device / name).removeprefix("0x") for name in ("device", "revision"))
    name = read_text(device / "product_name") or find_card_name(
        root, vendor=vendor_id, device=device_id, revision=revision
    )
    maker, shown = MAKERS[vendor], name or f"GPU {vendor_id}:{device_id}"
    shares = _is_integrated(device, vendor, device_id, name or "")
    total, used = _read_shared_memory(device) if vendor == "amd" and shares else _read_memory(device, vendor, device_id)
    return Gpu(
        index=0,
        name=shown if shown.startswith(maker) else f"{maker} {shown}",
        vendor=vendor,
        backends=BACKENDS[vendor],
        shares_memory=shares,
        total_bytes=total,
        free_bytes=None if total is None or used is None else max(0, total - used),
        used_bytes=used,
        bandwidth_bytes_s=STRIX_HALO_BYTES_S if (vendor, device_id) == ("amd", STRIX_HALO) else None,
        driver=attempt_or(lambda: (device / "driver").readlink().name, None),
        pci=device.name,
        pcie=_read_link(_find_slot_end(device, vendor)),
        power_limit_w=_read_power_limit(device),
    )


def _read_memory(device: Path, vendor: str, device_id: str) -> tuple[int | None, int | None]:
    """Return total and used bytes; None if they are not known."""
    if vendor == "amd":
        return _read_count(device / "mem_info_vram_total"), _read_count(device / "mem_info_vram_used")
    if vendor == "intel":
        if device_id in INTEL_CARDS_GIB:
            return INTEL_CARDS_GIB[device_id] << 30, None
        window = _read_largest_window(device)
        return (window if window >= MIN_CARD_WINDOW_BYTES else None), None
    return None, None


def _read_shared_memory(device: Path) -> tuple[int | None, int | None]:
    """Return the bytes of main memory that amdgpu lends to integrated graphics (GTT): total and used."""
    return _read_count(device / "mem_info_gtt_total"), _read_count(device / "mem_info_gtt_used")


def _is_integrated(device: Path, vendor: str, device_id: str, name: str) -> bool:
    """Return whether it is integrated graphics. AMD names those "... Graphics", without a series such as RX or Pro.

    It counts as a card with its own memory if the firmware reserves more for it than it could borrow.
    """
    if vendor == "intel":
        return device_id not in INTEL_CARDS_GIB and _read_largest_window(device) < MIN_CARD_WINDOW_BYTES
    if vendor != "amd":
        return False
    is_graphics = name.endswith("Graphics") and not {"RX", "Pro", "PRO", "Instinct"} & set(name.split())
    own, lent = _read_count(device / "mem_info_vram_total") or 0, _read_shared_memory(device)[0]
    return (is_graphics or device_id == STRIX_HALO) and (lent is None or own <= lent)


def _read_largest_window(device: Path) -> int:
    return attempt_or(lambda: find_largest_window(read_text(device / "resource")), 0)


def _find_slot_end(device: Path, vendor: str) -> Path:
    """Return the end of the PCIe link that is in the slot: a card with a switch on board states an inner link itself.

    AMD's switch is two bridges with AMD's vendor id. Intel's id is also that of the CPU's bridges, so there a switch
    is two bridges below a third one, the root port.
    """
    bridges = [each for each in device.resolve().parents if read_text(each / "class").startswith(BRIDGE_CLASS)]
    if vendor == "amd":
        own = list(itertools.takewhile(lambda each: read_text(each / "vendor") == "0x1002", bridges))
        return own[-1] if own else device
    return bridges[1] if vendor == "intel" and len(bridges) >= 3 else device


def _read_link(device: Path) -> PcieLink | None:
    link = PcieLink(
        generation=parse_link_generation(read_text(device / "current_link_speed")),
        width=_read_count(device / "current_link_width") or None,
        max_generation=parse_link_generation(read_text(device / "max_link_speed")),
        max_width=_read_count(device / "max_link_width") or None,
    )
    return None if link == PcieLink() else link


def _read_power_limit(device: Path) -> float | None:
    microwatts = (_read_count(cap) for cap in sorted(device.glob("hwmon/hwmon*/power1_cap")))
    return next((value / 1e6 for value in microwatts if value), None)


def _read_count(path: Path) -> int | None:
    return parse_count(read_text(path))


# ---- names of graphics cards, from two lists of Linux systems: they are searched line by line and not kept
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
