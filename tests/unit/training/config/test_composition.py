"""Command lines compose to the right settings, and mistakes in them are named."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import yaml

from models.config import ACTLossConfig
from models.heads.config import AUXILIARY_HEADS, HeadsConfig
from runtime import errors
from runtime.errors import ConfigError
from training.config.composition import compose_runs, load_config, plain
from training.config.overrides import parse_arguments
from training.config.schema import OptimizerConfig, ParamGroupConfig, TrainConfig
from training.config.source import CONFIG_DIR, source_of

SPARSE = "techniques=[sparse_look_ahead]"
EXACT, OF_24 = "reduction=exact", "global_batch_size=24"


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

    # The rest of the architecture: tests/unit/models/test_config.py.
    assert (defaults.arch.loss, defaults.arch.heads) == (ACTLossConfig(), HeadsConfig())
    assert (defaults.arch.heads.lm.name, defaults.arch.heads.fields) == ("linear", {})
    assert defaults.optimizer == OptimizerConfig(groups={"all": ParamGroupConfig(params=["*"])})
    assert (defaults.optimizer.name, defaults.logger.name) == ("adam_atan2", "wandb")


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ("run_name=some", "run_name", "some"),
        ("++load_checkpoint=some", "load_checkpoint", "some"),
        ("+lr=3", "lr", 3.0),
        ("run_name=42", "run_name", "42"),
        ("run_name=2024_06_01", "run_name", "2024_06_01"),
        ("+project_name=1e3 epochs=20_000", "project_name", "1e3"),
        ("data_paths=[a,b] data_paths_test=[c]", "train_paths", ["a", "b"]),
        ("data_paths=[a,b] data_paths_test=[c]", "test_paths", ["c"]),
        ("loss=act_softmax", "arch.loss.loss_type", "softmax_cross_entropy"),
        ("lr=1 lr=2", "lr", 2.0),
        ("experiment=null", "lr", 1e-4),
    ],
)
def test_settings_are_read_as_published(settings: str, path: str, value: object) -> None:
    assert attrgetter(path)(configure(*settings.split())) == value


# Groups


def test_one_group_of_parameters_can_be_changed_alone() -> None:
    groups = configure("optimizer=grouped", "optimizer.groups.q_head.lr=5e-4").optimizer.groups
    auxiliary = [f"{name}_head" for name in AUXILIARY_HEADS]
    others = ["embeddings", "trunk", "loss_weights"]
    known = ["lm_head", "q_head", *auxiliary, *others]
    assert [name for name in groups if name in known] == known
    assert {name for name, group in groups.items() if group.lr is not None} == {"q_head"}
    assert groups["q_head"].lr == 5e-4


# The heads that each part of `heads=` adds to the standard ones.
DETACH = {"detach": False}
MORE: dict[str, dict[str, Any]] = {
    "norm_layer": {"lm": {"norm": "layer"}},
    "[norm_rms,moe]": {"lm": {"name": "moe", "norm": "rms"}},
    "[tied,confidence]": {"lm": {"name": "tied"}, "confidence": DETACH},
    "[confidence,tied]": {"lm": {"name": "tied"}, "confidence": DETACH},
    "[halt,attention]": {"halt": DETACH, "attention": DETACH},
    "enhanced": {"confidence": DETACH, "attention": DETACH},
    "[enhanced,confidence]": {"confidence": DETACH, "attention": DETACH},
    "[factorized,sage]": {
        "lm": {"name": "factorized"},
        "q": None,
        **{"confidence": DETACH, "halt": DETACH},
        **{"action": {"field": "actions"}, "pixel": {"field": "pixels"}},
    },
}


@pytest.mark.parametrize("chosen", MORE)
def test_parts_of_the_heads_together(chosen: str) -> None:
    source = source_of("cfg_pretrain", parse_arguments([]))
    composed = plain(*compose_runs(TrainConfig, source, [[f"heads={chosen}"]]))["arch"]["heads"]
    heads = HeadsConfig.model_validate(MORE[chosen])
    assert HeadsConfig.model_validate(composed) == heads
    # All keys are present, so that overrides can change them.
    assert composed == {key: heads.model_dump()[key] for key in composed}
    assert {key for key, value in heads if value is not None} <= composed.keys()


def test_a_launcher_that_restarts_goes_on_from_the_newest() -> None:
    configure("run_name=mine").check_restarts(3)
    configure("checkpoint_path=runs/mine").check_restarts(3)
    config = configure("resume=3")
    config.check_restarts(0)
    with pytest.raises(ConfigError, match=r"^resume=3: with --max-restarts .*=auto"):
        config.check_restarts(3)
    with pytest.raises(ConfigError, match="max_time: with --max-restarts"):
        configure("max_time=1h").check_restarts(3)
    with pytest.raises(ConfigError, match="^--max-restarts: set run_name"):
        configure().check_restarts(3)


def choices(group: str) -> list[str]:
    """Return all choices of a group but those of apps, which their own tests cover."""
    names = {path.stem for path in (CONFIG_DIR / group).glob("*.yaml")}
    apps = ("attractor", "dec", "graph", "grid", "lattice", "nca")
    return sorted(f"{group}={name}" for name in names if not name.startswith(apps))


@pytest.mark.parametrize(
    "choice", [one for group in ("arch", "data", "experiment") for one in choices(group)]
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
        "lrr=1": ["unknown setting lrr=1; did you mean lr?"],
        "hidden_size=4": ["did you mean arch.hidden_size?"],
        "arch.weight_decay=4": ["did you mean weight_decay?"],
        "optimizer.groups.all.lrr=4": ["did you mean optimizer.groups.all.lr?"],
        "hydra.run.dir=x": ["hydra.run.dir=x: of Hydra's own settings these can be changed: "],
        "lr=-1": ["lr=-1", "greater than or equal to 0"],
        "lr=nan": ["lr=nan", "finite"],
        "lr=true": ["lr=True", "number"],
        "epochs='3'": ["epochs=3", "integer"],
        "seed=18446744073709551616": ["seed=", "less than 18446744073709551616"],
        "arch.pos_encodings=rop": ["arch.pos_encodings=rop", "'rope', 'learned' or 'none'"],
        "eval_save_outputs=[pred]": ["eval_save_outputs.0=pred", "'preds'"],
        "evaluators=[ark]": ["evaluators.0=ark", "arc, rules, sudoku, maze"],
        "evaluators=[{name: maze@Maze}]": ["evaluators.0=maze@Maze", "arc, rules, sudoku, maze"],
        "callbacks=[erly_stop]": ["callbacks.0=erly_stop", "did you mean early_stop?"],
        "callbacks=[{name: early_stop, patince: 3}]": ["did you mean callbacks.0.patience?"],
        "callbacks=[{name: early_stop, patience: 0}]": ["callbacks.0.patience=0", "greater than"],
        "callbacks=[{name: early_stop, mode: up}]": ["callbacks.0.mode=up", "'max' or 'min'"],
        "callbacks=[{name: early_stop, on_error: halt}]": ["callbacks.0.on_error=halt", "'stop'"],
        "callbacks=[notify]": ["callbacks.0.command is not set"],
        "callbacks=[early_stop, {name: early_stop, patience: 3}]": [
            "callbacks: early_stop is there twice"
        ],
        "resume=maybe": ["resume", "maybe", "'auto' or 'never'"],
        "data_path=null": ["no training data", "data_path=FOLDER"],
        "arch=hrm_v2": ["arch=hrm_v2", "hrm_v1", "mixer", "did you mean arch=hrm_v1?"],
        "heads=[tied,moe]": ["heads=[tied,moe]", "tied and moe exclude each other"],
        "heads=[tied,confidance]": ["did you mean heads=confidence? Accepted: action,"],
        "heads=[]": ["heads=[]: no such choice; accepted"],
        "arch=[trm,mixer]": ["arch=[trm,mixer]: no such choice", "trm_singlez"],
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
    {
        "evaluators=[arc]": (["arc"], []),
        "evaluators=[{name: arc@ARC}]": (["arc"], []),
        "evaluators=[{name:arc}, maze]": (["arc", "maze"], []),
        "evaluators=[]": ([], []),
        "": (["arc"], []),
        "data=sudoku": (["sudoku"], []),
        "data=sudoku; evaluators=[]": ([], []),
        "data_path=elsewhere": ([], []),  # As published.
        "data_paths=[data/arc-aug-1000,elsewhere]": ([], []),
        "data_paths_test=[elsewhere]; evaluators=[sudoku]": (["sudoku"], []),
        # The evaluators of data=NAME may measure another folder.
        "experiment=trm_arc_demo; data_path=elsewhere": ([], ["arc"]),
        "data=maze; data_paths_test=[elsewhere]": ([], ["maze"]),
        "data=maze; data_path=elsewhere; evaluators=[]": ([], []),
        "data=maze": (["maze"], []),
    }.items(),
)
def test_evaluators_are_those_asked_for_or_of_the_named_data(
    settings: str, expected: tuple[list[str], list[str]]
) -> None:
    config = configure(*filter(None, settings.split("; ")))
    asked = config.active_evaluators, config.inherited_evaluators
    assert tuple([each.name for each in some] for some in asked) == expected


def test_every_mistake_is_named() -> None:
    with pytest.raises(ConfigError, match=r"lr=-1: .*; beta1=3: "):
        configure("lr=-1", "beta1=3")
    with pytest.raises(ConfigError, match="eval_interval=7 must divide epochs=10: try epochs=7"):
        configure("eval_interval=7", "epochs=10")


@pytest.mark.parametrize(
    ("settings", "world_size", "told"),
    [
        ("global_batch_size=7", 2, "global_batch_size=7 must be a multiple .* 2: try 8"),
        ("eval_batch_size=5", 2, "eval_batch_size=5 must be a multiple .* 2: try 4"),
        (f"{EXACT} global_batch_size=10", 1, "size=10 must be a multiple of 4 .*exact: try 8"),
        (f"{EXACT} global_batch_size=2", 2, "size=2 must be a multiple of 4 .*exact: try 4"),
        (f"{EXACT} eval_batch_size=9", 1, "eval_batch_size=9 must be a multiple of 4 .*: try 8"),
        (EXACT, 3, "the number of ranks, 3, must divide 4; reduction=fast"),
        (EXACT, 8, "the number of ranks, 8, must divide 4; reduction=fast"),
        (f"{OF_24} micro_batch_size=9", 2, "must divide the 12 rows of a rank: try 6"),
        (f"{OF_24} micro_batch_size=4 {EXACT}", 2, "must divide the 6 rows of a shard: try 3"),
        (f"{OF_24} {SPARSE} arch.techniques.sparse_look_ahead.every=5", 2, "divide the 12 rows"),
        (f"{OF_24} {SPARSE} micro_batch_size=6", 2, "every=4 must divide the 6 rows"),
    ],
)
def test_batches_must_be_cut_into_equal_parts(settings: str, world_size: int, told: str) -> None:
    config = configure(*settings.split())
    with pytest.raises(ConfigError, match=told):
        config.check_world_size(world_size)


@pytest.mark.parametrize(
    ("settings", "world_size", "shards", "parts"),
    [
        ("", 1, 1, 1),
        ("", 8, 1, 1),
        (EXACT, 1, 4, 4),
        (EXACT, 2, 2, 2),
        (EXACT, 4, 1, 1),
        ("micro_batch_size=8", 1, 1, 3),
        ("micro_batch_size=8", 3, 1, 1),
        ("micro_batch_size=99", 1, 1, 1),
        (f"micro_batch_size=2 {EXACT}", 1, 4, 12),
        (f"micro_batch_size=2 {EXACT}", 2, 2, 6),
        (f"micro_batch_size=9 {EXACT}", 2, 2, 2),
    ],
)
def test_parts_are_micro_batches_of_shards(
    settings: str, world_size: int, shards: int, parts: int
) -> None:
    config = configure(OF_24, *settings.split())
    config.check_world_size(world_size)
    assert (config.num_shards(world_size), config.num_parts(world_size)) == (shards, parts)


# Entry points


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wh\ny"), 2),
        (errors.DatasetError("why"), 3),
        (errors.CheckpointError("why"), 4),
        (errors.NonFiniteError("why"), 5),
        (errors.LockedError("why"), 6),
        (errors.RankError("why"), 7),
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
    told = {130: "pretrain.py: interrupted\n", 2: "pretrain.py: wh y\n"}
    line = told.get(code, "pretrain.py: why\n")
    assert capsys.readouterr() == ("", line)


def test_a_fault_of_ours_keeps_its_traceback(enter: Callable[..., int]) -> None:
    def fail(overrides: list[str]) -> None:
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        enter(main=fail)
