"""The jobs of a command line, and the names of their folders."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from apps.sweeps.jobs import Job, expand, without_overruled
from runtime.errors import ConfigError


def jobs_of(*overrides: str) -> list[Job]:
    return expand(OverridesParser.create().parse_overrides(list(overrides)))


def test_jobs_are_all_combinations_and_the_last_setting_changes_fastest() -> None:
    jobs = jobs_of("experiment=demo", "lr=1e-3,3e-3", "epochs=4", "seed=range(2)")
    assert [job.name for job in jobs] == [
        f"lr-{lr}__seed-{seed}" for lr in (0.001, 0.003) for seed in (0, 1)
    ]
    assert jobs[2].overrides == ("experiment=demo", "epochs=4", "lr=0.003", "seed=0")
    assert jobs[2].values == {"lr": "0.003", "seed": "0"}


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("heads=[tied,confidence],[standard]", ["[tied,confidence]", "[standard]"]),
        ("ema=choice(true,false)", ["True", "False"]),
        ("run_name='a,b',c", ["'a,b'", "c"]),
        ("+optimizer.groups.x.lr=1,2", ["1", "2"]),
    ],
)
def test_values_reach_the_jobs_as_they_were_written(override: str, values: list[str]) -> None:
    key = override.partition("=")[0]
    assert [job.overrides[-1] for job in jobs_of(override)] == [f"{key}={v}" for v in values]


def test_names_show_lists_and_ends_of_paths_in_any_order() -> None:
    swept = ("lr=1", "heads=[tied,confidence],[standard]", "data_path='/a/b c','/a/d/'")
    names = [job.name for job in jobs_of(*swept)]
    assert names[0].startswith("data_path-b.c__heads-tied+confidence.")
    assert names[3].startswith("data_path-d__heads-standard.")
    assert sorted(names) == sorted(job.name for job in jobs_of(*reversed(swept)))
    assert [job.name for job in jobs_of("lr=1")] == ["run"]


def test_the_last_override_of_a_key_counts() -> None:
    parsed = OverridesParser.create().parse_overrides(["lr=1,2", "seed=0,1", "lr=3"])
    assert [override.input_line for override in without_overruled(parsed)] == ["seed=0,1", "lr=3"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("data_path='/a/b','/a b',..", "arch.loss.weights.lm=1,2"),
        ("arch.H_layers=1,2", "arch.L_layers=1,2", "a.lr=1,2", "b.lr=1,2"),
        (f"run_name={'x' * 300}a,{'x' * 300}b",),
    ],
)
def test_names_differ_and_need_no_quotes(overrides: tuple[str, ...]) -> None:
    jobs = jobs_of(*overrides)
    names = {job.name for job in jobs}
    assert len(names) == len(jobs)
    for name in names:
        assert "/" not in name
        assert len(name) < 200
        (parsed,) = OverridesParser.create().parse_overrides([f"checkpoint=multirun/x/{name}"])
        assert parsed.value() == f"multirun/x/{name}"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("lr=interval(0,1)", r"lr=interval\(0,1\): .*hydra/sweeper=optuna"),
        ("arch=glob(x*)", r"arch=glob\(x\*\): list the values"),
        ("seed=range(3,0)", r"seed=range\(3,0\): has no value"),
        ("heads=tied,[tied]", "2 jobs would share the folder heads-tied"),
    ],
)
def test_overrides_that_are_no_grid_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        jobs_of(override)
