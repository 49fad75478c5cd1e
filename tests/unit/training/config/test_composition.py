"""What the command line composes to, and how mistakes in it are answered."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from models.config import ACTLossConfig
from models.heads.config import AUXILIARY_HEADS, HeadsConfig
from runtime import errors
from runtime.errors import ConfigError
from training.config.composition import compose_config, load_config
from training.config.explain import setting_paths
from training.config.schema import OptimizerConfig, ParamGroupConfig, TrainConfig
from training.config.source import CONFIG_DIR

SPARSE = "techniques=[sparse_look_ahead]"


def configure(*settings: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", settings)


@pytest.fixture(scope="module")
def defaults() -> TrainConfig:
    return configure()


# Published behaviour


def test_defaults_are_the_published_ones(defaults: TrainConfig) -> None:
    expected = yaml.safe_load("""{
        global_batch_size: 768, epochs: 100000, eval_interval: 10000, min_eval_interval: 0,
        checkpoint_every_eval: false, lr: 1.0e-4, lr_min_ratio: 1.0, lr_warmup_steps: 2000,
        beta1: 0.9, beta2: 0.95, weight_decay: 0.1, puzzle_emb_lr: 1.0e-2,
        puzzle_emb_weight_decay: 0.1, seed: 0, data_path: data/arc-aug-1000, project_name: null,
        run_name: null, checkpoint_path: null, load_checkpoint: null, eval_save_outputs: []}""")
    values = defaults.model_dump()
    assert {key: values[key] for key in expected} == expected


def test_the_default_heads_are_the_published_ones(defaults: TrainConfig) -> None:
    # The rest of the architecture: tests/unit/models/test_config.py.
    assert defaults.arch.loss == ACTLossConfig()
    assert defaults.arch.heads == HeadsConfig()
    assert (defaults.arch.heads.lm.name, defaults.arch.heads.fields) == ("linear", {})


def test_the_default_optimizer_decays_everything_alike(defaults: TrainConfig) -> None:
    assert defaults.optimizer == OptimizerConfig(groups={"all": ParamGroupConfig(params=["*"])})
    assert (defaults.optimizer.name, defaults.logger.name) == ("adam_atan2", "wandb")


@pytest.mark.parametrize("prefix", ["", "+", "++"])
@pytest.mark.parametrize("key", ["run_name", "project_name", "checkpoint_path", "load_checkpoint"])
def test_optional_keys_are_set_with_and_without_a_plus(prefix: str, key: str) -> None:
    assert getattr(configure(f"{prefix}{key}=some"), key) == "some"


def test_a_run_may_be_called_by_a_number() -> None:
    assert configure("run_name=42").run_name == "42"


def test_several_folders_come_before_one() -> None:
    config = configure("data_paths=[a,b]", "data_paths_test=[c]")
    assert (config.train_paths, config.test_paths) == (["a", "b"], ["c"])
    assert configure("data_paths=[a,b]").test_paths == ["a", "b"]


# Groups


def test_the_loss_group_keeps_the_published_path() -> None:
    assert configure("loss=act_softmax").arch.loss.loss_type == "softmax_cross_entropy"
    setting = "arch.loss.loss_type=softmax_cross_entropy"
    assert configure(setting).arch.loss.loss_type == "softmax_cross_entropy"


def test_one_group_of_parameters_can_be_changed_alone() -> None:
    groups = configure("optimizer=grouped", "optimizer.groups.q_head.lr=5e-4").optimizer.groups
    auxiliary = [f"{name}_head" for name in AUXILIARY_HEADS]
    others = ["embeddings", "trunk", "loss_weights"]
    known = ["lm_head", "q_head", *auxiliary, *others]
    assert [name for name in groups if name in known] == known
    assert all(name.endswith("_head") for name in groups.keys() - set(known))
    assert {name for name, group in groups.items() if group.lr is not None} == {"q_head"}
    assert groups["q_head"].lr == 5e-4


# What each part of `heads=` adds to the standard heads.
DETACH = {"detach": False}
PARTS: dict[str, dict[str, Any]] = {
    "standard": {},
    "linear_bias": {"lm": {"bias": True}},
    "norm_layer": {"lm": {"norm": "layer"}},
    "norm_rms": {"lm": {"norm": "rms"}},
    "tied": {"lm": {"name": "tied"}},
    "factorized": {"lm": {"name": "factorized"}},
    "adaptive": {"lm": {"name": "adaptive"}},
    "puzzle": {"lm": {"name": "puzzle"}},
    "moe": {"lm": {"name": "moe"}},
    "hierarchical": {"lm": {"name": "hierarchical"}},
    "confidence": {"confidence": DETACH},
    "attention": {"attention": DETACH},
    "halt": {"halt": DETACH},
    "action": {"action": {"field": "actions"}},
    "pixel": {"pixel": {"field": "pixels"}},
    "enhanced": {"confidence": DETACH, "attention": DETACH},
    "sage": {
        "q": None,
        "confidence": DETACH,
        "action": {"field": "actions"},
        "pixel": {"field": "pixels"},
        "halt": DETACH,
    },
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_heads_alone(name: str) -> None:
    composed = compose_config(TrainConfig, "cfg_pretrain", [f"heads={name}"])["arch"]["heads"]
    heads = HeadsConfig.model_validate(PARTS[name])
    assert HeadsConfig.model_validate(composed) == heads
    # Every key is there, so that an override finds it.
    assert composed == {key: heads.model_dump()[key] for key in composed}
    assert {key for key, value in heads if value is not None} <= composed.keys()


def test_every_part_of_the_heads_is_known() -> None:
    assert choices("heads") == sorted(f"heads={name}" for name in PARTS)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    {
        "[tied,confidence]": PARTS["tied"] | PARTS["confidence"],
        "[confidence,tied]": PARTS["tied"] | PARTS["confidence"],
        "[halt,attention]": PARTS["halt"] | PARTS["attention"],
        "[norm_rms,moe]": {"lm": {"name": "moe", "norm": "rms"}},
        "[factorized,sage]": PARTS["factorized"] | PARTS["sage"],
        "[enhanced,confidence]": PARTS["enhanced"],
    }.items(),
)
def test_parts_of_the_heads_together(chosen: str, expected: dict[str, Any]) -> None:
    heads = configure(f"heads={chosen}").arch.heads
    assert heads == HeadsConfig.model_validate(expected)


@pytest.mark.parametrize("resume", ["never", "3"])
def test_a_launcher_that_restarts_goes_on_from_the_newest(resume: str) -> None:
    config = configure(f"resume={resume}")
    config.check_restarts(0)
    configure().check_restarts(3)
    with pytest.raises(ConfigError, match=f"^resume={resume}: with --max-restarts 3 .*resume=auto"):
        config.check_restarts(3)


def choices(group: str) -> list[str]:
    """All but those of an app, which is tested there."""
    names = {path.stem for path in (CONFIG_DIR / group).glob("*.yaml")}
    return sorted(f"{group}={name}" for name in names if not name.startswith("lattice"))


@pytest.mark.parametrize(
    "choice", [choice for group in ("arch", "data", "experiment") for choice in choices(group)]
)
def test_every_choice_composes(choice: str) -> None:
    config = configure(choice)
    if choice.startswith("data="):
        assert config.data is not None
        assert config.data_path == config.data.path


# Mistakes


@pytest.mark.parametrize(
    ("setting", "parts"),
    {
        "arch.L_cylces=4": ["arch.L_cylces=4", "did you mean arch.L_cycles?"],
        "+arch.hiden=3": ["arch.hiden=3", "did you mean arch.hidden_size?"],
        "+arch.hiden_size=3": ["did you mean arch.hidden_size?"],
        "+arch.loss.los_type=x": ["arch.loss.los_type=x", "did you mean arch.loss.loss_type?"],
        "lrr=1": ["lrr=1", "did you mean lr?"],
        "hydra.run.dir=x": ["hydra.run.dir=x: of Hydra's own settings these can be changed: "],
        "epoch=3": ["epoch=3", "did you mean epochs?"],
        "lr=-1": ["lr=-1", "greater than or equal to 0"],
        "lr=nan": ["lr=nan"],
        "lr=fast": ["lr=fast", "number"],
        "epochs=2.5": ["epochs=2.5", "integer"],
        "epochs=0": ["epochs=0", "greater than or equal to 1"],
        "seed=-1": ["seed=-1", "greater than or equal to 0"],
        "seed=18446744073709551616": ["seed=", "less than 18446744073709551616"],
        "arch.mlp_t=1": ["arch.mlp_t=1", "boolean"],
        "arch.pos_encodings=rop": ["arch.pos_encodings=rop", "'rope', 'learned' or 'none'"],
        "eval_save_outputs=[pred]": ["eval_save_outputs.0=pred", "'preds'"],
        "evaluators=[ark]": ["evaluators.0=ark", "arc, sudoku, maze"],
        "evaluators=[{name: maze@Maze}]": ["evaluators.0=maze@Maze", "arc, sudoku, maze"],
        "evaluators=arc": ["evaluators=arc", "list"],
        "device=mps": ["device", "Apple's GPU (mps) is not supported", "cpu"],
        "keep_last=1": ["keep_last=1", "greater than or equal to 2"],
        "resume=maybe": ["resume", "maybe", "'auto' or 'never'"],
        "data_path=null": ["no training data", "data_path=FOLDER"],
        "arch=hrm_v2": ["arch=hrm_v2", "hrm_v1", "mixer", "did you mean arch=hrm_v1?"],
        "heads=[tied,moe]": ["heads=[tied,moe]", "tied and moe are token heads; choose one"],
        "heads=[tied,confidance]": ["accepted: action,", "did you mean heads=confidence?"],
        "heads=[]": ["heads=[]: there is no such choice"],
        "arch=[trm,mixer]": ["arch=[trm,mixer]: there is no such choice", "trm_singlez"],
        "optimizer=adam": ["optimizer=adam", "adam_atan2", "grouped"],
        "data_path=${nowhere}": ["nowhere"],
        "lr": ["'lr'", "key=value"],
        "lr=[": ["'lr=['"],
    }.items(),
)
def test_a_mistake_is_one_line_that_names_it(setting: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        configure(setting)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message
    assert len(message.splitlines()) == 1
    assert len(message) < 400


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["evaluators=[arc]"], ["arc"]),
        (["evaluators=[{name: arc@ARC}]"], ["arc"]),
        (["evaluators=[{name:arc}, maze]"], ["arc", "maze"]),
        (["evaluators=[]"], []),
        ([], ["arc"]),
        (["data=sudoku"], ["sudoku"]),
        (["data=sudoku", "evaluators=[]"], []),
        (["data_path=elsewhere"], []),
        (["data_paths=[data/arc-aug-1000,elsewhere]"], []),
        (["data_paths_test=[elsewhere]"], []),
        (["data_paths_test=[elsewhere]", "evaluators=[sudoku]"], ["sudoku"]),
    ],
)
def test_evaluators_are_those_asked_for_or_of_the_named_data(
    settings: list[str], expected: list[str]
) -> None:
    assert [each.name for each in configure(*settings).active_evaluators] == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["experiment=arc_demo", "data_path=elsewhere"], ["arc"]),
        (["data=maze", "data_paths_test=[elsewhere]"], ["maze"]),
        (["data=maze", "data_path=elsewhere", "evaluators=[]"], []),
        (["data=maze"], []),
        (["data_path=elsewhere"], []),  # As published.
    ],
)
def test_evaluators_of_a_set_chosen_by_name_may_measure_another_folder(
    settings: list[str], expected: list[str]
) -> None:
    assert [each.name for each in configure(*settings).inherited_evaluators] == expected


def test_every_mistake_is_named() -> None:
    with pytest.raises(ConfigError, match=r"lr=-1: .*; beta1=3: "):
        configure("lr=-1", "beta1=3")
    with pytest.raises(ConfigError, match="eval_interval=7 must divide epochs=10: try epochs=7"):
        configure("eval_interval=7", "epochs=10")


@pytest.mark.parametrize(("name", "size", "near"), [("global", 7, 8), ("eval", 5, 4)])
def test_batches_must_be_cut_into_equal_slices(name: str, size: int, near: int) -> None:
    config = configure(f"{name}_batch_size={size}")
    config.check_world_size(1)
    told = f"{name}_batch_size={size} must be a multiple .* 2: try {near}"
    with pytest.raises(ConfigError, match=told):
        config.check_world_size(2)


@pytest.mark.parametrize(
    ("setting", "world_size", "shown"),
    [
        ("global_batch_size=10", 1, "global_batch_size=10 must be a multiple of 4 .*exact: try 8"),
        ("global_batch_size=2", 2, "global_batch_size=2 must be a multiple of 4 .*exact: try 4"),
        ("eval_batch_size=9", 1, "eval_batch_size=9 must be a multiple of 4 .*exact: try 8"),
        ("global_batch_size=24", 3, "there are 3 ranks, accepted are 1, 2, 4; reduction=fast"),
        ("global_batch_size=24", 8, "there are 8 ranks, accepted are 1, 2, 4; reduction=fast"),
    ],
)
def test_exact_reduction_needs_its_shards(setting: str, world_size: int, shown: str) -> None:
    configure(setting).check_world_size(1)
    with pytest.raises(ConfigError, match=shown):
        configure(setting, "reduction=exact").check_world_size(world_size)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("reduction=exact", "reduction=exact sets torch's random numbers anew"),
        ("techniques=[curriculum] arch.H_cycles=3 arch.L_cycles=4", "the number of cycles changes"),
        (f"{SPARSE} arch.techniques.sparse_look_ahead.by=steps", "not every step looks ahead"),
        ("optimizer.name=adamw", "it takes the optimizer adam_atan2"),
    ],
)
def test_a_cuda_graph_takes_steps_that_are_alike(setting: str, told: str) -> None:
    settings = setting.split()
    configure(*settings)
    with pytest.raises(ConfigError, match=f"cuda_graph=true: .*{told}"):
        configure(*settings, "cuda_graph=true")


def test_a_cuda_graph_takes_one_rank() -> None:
    config = configure("cuda_graph=true")
    config.check_world_size(1)
    with pytest.raises(ConfigError, match="there are 2 ranks, and it takes one"):
        config.check_world_size(2)


def test_shards_are_shared_by_the_ranks() -> None:
    exact = configure("reduction=exact", "global_batch_size=12", "eval_batch_size=8")
    for world_size, shards in ((1, 4), (2, 2), (4, 1)):
        exact.check_world_size(world_size)
        assert exact.num_shards(world_size) == shards
    assert configure().num_shards(1) == configure().num_shards(8) == 1


@pytest.mark.parametrize(
    ("settings", "world_size", "parts"),
    [
        (["micro_batch_size=8"], 1, 3),
        (["micro_batch_size=8"], 3, 1),
        (["micro_batch_size=99"], 1, 1),
        (["micro_batch_size=2", "reduction=exact"], 1, 12),
        (["micro_batch_size=2", "reduction=exact"], 2, 6),
        (["micro_batch_size=9", "reduction=exact"], 2, 2),
    ],
)
def test_parts_are_micro_batches_of_shards(
    settings: list[str], world_size: int, parts: int
) -> None:
    config = configure("global_batch_size=24", *settings)
    config.check_world_size(world_size)
    assert config.num_parts(world_size) == parts


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["micro_batch_size=9"], "micro_batch_size=9 must divide the 12 rows of a rank: try 6"),
        (["micro_batch_size=4", "reduction=exact"], "must divide the 6 rows of a shard: try 3"),
        ([SPARSE, "arch.techniques.sparse_look_ahead.every=5"], "must divide the 12 rows"),
        ([SPARSE, "micro_batch_size=6"], "every=4 must divide the 6 rows"),
    ],
)
def test_parts_of_unequal_size_are_refused(settings: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configure("global_batch_size=24", *settings).check_world_size(2)


# Entry points


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("why"), 2),
        (errors.DatasetError("why"), 3),
        (errors.CheckpointError("why"), 4),
        (errors.NonFiniteError("why"), 5),
        (errors.LockedError("why"), 6),
        (errors.Preempted("why"), 75),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_codes(
    enter: Callable[..., int], capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    def fail(overrides: list[str]) -> None:
        raise error

    assert enter("a=1", main=fail) == code
    line = "interrupted\n" if code == 130 else "pretrain.py: why\n"
    assert capsys.readouterr() == ("", line)


def test_a_fault_of_ours_keeps_its_traceback(enter: Callable[..., int]) -> None:
    def fail(overrides: list[str]) -> None:
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        enter(main=fail)


def test_a_message_of_several_lines_is_shown_as_one(
    enter: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(overrides: list[str]) -> None:
        raise ConfigError("run_name=a\nb")

    assert enter(main=fail) == 2
    assert capsys.readouterr().err == "pretrain.py: run_name=a b\n"


def test_overrides_reach_the_program(enter: Callable[..., int]) -> None:
    seen: list[str] = []
    assert enter("lr=1", "+run_name=x", main=seen.extend) == 0
    assert seen == ["lr=1", "+run_name=x"]


def test_paths_of_settings_reach_into_sections() -> None:
    paths = setting_paths(TrainConfig)
    assert {"lr", "arch", "arch.L_cycles", "arch.loss.loss_type", "logger.mode"} <= set(paths)
