"""The command lines of the published READMEs are valid and keep their published meaning."""

import shlex
from pathlib import Path

import pytest

from models.hrm.config import HRMConfig
from models.trm.config import TRMConfig
from training.config import source
from training.config.composition import compose_runs, load_config
from training.config.schema import TrainConfig, changed_keys

ROOT = Path(__file__).resolve().parents[3]
RATES = "lr=1e-4 puzzle_emb_lr=1e-4 weight_decay=1.0 puzzle_emb_weight_decay=1.0"
EVALUATED = "epochs=50000 eval_interval=5000"

MODEL = "arch.L_layers=2 arch.H_cycles=3"
RUN = "+run_name=mine ema=True"
TRM_1K = f'evaluators="[]" {EVALUATED} {RATES}'
TRM_SUDOKU = f'arch=trm data_paths="[data/sudoku-extreme-1k-aug-1000]" {TRM_1K}'
TRM_MAZE = f'arch=trm data_paths="[data/maze-30x30-hard-1k]" {TRM_1K}'
# Our recipes, each with its published command.
RECIPES = {
    "hrm_arc_1": "",
    "hrm_arc_2": "data_path=data/arc-2-aug-1000",
    "hrm_sudoku_extreme_1k": "data_path=data/sudoku-extreme-1k-aug-1000 epochs=20000 "
    f"eval_interval=2000 {RATES}",
    "hrm_sudoku_extreme_1k_laptop": "data_path=data/sudoku-extreme-1k-aug-1000 epochs=20000 "
    "eval_interval=2000 global_batch_size=384 lr=7e-5 puzzle_emb_lr=7e-5 weight_decay=1.0 "
    "puzzle_emb_weight_decay=1.0",
    "hrm_maze_30x30_hard_1k": "data_path=data/maze-30x30-hard-1k epochs=20000 eval_interval=2000 "
    f"{RATES}",
    "hrm_sudoku_hard_full": "data_path=data/sudoku-hard-full epochs=100 eval_interval=10 "
    "lr_min_ratio=0.1 global_batch_size=2304 lr=3e-4 puzzle_emb_lr=3e-4 weight_decay=0.1 "
    "puzzle_emb_weight_decay=0.1 arch.loss.loss_type=softmax_cross_entropy arch.L_cycles=8 "
    "arch.halt_max_steps=8 arch.pos_encodings=learned",
    "trm_sudoku_extreme_1k_mlp": f"{TRM_SUDOKU} arch.mlp_t=True arch.pos_encodings=none {MODEL} "
    f"arch.L_cycles=6 {RUN}",
    "trm_sudoku_extreme_1k_att": f"{TRM_SUDOKU} {MODEL} arch.L_cycles=6 {RUN}",
    "trm_maze_30x30_hard_1k": f"{TRM_MAZE} {MODEL} arch.L_cycles=4 {RUN}",
    "trm_maze_30x30_hard_1k_1gpu": f"{TRM_MAZE} global_batch_size=128 {MODEL} arch.L_cycles=4 "
    f"{RUN}",
    "trm_arc_1": f'arch=trm data_paths="[data/arc1concept-aug-1000]" {MODEL} arch.L_cycles=4 {RUN}',
    "trm_arc_2": f'arch=trm data_paths="[data/arc2concept-aug-1000]" {MODEL} arch.L_cycles=4 {RUN}',
}
# Demos and other experiments of ours.
OWN = {
    *("trm_arc_demo", "dec_sudoku_demo", "trm_sudoku_easy"),
    *("trm_arc_1_held_out", "trm_arc_2_held_out"),
    *("trm_sudoku_extreme_1k_held_out", "sic_sudoku_extreme_1k", "dec_sudoku_extreme_1k"),
    *("dec_sudoku_extreme_1k_cpu", "trm_maze_30x30_hard_1k_held_out", "lattice_sudoku_hard"),
    *("lattice_sudoku_extreme_1k", "lattice_sudoku_extreme_1k_ldt"),
    *("attractor_sudoku_extreme_1k", "attractor_maze_30x30_hard_1k", "nca_maze_small"),
    *("dec_latin_square", "futoshiki", "kenken", "nca_light_up", "queens", "nca_maze_hard"),
    *("mixed", "dec_sudoku_variants_cpu", "graph_colouring"),
}


def compose(command: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", shlex.split(command))


@pytest.mark.parametrize(("former", "present"), source._FORMER_RECIPES.items())
def test_a_recipe_keeps_its_former_name(former: str, present: str) -> None:
    home = source.Source("cfg_pretrain", [source.CONFIG_DIR])
    runs = [[f"experiment={former}"], [f"experiment={present}"]]
    old, new = compose_runs(TrainConfig, home, runs)
    assert old == new


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_its_published_command(recipe: str) -> None:
    def essence(config: TrainConfig) -> dict[str, object]:
        # TRM's own default, the way data are named, and names of runs.
        apart = {"run_name", "checkpoint_every_eval", "data", "data_path", "data_paths"}
        settings = config.model_dump(exclude={*apart, "evaluators"})
        return settings | {"train": config.train_paths, "test": config.test_paths}

    config = compose(RECIPES[recipe])
    assert essence(compose(f"experiment={recipe}")) == essence(config)
    if recipe.startswith("hrm"):
        assert isinstance(config.arch, HRMConfig)
        assert not config.ema
        assert config.weight_decay == (1.0 if "1k" in recipe else 0.1)
    else:
        assert isinstance(config.arch, TRMConfig)
        assert config.arch.L_cycles == (6 if "sudoku" in recipe else 4)
        assert (config.arch.puzzle_emb_len, config.arch.no_ACT_continue) == (16, True)
        assert (config.ema, config.ema_rate, config.run_name) == (True, 0.999, "mine")


@pytest.mark.parametrize(
    ("ours", "published"),
    [
        ("trm_sudoku_extreme_1k_held_out", "trm_sudoku_extreme_1k_mlp"),
        ("trm_maze_30x30_hard_1k_held_out", "trm_maze_30x30_hard_1k_1gpu"),
        ("trm_arc_1_held_out", "trm_arc_1"),
        ("trm_arc_2_held_out", "trm_arc_2"),
    ],
)
def test_under_the_protocol_nothing_of_a_recipe_changes_but_the_data(
    ours: str, published: str
) -> None:
    found, expected = (compose(f"experiment={name}") for name in (ours, published))
    assert found.eval_split == "selection"
    changes = changed_keys(expected.model_dump(mode="json"), found.model_dump(mode="json"))
    assert changes == []


def test_every_experiment_is_known_here_and_says_what_it_is() -> None:
    files = {path.stem: path for path in (ROOT / "config" / "experiment").glob("*.yaml")}
    assert files.keys() == RECIPES.keys() | OWN
    for path in files.values():
        head = path.read_text().split("\n\n")[0]
        for word in ("source", "hardware", "time", "expected", "command"):
            assert f"#   {word} " in head, f"{path.name}: {word}"


@pytest.mark.parametrize("module", ["hrm.hrm_act_v1", "recursive_reasoning.hrm"])
def test_published_class_names_are_understood(module: str) -> None:
    name = f"{module}@HierarchicalReasoningModel_ACTV1"
    assert compose(f"arch.name={name} arch.loss.name=losses@ACTLossHead").arch.name == "hrm"
    name = "recursive_reasoning.trm_singlez@TinyRecursiveReasoningModel_ACTV1"
    assert compose(f"arch=trm arch.name={name}").arch.name == "trm_singlez"
