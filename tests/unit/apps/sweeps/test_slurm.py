"""Jobs by submitit, with a stand-in for SLURM's commands."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from apps.sweeps.config import SlurmConfig
from apps.sweeps.jobs import Job, digest
from runtime.errors import EXIT_PREEMPTED
from tests.conftest import wait_until

pytest.importorskip("submitit")

SLURM = {"launcher": {"name": "slurm"}}
LONG = ("steps=60", "seconds=0.05")

# A signal reaches only the process that srun started, as when SLURM tracks processes by cgroups.
COMMANDS = r"""#!/bin/bash
cd "$SLURM_STAND_IN"
begin() { SLURM_JOB_ID=$1 setsid bash $1.sh > /dev/null 2>&1 & }
case ${0##*/} in
sbatch)
    number=$(($(ls *.sh 2> /dev/null | wc -l) + 1))
    cp "$1" $number.sh
    begin $number
    echo "Submitted batch job $number" ;;
srun)
    while [ "${1#--}" != "$1" ]; do [ "$1" = --unbuffered ] || shift; shift; done
    echo $$ > $SLURM_JOB_ID.pid
    exec "$@" ;;
scontrol) (sleep 1; begin $2) > /dev/null 2>&1 & ;;
scancel) touch $1.cancelled; kill $(cat $1.pid) ;;
sacct)
    echo "JobID|State|NodeList"
    for script in *.sh; do
        number=${script%.sh} state=COMPLETED
        [ -e $number.cancelled ] && state="CANCELLED by 0"
        kill -0 $(cat $number.pid) 2> /dev/null && state=RUNNING
        echo "$number|$state|node"
    done ;;
esac
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stand-in for SLURM: NUMBER.sh is a job, NUMBER.pid its process id."""
    folder, commands = tmp_path / "slurm", tmp_path / "bin"
    folder.mkdir()
    commands.mkdir()
    for name in ("sbatch", "srun", "scontrol", "scancel", "sacct"):
        (commands / name).write_text(COMMANDS)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("SLURM_STAND_IN", str(folder))
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return folder


def test_a_failed_job_has_its_exit_code(sweep: Any, slurm: Path) -> None:
    code, output = sweep.run(SLURM, "code=0,5")
    assert code == 5, output
    assert sweep.states() == {"code-0": "finished", "code-5": "failed"}


@pytest.mark.slow
def test_ctrl_c_saves_the_running_jobs(sweep: Any, slurm: Path) -> None:
    overrides = ("seed=0,1", *LONG)
    assert sweep.interrupt(SLURM, *overrides, number=signal.SIGINT, jobs=2) == 75
    assert sweep.states() == {"seed-0": "stopped", "seed-1": "stopped"}
    code, output = sweep.run(SLURM, *overrides)
    assert code == 0, output
    assert sweep.steps() == {f"seed-{seed}": list(range(1, 61)) for seed in (0, 1)}


@pytest.mark.slow
def test_a_job_in_the_queue_of_a_killed_sweep_is_not_submitted_again(
    sweep: Any, slurm: Path
) -> None:
    process = sweep.start(SLURM, "seed=0", *LONG)
    wait_until(sweep.steps)
    process.kill()
    process.wait()
    code, output = sweep.run(SLURM, "seed=0", *LONG)
    assert code == 0, output
    assert len(sweep.starts("run")) == len(list(slurm.glob("*.sh"))) == 1
    assert sweep.steps() == {"run": list(range(1, 61))}
    assert list(sweep.folder.glob("logs/*.job")) == []


@pytest.mark.slow
def test_a_job_at_its_time_limit_saves_and_is_queued_again(sweep: Any, slurm: Path) -> None:
    process = sweep.start(SLURM, "seed=0", *LONG)
    wait_until(sweep.steps)
    os.kill(int((slurm / "1.pid").read_text()), signal.SIGUSR2)
    assert process.wait(timeout=60) == 0
    first, second = sweep.starts("run")
    assert first["step"] == 0 < second["step"] < 60
    assert sweep.steps() == {"run": list(range(1, 61))}
    assert len(list(slurm.glob("*.sh"))) == 1


def test_a_job_stopped_in_the_queue_has_no_exit_code_of_an_earlier_one(
    slurm: Path, tmp_path: Path
) -> None:
    from apps.sweeps.slurm import SlurmLauncher

    answers = {"sbatch": "Submitted batch job 1", "sacct": "JobID|State|NodeList\n1|CANCELLED|node"}
    for name, answer in answers.items():  # The job waits until it is cancelled.
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\necho '{answer}'\n")
    launcher = SlurmLauncher(SlurmConfig(), lambda job: ["true"], tmp_path, {})
    (tmp_path / "logs" / "job.code").write_text("5")
    process = launcher.start(Job("job", {}, ()))
    process.stop()
    assert process.poll() == EXIT_PREEMPTED


@pytest.mark.parametrize("state", ["CANCELLED by 0", "NODE_FAIL", "FAILED"])
def test_a_job_that_ended_without_an_exit_code_is_submitted_again(
    slurm: Path, tmp_path: Path, state: str
) -> None:
    import submitit

    from apps.sweeps.slurm import SlurmLauncher

    submitit.SlurmJob.watcher.clear()  # It keeps the states of ended jobs.
    answers = {"sbatch": "Submitted batch job 8", "sacct": f"JobID|State|NodeList\n7|{state}|node"}
    for name, answer in answers.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\necho '{answer}'\n")
    launcher = SlurmLauncher(SlurmConfig(), lambda job: ["true"], tmp_path, {})
    note, code = (tmp_path / "logs" / f"job.{ending}" for ending in ("job", "code"))
    code.write_text("5")
    for number in ("7", "8"):
        note.write_text(f"7 {digest(['true'])}")
        launcher.start(Job("job", {}, ()))
        assert note.read_text().partition(" ")[0] == number
        code.unlink(missing_ok=True)


def test_without_slurm_nothing_starts(sweep: Any) -> None:
    code, output = sweep.run(SLURM, "seed=0")
    assert code == 1
    assert 'hydra/launcher=slurm: Could not detect "srun"' in output
