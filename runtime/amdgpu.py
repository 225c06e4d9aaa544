"""AMD GPUs as the kernel describes them: amdgpu's sizes, and KFD's topology, from which HIP takes its devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .sysfs import MISSING, ROOT, Number, entries, number, read_number, read_table, read_text

VENDOR = "0x1002"
NODES = Path("sys/class/kfd/kfd/topology/nodes")
# GPUs in a processor, which share its RAM: the gfx names of LLVM's AMDGPU user guide that are marked APU.
INTEGRATED = frozenset(
    {"gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103"}
    | {"gfx1150", "gfx1151", "gfx1152", "gfx1153"}
)
# PCI device id -> gfx name, for machines where KFD does not say: the two that we know.
PCI_IDS = {"0x1586": "gfx1151", "0x7551": "gfx1201"}


@dataclass(frozen=True)
class AmdGpu:
    """One GPU. Sizes in bytes; kfd_bytes: what KFD offers HIP as this device's memory."""

    address: str  # of PCI: 0000:c5:00.0
    pci_id: str  # 0x1586
    arch: str  # gfx1151, "" when it is not known
    render_node: str  # renderD128, "" when there is none
    vram_total: Number
    vram_used: Number
    visible_vram_total: Number
    visible_vram_used: Number
    gtt_total: Number
    gtt_used: Number
    kfd_bytes: Number

    @property
    def integrated(self) -> bool:
        """Whether its memory is the processor's RAM; an unknown chip counts as a card of its own."""
        return self.arch in INTEGRATED

    @property
    def name(self) -> str:
        """gfx1151 at 0000:c5:00.0"""
        return f"{self.arch or self.pci_id} at {self.address}"


@dataclass(frozen=True)
class _Node:
    """A GPU in KFD's topology."""

    render_node: str
    address: str
    arch: str
    bytes: Number


def amd_gpus(root: Path = ROOT) -> list[AmdGpu]:
    """All AMD GPUs with a DRM device below `root`: in KFD's order, which is HIP's; then those unknown to KFD."""
    nodes = _kfd_nodes(root)
    found: dict[str, tuple[Path, str]] = {}
    for entry in entries(root / "sys/class/drm"):
        device = entry / "device"
        if not re.fullmatch(r"card\d+|renderD\d+", entry.name) or read_text(device / "vendor")[0] != VENDOR:
            continue
        address = device.resolve().name
        _, render_node = found.get(address, (device, ""))
        found[address] = (device, entry.name if entry.name.startswith("render") else render_node)
    order = {node.address: i for i, node in enumerate(nodes)} | {node.render_node: i for i, node in enumerate(nodes)}

    def rank(address: str) -> tuple[int, str]:
        return order.get(address, order.get(found[address][1], len(order))), address

    gpus = []
    for address in sorted(found, key=rank):
        device, render_node = found[address]
        node = next((n for n in nodes if address == n.address or (render_node and render_node == n.render_node)), None)
        gpus.append(_gpu(device, address, render_node, node))
    return gpus


def _gpu(device: Path, address: str, render_node: str, node: _Node | None) -> AmdGpu:
    pci_id = read_text(device / "device")[0] or ""
    sizes = {
        name: read_number(device / f"mem_info_{file}")
        for name, file in (
            ("vram_total", "vram_total"),
            ("vram_used", "vram_used"),
            ("visible_vram_total", "vis_vram_total"),
            ("visible_vram_used", "vis_vram_used"),
            ("gtt_total", "gtt_total"),
            ("gtt_used", "gtt_used"),
        )
    }
    arch = (node.arch if node else "") or PCI_IDS.get(pci_id, "")
    return AmdGpu(address, pci_id, arch, render_node, kfd_bytes=node.bytes if node else MISSING, **sizes)


def _kfd_nodes(root: Path) -> list[_Node]:
    """KFD's GPUs in order. In a container the properties of GPUs that it was not given cannot be read."""
    nodes = []
    for folder in entries(root / NODES):
        properties, _ = read_table(folder / "properties")
        arch = arch_name(number(properties.get("gfx_target_version", "0")).value or 0)
        if not arch:
            continue  # a processor
        location = number(properties.get("location_id", "0")).value or 0
        domain = number(properties.get("domain", "0")).value or 0
        minor = number(properties.get("drm_render_minor", "0")).value or 0
        banks = [read_table(bank / "properties")[0].get("size_in_bytes") for bank in entries(folder / "mem_banks")]
        sizes = [number(text) for text in banks if text is not None]
        bad = next((s for s in sizes if s.value is None), None)
        total = bad or (Number(sum(s.value or 0 for s in sizes)) if sizes else MISSING)
        # location_id is the PCI bus, device and function in one number.
        address = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        nodes.append(_Node(f"renderD{minor}" if minor else "", address, arch, total))
    return nodes


def arch_name(version: int) -> str:
    """KFD's gfx_target_version -> LLVM's name: 110501 -> gfx1151, 90010 -> gfx90a, 0 -> ""."""
    if version <= 0:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def visible_gpus(gpus: Sequence[AmdGpu], environment: Mapping[str, str]) -> tuple[list[AmdGpu], list[str]]:
    """What ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES leave, in the order that HIP numbers it, and what was odd.

    HIP stops at the first number that is not a device, and so do we; a UUID cannot be looked up here.
    """
    left, odd = list(gpus), []
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        text = environment.get(name)
        if text is None:
            continue
        chosen = []
        for word in text.split(","):
            if word.strip().upper().startswith("GPU-"):
                odd.append(f"{name}={text} names a device by its UUID: taken as all devices")
                chosen = left
                break
            if not re.fullmatch(r"[0-9]{1,4}", word.strip()) or int(word) >= len(left):
                odd.append(f"{name}={text}: {word.strip()!r} is no device here")
                break
            chosen.append(left[int(word)])
        left = chosen
    return left, odd
