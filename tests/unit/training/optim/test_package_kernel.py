"""The kernel of the package `adam-atan2`, tested with a stand-in of the same interface."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from runtime.errors import ConfigError
from training.config.schema import ParamGroupConfig
from training.optim.adam_atan2 import AdamATan2, PackageAdamATan2, package_kernel
from training.optim.ema import WeightAverage
from training.optim.groups import GROUP_NAME, PEAK_RATE, GradientBucket, assign_groups, update_by

CPU = torch.device("cpu")


def stand_in(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> None:
    """Make the step of the CUDA kernel, in torch."""
    lists = (params, grads, exp_avgs, exp_avg_sqs, state_steps)
    for p, g, m, v, step in zip(*lists, strict=True):
        assert (step.shape, step.dtype) == ((), torch.float32)
        p.mul_(1 - lr * weight_decay)
        m.lerp_(g, 1 - beta1)
        v.lerp_(g * g, 1 - beta2)
        angle = torch.atan2(m, v.sqrt() / (1 - beta2**step).sqrt())
        p.sub_(lr / (1 - beta1**step) * angle)


def test_it_steps_clips_averages_and_skips_as_ours() -> None:
    results = []
    for kernel in (None, stand_in):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        settings = {
            "a": ParamGroupConfig(params=["0.*"], lr=0.1, max_grad_norm=0.5),
            "b": ParamGroupConfig(params=["1.*"], weight_decay=0.0),
        }
        groups = assign_groups(model.named_parameters(), settings, 0.02, 0.1)
        bucket = GradientBucket(groups, CPU)
        rates = [{"lr": group.lr, PEAK_RATE: group.lr} for group in groups]
        given = [
            {"params": params, GROUP_NAME: group.name, "weight_decay": group.weight_decay} | own
            for (params, *_), group, own in zip(bucket.parts, groups, rates, strict=True)
        ]
        optimizer = PackageAdamATan2(given, kernel) if kernel else AdamATan2(given)
        average = WeightAverage(model, 0.9)
        update = update_by(optimizer, bucket, average)
        for step in range(5):
            skip = torch.tensor(step in (0, 3))
            bucket.flat.normal_()
            if skip:
                bucket.flat.fill_(torch.nan)
            norms = torch.stack([part.norm() for part in bucket.group_slices])
            update(norms, skip, (step + 1) / 5)
        state = [s for p in model.parameters() for s in optimizer.state[p].values()]
        results.append([*model.parameters(), *state, *average.tensors().values()])
    assert {value.item() for value in results[0] if value.ndim == 0} == {3}
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-7)


def test_where_it_cannot_run_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="runs only on CUDA, not on cpu"):
        package_kernel(CPU)
    # The module is looked for before the device is touched.
    monkeypatch.setitem(sys.modules, "adam_atan2_backend", None)
    with pytest.raises(ConfigError, match="cannot load adam_atan2_backend.adam_atan2_cuda_impl_"):
        package_kernel(torch.device("cuda"))
    monkeypatch.setitem(sys.modules, "adam_atan2_backend", SimpleNamespace())
    with pytest.raises(ConfigError, match="has no attribute 'adam_atan2_cuda_impl_'"):
        package_kernel(torch.device("cuda"))
