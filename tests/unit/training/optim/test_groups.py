"""Parameter groups, the gradient bucket, and updates that are skipped."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.act import ACTLossHead
from models.config import DataFacts
from models.hrm.config import HRMConfig
from models.registry import build_model
from runtime.errors import ConfigError
from runtime.ranks import Ranks
from training.config.composition import load_config
from training.config.schema import OptimizerConfig, ParamGroupConfig, TrainConfig
from training.optim import groups as optim
from training.optim.adam_atan2 import AdamATan2
from training.optim.groups import (
    GradientBucket,
    ParamGroup,
    assign_groups,
    build_optimizer,
    groups_of,
)

FACTS = DataFacts(vocab_size=5, seq_len=4, num_puzzle_identifiers=6)


def small_model(**overrides: Any) -> ACTLossHead:
    settings = {"hidden_size": 8, "num_heads": 2, "H_layers": 1, "L_layers": 1, "expansion": 1.0}
    settings |= {"puzzle_emb_ndim": 8, "halt_max_steps": 3, "forward_dtype": "float32"}
    return build_model(HRMConfig.model_validate(settings | overrides), FACTS)


def small_module() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Module()
    module.first = nn.Linear(3, 2)
    module.second = nn.Linear(2, 2, bias=False)
    return module


def configs(**groups: Any) -> dict[str, ParamGroupConfig]:
    return {
        name: ParamGroupConfig.model_validate(g if isinstance(g, dict) else {"params": g})
        for name, g in groups.items()
    }


def assign(module: nn.Module, groups: Mapping[str, ParamGroupConfig]) -> list[ParamGroup]:
    return assign_groups(module.named_parameters(), groups, lr=0.1, weight_decay=0.2)


# Groups


def test_a_parameter_that_is_not_float32_is_named() -> None:
    module = small_module()
    module.second.double()
    with pytest.raises(ConfigError, match=r"must be float32, second.weight is torch.float64"):
        assign(module, configs(all=["*"]))


def test_groups_take_the_settings_of_the_run_where_they_have_none() -> None:
    module = small_module()
    heads = {"params": ["second.*"], "lr": 0.0, "weight_decay": 0.0, "max_grad_norm": 2.0}
    first, second = assign(module, configs(z=heads, a=["first.bias", "*t.weight", "first.*"]))
    # Groups keep the order of the configuration, their parameters that of the model.
    assert (first.name, first.lr, first.weight_decay, first.max_grad_norm) == ("z", 0, 0, 2)
    settings = (second.name, second.lr, second.weight_decay, second.max_grad_norm)
    assert settings == ("a", 0.1, 0.2, None)
    assert list(second.params) == ["first.weight", "first.bias"]
    assert second.params["first.bias"] is module.get_parameter("first.bias")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": ["first.weight"]}, r"first\.bias is matched by no group$"),
        ({"a": ["*.weight"], "b": ["first.*"]}, r"first\.weight is matched by .*groups: a, b$"),
        ({"a": ["*"], "b": ["third.*"]}, r"optimizer\.groups\.b: .*third.*first\.weight"),
        ({"a": ["*"], "b": ["FIRST.*"]}, r"optimizer\.groups\.b"),  # Patterns are case-sensitive.
    ],
)
def test_every_parameter_has_one_group_and_every_group_a_parameter(
    groups: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        assign(small_module(), configs(**groups))


def test_frozen_parameters_need_no_group() -> None:
    module = small_module()
    module.get_parameter("second.weight").requires_grad_(False)
    (group,) = assign(module, configs(a=["first.*"]))
    assert list(group.params) == ["first.weight", "first.bias"]
    with pytest.raises(ConfigError, match=r"optimizer\.groups\.b"):
        assign(module, configs(a=["first.*"], b=["second.*"]))


def test_a_frozen_trunk_leaves_heads_and_learned_weights_of_losses_free() -> None:
    model = small_model(loss={"weighting": "uncertainty"})
    settings = ["data_path=none", "freeze_weights=trunk"]
    groups_of(model, load_config(TrainConfig, "cfg_pretrain", settings))
    free = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert free
    assert all("_head." in name or name.startswith("log_variances.") for name in free)
    assert any(name.startswith("log_variances.") for name in free)


def kind(name: str) -> str:
    """Return the group of `optimizer=grouped` that a parameter of HRM belongs to."""
    for part in ("lm_head", "q_head"):
        if f".{part}." in name:
            return part
    return "embeddings" if ".embed_" in name else "trunk"


@pytest.mark.parametrize(
    "model", [{}, {"pos_encodings": "learned"}, {"mlp_t": True}, {"puzzle_emb_ndim": 0}], ids=str
)
def test_grouped_owns_every_parameter_once(model: dict[str, Any]) -> None:
    settings = ["optimizer=grouped", "optimizer.groups.q_head.lr=5e-4"]
    config = load_config(TrainConfig, "cfg_pretrain", settings)
    module = small_model(**model)
    groups = {group.name: group for group in optim.groups_of(module, config)}
    assert list(groups) == ["lm_head", "q_head", "embeddings", "trunk"]
    owners = {name: group.name for group in groups.values() for name in group.params}
    assert owners == {name: kind(name) for name, _ in module.named_parameters()}
    assert groups["q_head"].lr == 5e-4
    assert groups["trunk"].lr == groups["lm_head"].lr == config.lr
    assert groups["embeddings"].weight_decay == 0
    assert groups["trunk"].weight_decay == config.weight_decay
    assert groups["q_head"].without_decay == {"model.inner.q_head.bias"}
    optimizer = build_optimizer(config.optimizer, list(groups.values()), (0.9, 0.95))
    assert isinstance(optimizer, torch.optim.AdamW)


def test_the_default_is_one_group_with_decay_on_everything() -> None:
    config = load_config(TrainConfig, "cfg_pretrain", [])
    module = small_model()
    (group,) = optim.groups_of(module, config)
    assert list(group.params) == [name for name, _ in module.named_parameters()]
    assert (group.lr, group.weight_decay, group.max_grad_norm) == (1e-4, 0.1, None)
    optimizer = build_optimizer(config.optimizer, [group], (config.beta1, config.beta2))
    assert isinstance(optimizer, AdamATan2)


def built(name: str, groups: list[ParamGroup]) -> torch.optim.Optimizer:
    settings = {"name": name, "groups": {"unused": {"params": ["*"]}}}
    return build_optimizer(OptimizerConfig.model_validate(settings), groups, (0.8, 0.95))


@pytest.mark.parametrize("decay_vectors", [True, False])
@pytest.mark.parametrize("optimizer", ["adam_atan2", "adamw"])
def test_each_group_has_its_own_rate_and_decay(optimizer: str, decay_vectors: bool) -> None:
    module = small_module()
    module.log_variances = nn.ParameterDict({"lm": nn.Parameter(torch.ones(()))})
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    first = {"params": ["first.*"], "lr": 0.3, "weight_decay": 0.5, "decay_vectors": decay_vectors}
    groups = configs(a=first, b={"params": ["second.*"], "lr": 0.0}, c=["log_variances.*"])
    tested = built(optimizer, assign(module, groups))
    optim.set_rates(tested, 0.5)
    assert {group["lr"] for group in tested.param_groups} == {0.15, 0.0, 0.05}
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    tested.step()
    # The learned weights of losses never decay.
    kept = 1 - 0.15 * 0.5
    factors = {"first.weight": kept, "first.bias": kept if decay_vectors else 1}
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name] * factors.get(name, 1))


def set_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        grad = torch.randn(parameter.shape, generator=generator)
        if parameter.grad is None:
            parameter.grad = grad
        else:
            parameter.grad.copy_(grad)


# The bucket

FINITE, STOP, GO_ON = torch.tensor(True), torch.tensor(True), torch.tensor(False)


def build_bucket(**norms: float | None) -> tuple[nn.Module, list[ParamGroup], GradientBucket]:
    module = small_module()
    settings = {
        name: {"params": [f"{name}.*"], "max_grad_norm": norms.get(name)}
        for name in ("second", "first")
    }
    groups = assign(module, configs(**settings))
    return module, groups, GradientBucket(groups, torch.device("cpu"))


def grads_of(module: nn.Module) -> dict[str, Tensor]:
    grads = {name: p.grad for name, p in module.named_parameters()}
    return {name: grad for name, grad in grads.items() if grad is not None}


def test_backward_fills_the_bucket_group_by_group() -> None:
    module, groups, bucket = build_bucket()
    twin, x = small_module(), torch.tensor([[1.0, 2.0, 3.0]])
    for each in (module, twin):
        each.second(each.first(x)).square().sum().backward()  # type: ignore[operator]
    assert [g.name for g in groups] == ["second", "first"]
    for group, part in zip(groups, bucket.group_slices, strict=True):
        flat = torch.cat([p.grad.flatten() for p in group.params.values() if p.grad is not None])
        assert flat.abs().min() > 0
        assert torch.equal(part[: len(flat)], flat)
        assert not part[len(flat) :].any()
    torch.testing.assert_close(grads_of(module), grads_of(twin))
    bucket.zero_()
    assert not any(grad.any() for grad in grads_of(module).values())


def test_weights_keep_their_values_and_lie_as_their_gradients() -> None:
    module, twin = small_module(), small_module()
    module.third = twin.third = nn.Linear(4, 4)
    parameters = list(module.parameters())
    one = {"params": ["*"], "decay_vectors": False}
    groups = assign(module, configs(all=one))
    optimizer = built("adam_atan2", groups)
    bucket = GradientBucket(groups, torch.device("cpu"))
    assert list(module.parameters()) == parameters
    for actual, expected in zip(parameters, twin.parameters(), strict=True):
        assert torch.equal(actual, expected)
    names = {p: name for name, p in module.named_parameters()}
    parts = [group["params"] for group in optimizer.param_groups]
    # Tensors that fill whole cache lines come first, and every part starts at a cache line.
    assert [[names[p] for p in part] for part in parts] == [
        ["third.weight", "first.weight", "second.weight"],
        ["first.bias", "third.bias"],
    ]
    for part, (params, weights, grads) in zip(parts, bucket.parts, strict=True):
        assert [names[p] for p in params] == [names[p] for p in part]
        grads += torch.arange(len(grads))
        assert torch.equal(weights, torch.cat([p.detach().view(-1) for p in part]))
        assert torch.equal(grads, torch.cat([p.grad.view(-1) for p in part]))
        assert weights.data_ptr() == part[0].data_ptr()
        assert weights.data_ptr() % 64 == grads.data_ptr() % 64 == 0


@pytest.mark.parametrize("unreached", [None, 1e6])
def test_each_group_is_clipped_to_its_own_norm(unreached: float | None) -> None:
    module, groups, bucket = build_bucket(second=0.5, first=unreached)
    set_gradients(module, 0)
    before = [part.clone() for part in bucket.group_slices]
    norms, skip, stop = bucket.reduce(Ranks("cpu"), finite=FINITE, stop=STOP)
    assert stop
    assert not skip
    for group, norm in zip(groups, norms.tolist(), strict=True):
        squares = [grads_of(module)[name].square().sum().item() for name in group.params]
        assert norm == pytest.approx(math.sqrt(sum(squares)), rel=1e-6)
    assert norms[0] > 0.5
    bucket.clip_(norms, skip)
    second, first = bucket.group_slices
    assert second.norm().item() == pytest.approx(0.5, rel=1e-5)
    torch.testing.assert_close(second / second.norm(), before[0] / before[0].norm())
    assert torch.equal(first, before[1])


def test_shards_are_added_in_their_order() -> None:
    module = small_module()
    groups = assign(module, configs(all=["*"]))
    bucket = GradientBucket(groups, torch.device("cpu"), num_shards=4, in_order=True)
    generator = torch.Generator().manual_seed(0)
    for turn in range(2):
        bucket.zero_()
        shards: list[dict[str, Tensor]] = []
        for shard in range(4):
            bucket.select(shard)
            scale = 10.0 ** (2 * shard)  # Another order of addition gives other bits.
            shards.append({})
            for name, grad in grads_of(module).items():
                assert not grad.any()
                shards[-1][name] = torch.randn(grad.shape, generator=generator) * scale
                grad.add_(shards[-1][name])
        norms, skip, stop = bucket.reduce(Ranks("cpu"), finite=FINITE, stop=torch.tensor(turn == 1))
        assert not skip
        assert bool(stop) == (turn == 1)
        squares = 0.0
        differs = False
        for name, grad in grads_of(module).items():
            first, second, third, fourth = (shard[name] for shard in shards)
            expected = ((first + second) + third) + fourth
            assert torch.equal(grad, expected)
            differs |= not torch.equal(expected, (first + second) + (third + fourth))
            squares += expected.double().square().sum().item()
        assert differs
        assert norms.item() == pytest.approx(math.sqrt(squares), rel=1e-6)


@pytest.mark.parametrize("shard", range(3))
def test_what_is_not_finite_in_any_shard_skips_the_step(shard: int) -> None:
    module = small_module()
    groups = assign(module, configs(all=["*"]))
    bucket = GradientBucket(groups, torch.device("cpu"), num_shards=3, in_order=True)
    bucket.select(shard)
    grads_of(module)["first.weight"][0, 0] = math.nan
    _, skip, _ = bucket.reduce(Ranks("cpu"), finite=FINITE, stop=GO_ON)
    assert skip


# Skipped updates


@pytest.mark.parametrize("wrong", [math.nan, -math.inf, "the loss"])
@pytest.mark.parametrize("name", ["adam_atan2", "adamw"])
def test_after_a_skipped_step_training_goes_on_as_if_it_had_not_been(name: str, wrong: Any) -> None:
    results = []
    for seeds in ((0, 1), (7, 0, 8, 1)):  # Also before the first update.
        module, groups, bucket = build_bucket(second=1.0)
        optimizer = built(name, groups)
        for seed in seeds:
            is_wrong = seed >= 7
            set_gradients(module, seed)
            if is_wrong and wrong != "the loss":
                grads_of(module)["second.weight"].view(-1)[-1] = wrong
            finite = torch.tensor(not is_wrong or wrong != "the loss")
            norms, skip, _ = bucket.reduce(Ranks("cpu"), finite=finite, stop=GO_ON)
            assert skip == is_wrong
            bucket.clip_(norms, skip)
            assert bucket.flat.any() == (not is_wrong)
            optim.skip_update(optimizer, skip)
            optimizer.step()
        state = [value for p in module.parameters() for value in optimizer.state[p].values()]
        results.append([*module.parameters(), *state])
    assert len(results[0]) == 3 * 4
    assert all(torch.equal(*both) for both in zip(*results, strict=True))
