"""Many command lines at once give what each one gives alone, also where they are wrong."""

import pytest

from runtime.errors import ConfigError
from training.config.composition import load_config, load_configs
from training.config.schema import TrainConfig

RUNS = [
    ("lr=1e-3",),
    ("lr=1e-3", "arch=trm", "arch.L_cycles=3"),
    ("arch=trm", "+run_name='a,b'", "arch.L_cycles=4"),
    ("heads=[tied,confidence]", "experiment=sudoku_demo", "lr=1.0"),
    ("experiment=null", "optimizer=grouped", "+optimizer.groups.mine.params=[*.bias]"),
    ("data_paths=[a,b]", "arch.heads.lm.dropout=0.1", "seed=1", "seed=2"),
]


def test_many_command_lines_give_what_each_gives() -> None:
    runs = [*RUNS, *RUNS]
    alone = [load_config(TrainConfig, "cfg_pretrain", run) for run in RUNS]
    assert load_configs(TrainConfig, "cfg_pretrain", [], runs) == [*alone, *alone]


@pytest.mark.parametrize(
    "wrong",
    [
        "lr=much",
        "hiden_size=3",
        "arch=hrm_v7",
        "arch.pos_encodings=some",
        "arch.L_cycles=0",
        "~lr",
        "lr",
    ],
)
def test_mistakes_are_told_in_the_same_words(wrong: str) -> None:
    with pytest.raises(ConfigError) as alone:
        load_config(TrainConfig, "cfg_pretrain", [wrong])
    with pytest.raises(ConfigError) as among_others:
        load_configs(TrainConfig, "cfg_pretrain", [], [*RUNS, [wrong]])
    assert str(among_others.value) == str(alone.value)
