"""Answer ARC tasks on Kaggle, where there is no internet.

At home, put the project, what Kaggle's image lacks, and this script into one folder, and upload it
as a data set, together with a trained run if you want to start from one:

    pip wheel --no-deps --wheel-dir arc-solver . \
        hydra-core omegaconf antlr4-python3-runtime==4.9.3 coolname \
        "python-sat>=1.8.dev13"
    cp examples/kaggle/submit.py arc-solver

In the notebook, with the settings of `recursive-reasoning adapt`:

    !python /kaggle/input/arc-solver/submit.py \
        /kaggle/input/arc-prize-2025/arc-agi_test_challenges.json adapt.max_time=11h

It writes submission.json into the working folder. The tasks are dealt out to the GPUs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(challenges: Path, settings: list[str]) -> None:
    """Install the project, adapt to all tasks and join the answers."""
    try:
        tasks = json.loads(challenges.read_bytes())
    except (OSError, ValueError) as error:
        sys.exit(f"{challenges}: {error}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", HERE]
    subprocess.run([*pip, "recursive-reasoning"], check=True)
    number = max(1, min(num_gpus(), len(tasks)))
    dealt = [dict(list(tasks.items())[worker::number]) for worker in range(number)]
    workers = [start(worker, some, settings) for worker, some in enumerate(dealt)]
    failed = [worker for worker, process in enumerate(workers) if process.wait()]
    answers = {}
    for worker, some in enumerate(dealt):
        # An earlier run with more or fewer GPUs has left other tasks there.
        written = Path(f"worker_{worker}/submission.json")
        found = json.loads(written.read_bytes()) if written.exists() else {}
        answers |= {name: found[name] for name in some if name in found}
    # A task without an answer would make the whole submission invalid.
    complete = {name: answers.get(name) or no_answers(task) for name, task in tasks.items()}
    Path("submission.json").write_text(json.dumps(complete))
    sys.stdout.write(f"submission.json: {len(answers)} of {len(tasks)} tasks answered\n")
    if failed:
        sys.exit(f"workers {failed} failed; run it again to go on where they stood")


def no_answers(task: object) -> list:
    """Return empty answers, one for a malformed task."""
    tests = task.get("test") if isinstance(task, dict) else None
    number = len(tests) if isinstance(tests, list) else 0
    return [{"attempt_1": [[0]], "attempt_2": [[0]]}] * max(1, number)


def num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def start(worker: int, tasks: dict, settings: list[str]) -> subprocess.Popen:
    """Adapt to some of the tasks, on a GPU of its own if there is one."""
    folder = Path(f"worker_{worker}")
    folder.mkdir(exist_ok=True)
    (folder / "tasks.json").write_text(json.dumps(tasks))
    command = [sys.executable, "-m", "recursive_reasoning", "adapt", f"tasks={folder}/tasks.json"]
    command += [f"output={folder}/submission.json", *settings]
    return subprocess.Popen(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": str(worker)})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: submit.py CHALLENGES.json [KEY=VALUE ...]")
    main(Path(sys.argv[1]), sys.argv[2:])
