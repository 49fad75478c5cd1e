"""The examples for SLURM and Kubernetes, tested without these schedulers."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.errors import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_DATA, EXIT_NON_FINITE, EXIT_PREEMPTED
from tests.conftest import wait_until
from training.config.composition import load_config
from training.config.schema import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / "scripts" / "launch_slurm.sh"
RENDEZVOUS_PORT = 20007
STAND_INS = {
    # Stands for one node, and writes the process's number for signals.
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\necho $$ > "$TASKS"\nexec "$@"',
    "scontrol": 'case $1 in show) echo localhost ;; *) echo "$@" >> "$REQUESTS" ;; esac',
}


@pytest.fixture
def job(tmp_path: Path, start_command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that starts the SLURM script as job 7 on one node with two ranks."""
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost", "SLURM_SUBMIT_DIR": str(ROOT)}
    environment = slurm | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHON": sys.executable,
        "RANKS_PER_NODE": "2",
        "TASKS": str(tmp_path / "tasks"),
        "REQUESTS": str(tmp_path / "requests"),
    }

    def begin(*settings: str, nodes: int = 1) -> Any:
        own = environment | {"SLURM_JOB_NUM_NODES": str(nodes)}
        return start_command("bash", SLURM, *settings, env=own)

    return begin


def ended(process: Any, code: int, told: str = "") -> None:
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, (out, err)
    assert told in out + err


@pytest.mark.slow
def test_a_preempted_slurm_job_is_requeued_and_resumes(
    job: Any, tiny_settings: list[str], files: Any, tmp_path: Path
) -> None:
    settings = [*tiny_settings, "log_interval=1", "epochs=4000"]
    process = job(*settings)
    metrics = tmp_path / "run" / "metrics.jsonl"

    def trains() -> bool:
        assert process.poll() is None, process.communicate()
        return metrics.exists() and metrics.read_bytes().count(b"\n") >= 5

    wait_until(trains)
    os.kill(int((tmp_path / "tasks").read_text()), signal.SIGTERM)
    ended(process, EXIT_PREEMPTED)
    assert (tmp_path / "requests").read_text() == "requeue 7\n"
    (step,) = files.steps
    told = f"resumed exactly from {tmp_path / 'run' / f'step_{step}'}"
    ended(job(*settings, f"max_steps={step + 3}"), 0, told)
    assert (tmp_path / "requests").read_text() == "requeue 7\n"


@pytest.mark.parametrize("moment", ["before torchrun starts", "before the other node starts"])
def test_a_slurm_job_preempted_before_its_ranks_start_is_requeued(
    job: Any, tmp_path: Path, moment: str
) -> None:
    process = job(nodes=2)
    tasks = tmp_path / "tasks"
    wait_until(lambda: tasks.exists() and tasks.read_text().endswith("\n"))
    pid = int(tasks.read_text())
    wait_until(lambda: handles_sigterm(pid))
    if moment == "before the other node starts":
        wait_until(lambda: listens(RENDEZVOUS_PORT))
    os.kill(pid, signal.SIGTERM)
    ended(process, EXIT_PREEMPTED)
    assert (tmp_path / "requests").read_text() == "requeue 7\n"


def handles_sigterm(pid: int) -> bool:
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("localhost", port)) == 0


@pytest.mark.slow
def test_a_slurm_job_with_a_wrong_setting_is_not_requeued(job: Any, tmp_path: Path) -> None:
    ended(job("hiden_size=3"), EXIT_CONFIG, "unknown setting hiden_size=3")
    assert not (tmp_path / "requests").exists()


def test_the_slurm_script_has_valid_syntax_and_the_needed_options() -> None:
    subprocess.run(["bash", "-n", SLURM], check=True)
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", SLURM.read_text(), re.MULTILINE))
    assert asked["ntasks-per-node"] == "1"
    assert "requeue" in asked
    assert asked["open-mode"] == "append"
    name, _, seconds = asked["signal"].partition("@")
    assert name == "TERM"
    (patience,) = re.findall(r"SHUTDOWN_TIMEOUT=(\d+)", SLURM.read_text())
    assert int(patience) < int(seconds)


def test_the_kubernetes_job_matches_its_runtime_and_the_exit_codes() -> None:
    text = (ROOT / "scripts" / "kubernetes_trainjob.yaml").read_text()
    runtime, job = yaml.safe_load_all(text)
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (nodes,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = nodes["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never"
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    patience = int(environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert patience < pod["terminationGracePeriodSeconds"]

    rules = nodes["template"]["spec"]["podFailurePolicy"]["rules"]
    codes = {r["action"]: set(r["onExitCodes"]["values"]) for r in rules if "onExitCodes" in r}
    fatal = {EXIT_CONFIG, EXIT_DATA, EXIT_CHECKPOINT, EXIT_NON_FINITE}
    assert codes == {"Ignore": {EXIT_PREEMPTED}, "FailJob": fatal}
    command = job["spec"]["trainer"]["command"]
    script = command.index("pretrain.py")
    assert (ROOT / command[1]).is_file()
    config = load_config(TrainConfig, "cfg_pretrain", command[script + 1 :])
    assert config.run_name is not None
    folders = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any(Path(str(config.checkpoint_path)).is_relative_to(folder) for folder in folders)
