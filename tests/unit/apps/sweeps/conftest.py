"""A stand-in for an entry point: it counts to a number, saves after each step, and resumes."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until

JOB = """
import json, os, signal, sys, time

from runtime.process import end_with_parent

end_with_parent()
given = dict(argument.split("=", 1) for argument in sys.argv[1:])
folder, asked = given["folder"].strip("'"), []
if "deaf" not in given:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
os.makedirs(folder, exist_ok=True)
log, state = f"{folder}/log.jsonl", f"{folder}/step"
step = int(open(state).read()) if os.path.exists(state) else 0
with open(f"{folder}/starts", "a") as file:
    shown = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "WANDB_RUN_GROUP")}
    file.write(json.dumps({"step": step} | shown | given) + "\\n")
while step < int(given.get("steps", 3)):
    if asked:
        sys.exit(75)
    time.sleep(float(given.get("seconds", 0.01)))
    step += 1
    with open(log, "a") as file:
        score = -abs(float(given.get("lr", 0)) - 0.003) * step
        file.write(json.dumps({"step": step, "score": score}) + "\\n")
    with open(state, "w") as file:
        file.write(str(step))
print(f"the last words of {os.path.basename(folder)}", end="\\n\\n")
sys.exit(int(given.get("code", 0)))
"""

SWEEP = """
import json, sys
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from runtime.errors import ConfigError, Preempted
from runtime.schema import MachineSettings
from apps.sweeps import run
from apps.sweeps.config import LAUNCHERS, SWEEPERS
from apps.sweeps.programs import Plan, Program

job, folder, settings, *overrides = sys.argv[1:]
usual = {"launcher": {"name": "serial"}, "sweeper": {"name": "grid"}}
settings = usual | {"threads": 1, "device": "cpu"} | json.loads(settings)


def read(text, objective):
    records = map(json.loads, text.splitlines())
    return {"eval/score": {record["step"]: record["score"] for record in records}}


class Settings(MachineSettings):
    overrides: list[str]


def load(schema, config_name, flags, jobs):
    if any("lr=wrong" in overrides for overrides in jobs):
        raise ConfigError("lr=wrong")
    given = {"device": settings["device"], "num_threads": settings["threads"]}
    given["sweep_name"] = Path(folder).name
    return [Settings(**given, overrides=overrides) for overrides in jobs]


run.load_configs = load
files = "folder", "{}", "{}/log.jsonl"
program = Program(Path(job), Settings, "", *files, lambda *_: "", read, "eval/score")
plan = Plan(
    OverridesParser.create().parse_overrides(overrides),
    LAUNCHERS[settings["launcher"]["name"]].model_validate(settings["launcher"]),
    SWEEPERS[settings["sweeper"]["name"]].model_validate(settings["sweeper"]),
    Path(folder).parent,
)
try:
    sys.exit(run.run_sweep(program, plan, lambda line: print(line, flush=True)))
except ConfigError as error:
    sys.exit(f"error: {error}")
except Preempted as error:
    print(error)
    sys.exit(75)
"""


class SweepCommand:
    """Starts sweeps of the stand-in, each in its own process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sweep"
        self._output = folder / "output"
        self._job, self._sweep = folder / "job.py", folder / "sweep.py"
        self._job.write_text(JOB)
        self._sweep.write_text(SWEEP)

    def start(self, settings: dict[str, Any], *overrides: str) -> subprocess.Popen[str]:
        arguments = [str(self._job), str(self.folder), json.dumps(settings), *overrides]
        command = [sys.executable, str(self._sweep), *arguments]
        with self._output.open("w") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, text=True)

    def run(self, settings: dict[str, Any], *overrides: str) -> tuple[int, str]:
        code = self.start(settings, *overrides).wait(timeout=120)
        return code, self._output.read_text()

    def interrupt(
        self, settings: dict[str, Any], *overrides: str, number: int, jobs: int = 1
    ) -> int:
        """Start a sweep, send it a signal when `jobs` jobs run, wait for its end, and return its
        exit code.
        """
        process = self.start(settings, *overrides)
        wait_until(lambda: len(self.steps()) == jobs)
        process.send_signal(number)
        code = process.wait(timeout=60)
        if number == signal.SIGKILL:
            wait_until(lambda: not self.processes())
        assert self.processes() == []
        return code

    def processes(self) -> list[int]:
        """The process ids of the running jobs."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"folder='{self.folder}/".encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def steps(self) -> dict[str, list[int]]:
        """The steps that each job has done, in order."""
        return {
            log.parent.name: [json.loads(line)["step"] for line in log.read_text().splitlines()]
            for log in self.folder.glob("*/log.jsonl")
        }

    def starts(self, name: str) -> list[dict[str, Any]]:
        """The starts of a job: its step, settings and environment variables each time."""
        lines = (self.folder / name / "starts").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table."""
        return json.loads((self.folder / "results.json").read_text())["jobs"]

    def states(self) -> dict[str, str]:
        """The state of each job in the table."""
        return {row["name"]: row["state"] for row in self.rows()}


@pytest.fixture
def sweep(tmp_path: Path) -> SweepCommand:
    return SweepCommand(tmp_path)
