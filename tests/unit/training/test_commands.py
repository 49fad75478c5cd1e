"""The command lines of the published READMEs compose, validate, and mean what they mean there."""

import shlex
from pathlib import Path

import pytest

from models.config import HRMConfig, TRMConfig
from training.config.composition import load_config
from training.config.schema import TrainConfig

ROOT = Path(__file__).resolve().parents[3]
RATES = "lr=1e-4 puzzle_emb_lr=1e-4 weight_decay=1.0 puzzle_emb_weight_decay=1.0"
EVALUATED = "epochs=50000 eval_interval=5000"

HRM_COMMANDS = {
    "arc 1": "",
    "arc 2": "data_path=data/arc-2-aug-1000",
    "sudoku": f"data_path=data/sudoku-extreme-1k-aug-1000 epochs=20000 eval_interval=2000 {RATES}",
    "sudoku on a laptop": "data_path=data/sudoku-extreme-1k-aug-1000 epochs=20000 "
    "eval_interval=2000 global_batch_size=384 lr=7e-5 puzzle_emb_lr=7e-5 weight_decay=1.0 "
    "puzzle_emb_weight_decay=1.0",
    "maze": f"data_path=data/maze-30x30-hard-1k epochs=20000 eval_interval=2000 {RATES}",
    "full sudoku": "data_path=data/sudoku-hard-full epochs=100 eval_interval=10 lr_min_ratio=0.1 "
    "global_batch_size=2304 lr=3e-4 puzzle_emb_lr=3e-4 weight_decay=0.1 "
    "puzzle_emb_weight_decay=0.1 arch.loss.loss_type=softmax_cross_entropy arch.L_cycles=8 "
    "arch.halt_max_steps=8 arch.pos_encodings=learned",
}
TRM_COMMANDS = {
    "sudoku mlp": 'arch=trm data_paths="[data/sudoku-extreme-1k-aug-1000]" evaluators="[]" '
    f"{EVALUATED} {RATES} arch.mlp_t=True arch.pos_encodings=none arch.L_layers=2 "
    "arch.H_cycles=3 arch.L_cycles=6 +run_name=mine ema=True",
    "sudoku attention": 'arch=trm data_paths="[data/sudoku-extreme-1k-aug-1000]" '
    f'evaluators="[]" {EVALUATED} {RATES} arch.L_layers=2 arch.H_cycles=3 arch.L_cycles=6 '
    "+run_name=mine ema=True",
    "maze": f'arch=trm data_paths="[data/maze-30x30-hard-1k]" evaluators="[]" {EVALUATED} {RATES} '
    "arch.L_layers=2 arch.H_cycles=3 arch.L_cycles=4 +run_name=mine ema=True",
    "maze on one GPU": 'arch=trm data_paths="[data/maze-30x30-hard-1k]" evaluators="[]" '
    f"{EVALUATED} {RATES} global_batch_size=128 arch.L_layers=2 arch.H_cycles=3 arch.L_cycles=4 "
    "+run_name=mine ema=True",
    "arc 1": 'arch=trm data_paths="[data/arc1concept-aug-1000]" arch.L_layers=2 arch.H_cycles=3 '
    "arch.L_cycles=4 +run_name=mine ema=True",
    "arc 2": 'arch=trm data_paths="[data/arc2concept-aug-1000]" arch.L_layers=2 arch.H_cycles=3 '
    "arch.L_cycles=4 +run_name=mine ema=True",
}
# A recipe of ours -> the published command that it stands for.
RECIPES = {
    "hrm_arc_1": HRM_COMMANDS["arc 1"],
    "hrm_arc_2": HRM_COMMANDS["arc 2"],
    "hrm_sudoku_extreme_1k": HRM_COMMANDS["sudoku"],
    "hrm_sudoku_extreme_1k_laptop": HRM_COMMANDS["sudoku on a laptop"],
    "hrm_maze_30x30_hard_1k": HRM_COMMANDS["maze"],
    "hrm_sudoku_hard_full": HRM_COMMANDS["full sudoku"],
    "trm_sudoku_extreme_1k_mlp": TRM_COMMANDS["sudoku mlp"],
    "trm_sudoku_extreme_1k_att": TRM_COMMANDS["sudoku attention"],
    "trm_maze_30x30_hard_1k": TRM_COMMANDS["maze"],
    "trm_maze_30x30_hard_1k_1gpu": TRM_COMMANDS["maze on one GPU"],
    "trm_arc_1": TRM_COMMANDS["arc 1"],
    "trm_arc_2": TRM_COMMANDS["arc 2"],
}
# Demos and other experiments of ours.
OWN = {"arc_demo", "sudoku_demo", "sudoku_demo_hard"}


def compose(command: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", shlex.split(command))


@pytest.mark.parametrize("name", HRM_COMMANDS)
def test_commands_of_hrm(name: str) -> None:
    config = compose(HRM_COMMANDS[name])
    assert isinstance(config.arch, HRMConfig)
    assert not config.ema
    small = name not in ("arc 1", "arc 2", "full sudoku")
    assert config.weight_decay == (1.0 if small else 0.1)


@pytest.mark.parametrize("name", TRM_COMMANDS)
def test_commands_of_trm(name: str) -> None:
    config = compose(TRM_COMMANDS[name])
    assert isinstance(config.arch, TRMConfig)
    assert (config.arch.H_cycles, config.arch.L_layers) == (3, 2)
    assert config.arch.L_cycles == (6 if "sudoku" in name else 4)
    assert config.arch.puzzle_emb_len == 16
    assert config.arch.no_ACT_continue
    assert (config.ema, config.ema_rate) == (True, 0.999)
    assert config.run_name == "mine"
    assert len(config.train_paths) == 1
    assert config.train_paths[0].startswith("data/")


def test_the_command_of_full_sudoku_changes_the_model() -> None:
    arch = compose(HRM_COMMANDS["full sudoku"]).arch
    assert isinstance(arch, HRMConfig)
    assert arch.loss.loss_type == "softmax_cross_entropy"
    assert (arch.L_cycles, arch.halt_max_steps, arch.pos_encodings) == (8, 8, "learned")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_its_published_command(recipe: str) -> None:
    def essence(config: TrainConfig) -> dict[str, object]:
        # TRM's own default; how data are named; names of runs.
        apart = {"run_name", "checkpoint_every_eval", "data", "data_path", "data_paths"}
        apart |= {"evaluators"}
        settings = config.model_dump(exclude=apart)
        return settings | {"train": config.train_paths, "test": config.test_paths}

    assert essence(compose(f"experiment={recipe}")) == essence(compose(RECIPES[recipe]))


def test_every_experiment_is_known_here_and_says_what_it_is() -> None:
    files = {path.stem: path for path in (ROOT / "config" / "experiment").glob("*.yaml")}
    assert files.keys() == RECIPES.keys() | OWN
    for path in files.values():
        head = path.read_text().split("\n\n")[0]
        for word in ("source", "hardware", "time", "expected", "command"):
            assert f"#   {word} " in head, f"{path.name}: {word}"


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1", "hrm"),
        ("recursive_reasoning.hrm@HierarchicalReasoningModel_ACTV1", "hrm"),
    ],
)
def test_published_class_names_are_understood(name: str, own: str) -> None:
    assert compose(f"arch.name={name} arch.loss.name=losses@ACTLossHead").arch.name == own


def test_published_class_names_of_trm_are_understood() -> None:
    name = "recursive_reasoning.trm_singlez@TinyRecursiveReasoningModel_ACTV1"
    assert compose(f"arch=trm arch.name={name}").arch.name == "trm_singlez"
