"""The limits of accelerators as their makers publish them. 1 GB is 10^9 bytes."""

from typing import NamedTuple


class Accelerator(NamedTuple):
    """The limits of one device."""

    name: str
    reported: str  # A regular expression for the whole name that torch gives to the device.
    peak: float  # Operations per second of dense bfloat16 products, added up in float32.
    memory: float  # Bytes.
    bandwidth: float  # Bytes per second between the device and its memory.
    link: float  # Bytes per second that it sends to the other devices of its machine.


_PUBLISHED = {  # TFLOP/s, GB, GB/s, GB/s. PCIe 4.0 x16 sends 32 GB/s, PCIe 5.0 x16 64 GB/s.
    # NVIDIA's data sheets: A100 (SXM), H100 and H200 (half the sparse rate), DGX B200 (an eighth),
    # L4 (half the sparse rate), L40S.
    "a100-40": ("A100 40 GB", r"NVIDIA A100[- ](SXM4|PCIE)(-40GB)?", 312, 40, 1555, 300),
    "a100-80": ("A100 80 GB", r"NVIDIA A100[- ](SXM4-80GB|80GB PCIe)", 312, 80, 2039, 300),
    "h100": ("H100", r"NVIDIA H100 \d+GB HBM3", 989.5, 80, 3350, 450),
    "h100-nvl": ("H100 NVL", r"NVIDIA H100 NVL", 835.5, 94, 3900, 300),
    "h100-pcie": ("H100 PCIe", r"NVIDIA H100 PCIe", 756.5, 80, 2000, 64),
    "h200": ("H200", r"NVIDIA H200", 989.5, 141, 4800, 450),
    "b200": ("B200", r"NVIDIA B200", 2250, 180, 8000, 900),
    "l4": ("L4", r"NVIDIA L4", 121, 24, 300, 32),
    "l40s": ("L40S", r"NVIDIA L40S", 362.05, 48, 864, 32),
    # NVIDIA's white papers on the architectures: Ampere GA102 (without the bridge), Ada, Blackwell.
    "rtx3090": ("RTX 3090", r"NVIDIA GeForce RTX 3090", 71, 24, 936, 32),
    "rtx4090": ("RTX 4090", r"NVIDIA GeForce RTX 4090", 165.2, 24, 1008, 32),
    "rtx5090": ("RTX 5090", r"NVIDIA GeForce RTX 5090", 209.5, 32, 1792, 64),
    # AMD's data sheet.
    "mi300x": ("MI300X", r"AMD Instinct MI300X( OAM)?", 1307.4, 192, 5300, 448),
}
ACCELERATORS = {
    key: Accelerator(name, reported, peak * 1e12, memory * 1e9, bandwidth * 1e9, link * 1e9)
    for key, (name, reported, peak, memory, bandwidth, link) in _PUBLISHED.items()
}
