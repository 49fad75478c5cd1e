"""The console command `recursive-reasoning`, from the checkout and from the wheel."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("-m", "recursive_reasoning")
HERE = {"PYTHONPATH": str(ROOT)}
NAMES = ["train", "evaluate", "solve", "adapt", "view", "report", "build"]


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_commands(run_python: Any, arguments: list[str]) -> None:
    finished = run_python(*COMMAND, *arguments, env=HERE)
    listed = [line.split()[0] for line in finished.out.splitlines() if line.startswith("  ")]
    assert (finished.code, listed) == (0, NAMES)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["trian"], 2, "recursive-reasoning: there is no command 'trian'; did you mean train?"),
        (["x"], 2, "recursive-reasoning: there is no command 'x'; accepted: train, evaluate, "),
        (["train", "epohcs=1"], 2, "pretrain.py: unknown setting epohcs=1; did you mean epochs?"),
        (["evaluate", "nowhere"], 4, "evaluate.py: nowhere: no such checkpoint or run folder"),
        (["solve", "checkpoint=nowhere"], 4, "solve.py: nowhere: no such checkpoint"),
        (["view", "nowhere"], 2, "error: nowhere: no such file or folder"),
        (["report", "nowhere"], 2, "report.py: "),
        (["build", "data=nowhere"], 2, "build_dataset.py: data=nowhere: no such choice"),
    ],
)
def test_messages_and_exit_codes_are_those_of_the_entry_points(
    run_python: Any, arguments: list[str], code: int, told: str
) -> None:
    finished = run_python(*COMMAND, *arguments, env=HERE)
    assert finished.code == code
    (line,) = finished.err_lines
    assert line.startswith(told)


@pytest.mark.slow
def test_sweeps_start_their_jobs(run_python: Any, tiny_settings: list[str], tmp_path: Path) -> None:
    swept = ["lr=1e-3,2e-3", "epochs=4", "sweep_name=a", f"hydra.sweep.dir={tmp_path / 'sweeps'}"]
    pool = ["hydra/launcher=pool", "hydra.launcher.max_jobs=2"]
    finished = run_python(
        *COMMAND, "train", "-m", *tiny_settings, *swept, *pool, env=HERE, timeout=240
    )
    assert finished.code == 0, finished.err
    assert len(list((tmp_path / "sweeps" / "a").glob("lr-*/step_*"))) == 2


@pytest.mark.slow
def test_the_wheel_has_the_command(tmp_path: Path, sudoku_data: Path) -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert setup["project"]["scripts"] == {
        "recursive-reasoning": "recursive_reasoning.__main__:main"
    }
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation"]
    copy, wheels, site = (tmp_path / name for name in ("copy", "wheels", "site"))
    tracked = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT)
    for name in tracked.decode().splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*pip, "wheel", *offline, "-w", wheels, copy], check=True)
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "install", *offline, "--target", site, wheel], check=True)
    assert (site / "recursive_reasoning" / "py.typed").exists()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    command = site / "bin" / "recursive-reasoning"
    finished = subprocess.run([command, "solve", "checkpoint=nowhere"], **run)
    assert (finished.returncode, finished.stderr.split(":")[0]) == (4, "solve.py")
    code = "import recursive_reasoning as rr; print(rr.load.__code__.co_filename)"
    shown = subprocess.run([sys.executable, "-c", code], **run)
    assert shown.stdout.startswith(str(site))
