"""The peaks of devices."""

import time

import pytest
import torch

from runtime import peak

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA B200", 2250),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("AMD Instinct MI300X", 1307.4),
        ("NVIDIA H200 NVL", None),
        # Others, and parts of a device.
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GB200", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA L40", None),
        ("NVIDIA H20", None),
        ("Tesla T4", None),
    ],
)
def test_published_peaks_belong_to_whole_names(
    monkeypatch: pytest.MonkeyPatch, name: str, tera: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = peak.peak_of(torch.device("cuda", 0), "bfloat16")
    assert found == (tera and tera * 1e12)
    assert peak.peak_of(torch.device("cuda", 0), "float32") is None


def test_a_cpu_is_measured_with_the_widest_products_that_fit_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, widths = 0.0, []

    def measure(call: object, seconds: float, device: torch.device) -> peak.Timing:
        nonlocal clock
        best = 2 * widths[-1] ** 3 / 1e11  # 100 GFLOP/s.
        clock += max(seconds, 5 * best)
        return peak.Timing(best, best, 3)

    randn = torch.randn

    def drawing(*shape: int, **options: object) -> torch.Tensor:
        widths.append(shape[-1])
        return randn(2, 1, 1)

    monkeypatch.setattr(peak, "measure", measure)
    monkeypatch.setattr(torch, "randn", drawing)
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    assert peak.peak_of(CPU, "float32") == pytest.approx(1e11)
    # 1,024 takes 0.11 s; 2,048 would take 0.86 s.
    assert widths == [256, 512, 1024]
    assert clock <= 0.3


def test_measuring_draws_no_number() -> None:
    before = torch.get_rng_state()
    rates = peak.product_rates("float32", CPU, (8, 16), 0.0)
    assert rates.keys() == {8, 16}
    assert min(rates.values()) > 0
    assert torch.equal(torch.get_rng_state(), before)
