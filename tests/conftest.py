"""Fixtures: tiny data sets, tiny training runs in this process, entry points in other processes."""

import gc
import hashlib
import itertools
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from dataset.arc.augmentation import augment_grid, format_identifier
from dataset.format.schema import PuzzleDatasetMetadata, PuzzleSet
from dataset.format.writing import write_puzzles, write_split
from dataset.sudoku.rules import EMPTY_TOKEN
from dataset.sudoku.symmetries import augment_sudoku

ROOT = Path(__file__).resolve().parent.parent


# Data


@pytest.fixture(scope="session")
def sudoku_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a set of 4x4 Sudokus: 8 training groups of 1 + 3 puzzles, 10 test puzzles."""
    folder = tmp_path_factory.mktemp("sudoku-4x4")
    solution = np.array([[1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]], np.uint8) + 1
    _, answers = augment_sudoku(solution, solution, 17, seed=0)
    is_clue = np.random.default_rng(0).random(answers.shape) < 0.6
    questions = np.where(is_clue, answers, EMPTY_TOKEN).astype(np.uint8)
    for split, rows, num_aug in (("train", slice(0, 8), 3), ("test", slice(8, 18), 0)):
        inputs, labels = augment_sudoku(questions[rows], answers[rows], num_aug, seed=1)
        views = 1 + num_aug
        write_puzzles(folder / split, inputs, labels, vocab_size=6, views=views, kind="sudoku")
    (folder / "identifiers.json").write_text('["<blank>"]\n')
    return folder


@pytest.fixture(scope="session")
def tasks_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks as in ARC: 6 groups of 2 puzzles of 1 to 3 examples each, some labels ignored. A label
    is the input plus the puzzle's identifier modulo 3, so the model needs the puzzle embedding.
    """
    folder = tmp_path_factory.mktemp("tasks")
    rng = np.random.default_rng(0)
    sizes = np.array([1, 3, 2, 3, 1, 2, 3, 3, 1, 2, 2, 1])
    for split in ("train", "test"):
        ids = np.repeat(np.arange(1, 13), sizes)
        inputs = rng.integers(2, 8, (len(ids), 9))
        labels = 2 + (inputs - 2 + ids[:, None]) % 3
        labels[rng.random(labels.shape) < 0.2] = 0
        _write(folder / split, 8, inputs, labels, sizes, group_size=2)
    return folder


def _write(
    folder: Path, vocab: int, inputs: Any, labels: Any, sizes: Sequence[int], *, group_size: int
) -> None:
    """Write a split of puzzles with `sizes` examples; each puzzle has its own identifier."""
    puzzles = len(sizes)
    metadata = PuzzleDatasetMetadata(
        **dict.fromkeys(("pad_id", "ignore_label_id", "blank_identifier_id"), 0),
        vocab_size=vocab,
        seq_len=inputs.shape[1],
        num_puzzle_identifiers=1 + puzzles,
        total_groups=puzzles // group_size,
        mean_puzzle_examples=len(inputs) / puzzles,
        sets=("all",),
        total_puzzles=puzzles,
    )
    offsets = np.concatenate([[0], np.cumsum(sizes)]), np.arange(0, puzzles + 1, group_size)
    arrays = PuzzleSet(inputs, labels, np.arange(1, 1 + puzzles), *offsets)
    write_split(folder, metadata, {"all": arrays})


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that closes a path, as in a folder that one may not enter. Only the last
    one stays closed.
    """
    closed, stat = list[Path](), Path.stat

    def refused(path: Path, **options: Any) -> os.stat_result:
        if closed[-1:] == [path]:
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    return closed.append


@pytest.fixture
def swapped_arc_data(arc_data: Path, tmp_path: Path) -> Path:
    """The same as `arc_data`, but the identifiers have the names of other tasks."""
    folder = Path(shutil.copytree(arc_data, tmp_path / "swapped"))
    blank, *names = json.loads((folder / "identifiers.json").read_text())
    (folder / "identifiers.json").write_text(json.dumps([blank, *reversed(names)]))
    return folder


@pytest.fixture(scope="session")
def arc_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three evaluation tasks of ARC on 5 x 5 canvases, with 4 augmentations each. Their two
    demonstration pairs are the training split. Task "one" has one test pair, "two" has two, "open"
    has one without an output.
    """
    folder = tmp_path_factory.mktemp("arc")
    rng = np.random.default_rng(0)

    def pair() -> dict[str, list[list[int]]]:
        shapes = rng.integers(1, 5, (2, 2))
        grids = [rng.integers(0, 10, shape).tolist() for shape in shapes]
        return {"input": grids[0], "output": grids[1]}

    tasks = {
        name: {"train": [pair(), pair()], "test": [pair() for _ in range(num_tests)]}
        for name, num_tests in (("one", 1), ("two", 2), ("open", 1))
    }
    del tasks["open"]["test"][0]["output"]
    names: list[str] = ["<blank>"]
    rows: dict[str, list[Any]] = {"train": [], "test": []}
    sizes: dict[str, list[int]] = {"train": [], "test": []}
    for task, view in itertools.product(tasks, (0, 1, 4, 6)):
        colours = np.arange(10, dtype=np.uint8)
        if view:
            colours[1:] = 1 + rng.permutation(9)
        names.append(format_identifier(task, view, colours) if view else task)
        for split, pairs in tasks[task].items():
            for example in pairs:
                grids = (np.array(example.get(key, [[]]), np.uint8) for key in ("input", "output"))
                views = [augment_grid(grid, view, colours) for grid in grids]
                rows[split].append([_arc_canvas(grid) for grid in views])
            sizes[split].append(len(pairs))
    for split in ("train", "test"):
        inputs, labels = np.array(rows[split]).swapaxes(0, 1)
        _write(folder / split, 12, inputs, labels, sizes[split], group_size=4)
    (folder / "identifiers.json").write_text(json.dumps(names))
    (folder / "test_puzzles.json").write_text(json.dumps(tasks))
    return folder


def _arc_canvas(grid: np.ndarray) -> np.ndarray:
    canvas = np.zeros((5, 5), np.uint8)
    if grid.size:
        height, width = grid.shape
        canvas[: height + 1, : width + 1] = 1
        canvas[:height, :width] = grid + 2
    return canvas.reshape(-1)


# Runs


_TINY = {"H_layers": 1, "L_layers": 1, "hidden_size": 32, "num_heads": 2, "expansion": 1}
_TINY |= {"halt_max_steps": 3, "forward_dtype": "float32"}
TINY_ARCH = tuple(f"arch.{name}={value}" for name, value in _TINY.items())
TINY_RUN = """global_batch_size=8 epochs=16 eval_interval=4 lr=1e-2 lr_min_ratio=0.1
    lr_warmup_steps=3 log_interval=3 checkpoint_interval=null num_threads=1 device=cpu compile=false
    logger.name=jsonl"""


@pytest.fixture
def tiny_settings(sudoku_data: Path, tmp_path: Path) -> list[str]:
    """Overrides of a run of 16 steps on `sudoku_data` in `tmp_path / "run"`, with an evaluation
    after every 4 steps. A test appends its own overrides: the last value of a key counts.
    """
    places = (f"data_path={sudoku_data}", f"checkpoint_path={tmp_path / 'run'}")
    return [*places, *TINY_ARCH, *TINY_RUN.split()]


@pytest.fixture(scope="session")
def gpu() -> str:
    """The device of tests marked `gpu`: cuda, or the CPU with GPU_REHEARSAL=1."""
    import torch

    if os.environ.get("GPU_REHEARSAL"):
        return "cpu"
    if not torch.cuda.is_available():
        pytest.fail("torch sees no CUDA device")  # Only tests run with `-m gpu` use it.
    return "cuda"


@pytest.fixture(autouse=True)
def _restored_host() -> Iterator[None]:
    """Restore the process-wide settings that a run changes."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def train() -> Callable[[Sequence[str]], None]:
    """Run `pretrain.main` in this process."""
    import pretrain

    return lambda settings: pretrain.main(list(settings))


@pytest.fixture
def run_evaluation() -> Callable[..., dict[str, Any]]:
    """Run `evaluate.main` in this process. Return the JSON that it wrote to `output`."""
    import evaluate

    def run(output: Path, *settings: str) -> dict[str, Any]:
        evaluate.main([*settings, f"output={output}", "device=cpu", "num_threads=1"])
        return json.loads(output.read_bytes())

    return run


@pytest.fixture
def signal_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that arms a run to send signals to this process in the middle of a step."""
    from training.trainer import Trainer

    train_step = Trainer._train_step

    def arm(step: int, *numbers: int) -> None:
        def interrupted(trainer: Trainer, batch: Any) -> None:
            if trainer.progress.step + 1 == step:
                for number in numbers:
                    os.kill(os.getpid(), number)
            train_step(trainer, batch)

        monkeypatch.setattr(Trainer, "_train_step", interrupted)

    return arm


_PLACE = ("step", "iteration", "position", "best_score", "best_step", "score", "diagnostics")
_PLACE += ("data_fingerprint",)


@dataclass(frozen=True)
class RunFiles:
    """The files of a run."""

    folder: Path

    @property
    def steps(self) -> list[int]:
        """The steps of its checkpoints, ascending."""
        return sorted(int(path.name[len("step_") :]) for path in self.folder.glob("step_[0-9]*"))

    @property
    def all_records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl without times and memory, which differ from run to run."""
        measured = ("speed/", "memory/")
        return [
            {name: value for name, value in record.items() if not name.startswith(measured)}
            for record in self.all_records
        ]

    @property
    def train_records(self) -> list[dict[str, Any]]:
        return [record for record in self.records if "train/lr" in record]

    @property
    def eval_records(self) -> list[dict[str, Any]]:
        return [record for record in self.records if "train/lr" not in record]

    def state(self, step: int) -> dict[str, Any]:
        return json.loads((self.folder / f"step_{step}" / "state.json").read_bytes())

    def digest(self, step: int | None = None) -> dict[str, Any]:
        """Return all parts of a checkpoint (by default the last) that must not depend on where the
        run was interrupted: sha256 of its tensors and of its records, and its place in the run.
        """
        step = self.steps[-1] if step is None else step
        names = [f"{name}.safetensors" for name in ("model", "optimizer", "carry", "rng")]
        paths = [self.folder / f"step_{step}" / name for name in names]
        paths += (self.folder / f"step_{step}").glob("ema.safetensors")
        contents = {path.name: path.read_bytes() for path in paths}
        contents["metrics.jsonl"] = "".join(map(json.dumps, self.records)).encode()
        state = self.state(step)
        place = {name: state[name] for name in _PLACE}
        return place | {name: hashlib.sha256(own).hexdigest() for name, own in contents.items()}

    def leftovers(self) -> list[str]:
        """Return the names of temporary files and of files about to be deleted."""
        return sorted(path.name for path in self.folder.rglob(".*"))


@pytest.fixture
def files_of() -> Callable[[Path], RunFiles]:
    """Return the files of a run's folder."""
    return RunFiles


@pytest.fixture
def run(
    tiny_settings: list[str], train: Callable[[Sequence[str]], None], files_of: Any, tmp_path: Path
) -> Callable[..., Any]:
    """Train with `tiny_settings` and more in `tmp_path / name`. Return the run's files."""

    def run_with(*more: str, name: str = "run") -> Any:
        train([*tiny_settings, f"checkpoint_path={tmp_path / name}", *more])
        return files_of(tmp_path / name)

    return run_with


# Folders of runs, written without training


SOLUTION = [2, 3, 4, 5, 4, 5, 2, 3, 3, 2, 5, 4, 5, 4, 3, 2]  # A Sudoku of 4 x 4 cells, as tokens.


@pytest.fixture
def make_run_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write the folder of a run, without tensors: `steps` steps with evaluations in the middle and
    at the end (`score` of 20 puzzles right), one warning, a checkpoint, files of evaluations (one
    with its records), and an ARC task. `settings` are added to the settings of the run.
    """

    def make(
        name: str = "run",
        *,
        steps: int = 40,
        score: float = 0.75,
        settings: Mapping[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / name
        (folder / f"step_{steps}").mkdir(parents=True)
        config = {"project_name": "Trials", "run_name": name, "data_path": "data/easy", "lr": 1e-3}
        config |= {"epochs": 4, "eval_interval": 2, "global_batch_size": 8, "ema": True}
        config["arch"] = {"name": "trm", "hidden_size": 32, "halt_max_steps": 4}
        config["max_steps"] = None
        state = {"step": steps, "iteration": 2, "position": 0, "best_score": score}
        state |= {"seconds": 370.5, "total_steps": steps, "environment": {"device": "cpu"}}
        state["config"] = {"epochs": 4, "eval_interval": 2}
        written = {
            "config.yaml": json.dumps(config | dict(settings or {})),
            "metrics.jsonl": "".join(f"{json.dumps(line)}\n" for line in _metrics(steps, score)),
            f"step_{steps}/state.json": json.dumps(state),
            **_evaluation(steps, score),
        }
        for file, content in written.items():
            (folder / file).write_text(content)
        return folder

    return make


def _metrics(steps: int, score: float) -> Iterator[dict[str, Any]]:
    for step in range(1, steps + 1):
        record: dict[str, Any] = {"step": step, "train/lr": 1e-3, "train/lr/all": 1e-3}
        record |= {"train/lm_loss": 2.0 / step, "train/q_halt_loss": 0.5, "train/count": 4.0}
        record |= {"train/accuracy": 0.9, "train/exact_accuracy": step / steps, "train/steps": 3.0}
        record |= {"train/grad_norm/all": 1.0 / step}
        if step == steps // 2:
            record |= {"diagnose/entropy": 0.99, "diagnose/weight/lm": 1.0}
            record["diagnose/warnings"] = [f"after step {step} the logits are flat"]
        if step % 4 == 0:
            record |= {"speed/examples_per_second": 80.0 + step, "speed/ms_per_step": 100.0}
            record |= {"speed/step_ms": 97.5, "speed/data_ms": 0.5, "speed/logging_ms": 2.0}
            record |= {"speed/share_of_peak": 0.25, "memory/process_gib": 0.5}
        yield record
        if step in (steps // 2, steps):
            figures = {"count": 20.0, "exact_accuracy": score, "accuracy": 0.95, "steps": 4.0}
            yield {"step": step} | {f"eval/{name}": value for name, value in figures.items()}


def _evaluation(steps: int, score: float) -> dict[str, str]:
    """Return the files of an evaluation of 20 puzzles. Two of the wrong answers are kept."""
    right = round(20 * score)
    shares = {"value": right / 20, "low": 0.5, "high": 0.9}
    metrics = {"exact_accuracy": shares, "accuracy": shares, "steps": {"value": 4.0}}
    facts = {"checkpoint": f"run/step_{steps}", "step": steps, "data": ["data/easy/test"]}
    facts["arch"] = {"name": "trm", "halt_max_steps": 4}
    result = {
        **facts,
        "num_parameters": 12345,
        "metrics": {"count": 20.0, "exact_accuracy": right / 20},
        "sets": {"all": {"num_examples": 20, "count": 20, "metrics": metrics}},
        "evaluators": {"sudoku": {"metrics": {"valid": 0.5}, "details": {}, "files": []}},
    }
    header = "set,index,rating,clues,exact_accuracy,accuracy,steps,q_halt"
    lines = [f"{header},right_after_1,right_after_2,right_after_3,right_after_4"]
    for index in range(20):
        is_right = int(index < right)
        own = f"all,{index},{index},{30 - index},{is_right},0.9,4,{0.9 if is_right else 0.2}"
        lines.append(f"{own},0,{int(index < right / 2)},{is_right},{is_right}")
    failure = {"index": 19, "q_halt": 0.2, "cells_wrong": 1, "cells_labelled": 16}
    failure |= {"inputs": [1, 1, *SOLUTION[2:]], "labels": SOLUTION, "answer": [3, *SOLUTION[1:]]}
    confusion = [[0] * 6, [0] * 6, [0, 0, 90, 10, 0, 0], [0, 0, 0, 100, 0, 0], [0] * 6, [0] * 6]
    confidence = {"count": [0] * 8 + [50, 150], "right": [0] * 8 + [40, 140]}
    confidence["mean"] = [None] * 8 + [0.85, 0.95]
    failures = {"surest": [failure], "most_wrong": [failure | {"index": 18}]}
    of_set = {"confusion": confusion, "confidence": confidence, "failures": failures}
    grid = {"votes": 3, "mean_q": 0.5, "grid": [[1, 2], [3, 4]]}
    ballot = {"votes": 4, "num_grids": 2, "known": True, "solved_at": 1, "grids": [grid]}
    chain = {"set_name": "all", "depth": 4, "breadth": 1, "select": "q", "num_puzzles": 20}
    chain |= {**dict.fromkeys(("single", "selected", "oracle", "spurious"), shares), "calls": 4}
    searcher = {"set_name": "all", "searcher": "model", "num_puzzles": 20, "calls": [9.0, 8, 16]}
    searcher |= {**dict.fromkeys(("solved", "wrong", "abstained", "at_once"), shares)}
    searcher |= {"solved_within": {"1": 0.0, "8": 0.5, "16": 0.75}, "seconds": 0.5}
    files = {
        f"eval_step_{steps}": result,
        f"eval_step_{steps}_search8x100": facts | {"searchers": [searcher]},
        f"eval_step_{steps}_thinking_depth4-16": facts | {"chains": [chain, chain | {"depth": 16}]},
        f"eval_step_{steps}_records": {"kind": "sudoku", "sets": {"all": of_set}},
        "arc_tasks": {"task one": [ballot]},
    }
    texts = {f"{name}.json": json.dumps(content) for name, content in files.items()}
    return texts | {f"eval_step_{steps}_records.csv": "\n".join(lines) + "\n"}


@pytest.fixture
def make_sweep(make_run_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Write a sweep's folder with runs of several rates and seeds. Later runs score better."""

    def make(name: str = "sweep", rates: Sequence[float] = (1e-3, 3e-3), seeds: int = 2) -> Path:
        jobs = {}
        for number, (rate, seed) in enumerate(itertools.product(rates, range(seeds))):
            job = f"lr-{rate}__seed-{seed}"
            score = 0.5 + number / 20
            make_run_folder(f"{name}/{job}", score=score, settings={"lr": rate, "seed": seed})
            values = {"lr": str(rate), "seed": str(seed)}
            jobs[job] = {"values": values, "state": "finished", "exit_code": 0}
        content = {"version": 1, "command": ["pretrain.py", "-m"], "jobs": jobs}
        (tmp_path / name / "sweep.json").write_text(json.dumps(content))
        return tmp_path / name

    return make


# Browsers


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium driven by selenium. Skips the test if there is none."""
    pytest.importorskip("selenium", reason="selenium is not installed (pip install '.[dev]')")
    from selenium import webdriver

    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not both installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    nowhere = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", nowhere):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


# Processes

Start = Callable[..., subprocess.Popen[str]]


@dataclass(frozen=True)
class Finished:
    """A finished process; `seconds` is its wall time."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def err_lines(self) -> list[str]:
        return self.err.splitlines()


@pytest.fixture(scope="session")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment with one thread, an empty home, and no W&B key, proxy or launcher."""
    kept = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "HOME": str(tmp_path_factory.mktemp("home")),
        "TMPDIR": str(tmp_path_factory.mktemp("tmp")),  # torchrun makes its folders there.
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "random",
        # Ranks on one machine need no name lookup.
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    }


@pytest.fixture
def start_command(clean_environment: Mapping[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start a command with arguments in `tmp_path`. Kill it at the end if it still runs."""
    started: list[subprocess.Popen[str]] = []

    def begin(*command: str | Path, env: Mapping[str, str] | None = None) -> Any:
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        given |= {"cwd": tmp_path, "env": {**clean_environment, **(env or {})}, "text": True}
        started.append(subprocess.Popen(command, start_new_session=True, **given))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.communicate()


@pytest.fixture
def start(start_command: Start) -> Start:
    """Start python with arguments. Entry points are paths relative to the root."""

    def begin(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Any:
        return start_command(sys.executable, *map(_located, arguments), env=env)

    return begin


@pytest.fixture
def run_python(start: Start) -> Callable[..., Finished]:
    """Run python with arguments to its end, for at most `timeout` seconds."""

    def run(*arguments: str | Path, timeout: float = 60.0, **options: Any) -> Finished:
        began = time.monotonic()
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=timeout)
        return Finished(process.returncode, out, err, time.monotonic() - began)

    return run


@pytest.fixture
def start_ranks(start: Start) -> Callable[..., list[subprocess.Popen[str]]]:
    """Start python on several ranks, each with these arguments, without a launcher."""

    def begin(*arguments: Sequence[str]) -> list[subprocess.Popen[str]]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
        world = {"WORLD_SIZE": str(len(arguments)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        places = [world | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(len(arguments))]
        return [start(*own, env=place) for own, place in zip(arguments, places, strict=True)]

    return begin


def wait_until(holds: Callable[[], object]) -> None:
    """Wait up to 60 s until `holds()` is true."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def _located(argument: str | Path) -> str:
    path = ROOT / argument
    return str(path) if str(argument).endswith(".py") and path.is_file() else str(argument)


class RealStep(NamedTuple):
    """Bytes that a learner keeps between steps, the most beside them in a step, and the least
    seconds of a step.
    """

    kept: int
    more: int
    seconds: float
    dtype: str


@pytest.fixture
def step_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RealStep]:
    """Make real steps with random boards, and count the bytes that torch allocates. Weights are
    updated as in a trace, without a kernel that needs no memory of its own.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from models.registry import arch_on_device
    from puzzle_dataset import Batch
    from runtime.ranks import Ranks
    from training.optim import adam_atan2
    from training.step import Learner
    from training.stop_signals import StopSignals

    monkeypatch.setattr(adam_atan2, "MIN_FOR_KERNEL", sys.maxsize)

    def held() -> dict[int, Any]:
        gc.collect()
        found = (x for x in gc.get_objects() if issubclass(type(x), torch.Tensor))
        storages = (x.untyped_storage() for x in found)
        # An export leaves tensors of symbolic sizes.
        return {one._cdata: one for one in storages if isinstance(one.nbytes(), int)}

    def measure(config: Any, data: Any, rows: int, tries: int = 0) -> RealStep:
        arch, before = arch_on_device(config.arch, "cpu"), held()
        own = {"arch": arch, "global_batch_size": rows, "compile": False, "diagnose_interval": None}
        opened: Any = SimpleNamespace(metadata=data, fields=(), kind=None)
        learner = Learner(config.model_copy(update=own), arch, opened, Ranks("cpu"))
        learner.model.train()
        cells = np.random.default_rng(0).integers(0, data.vocab_size, (rows, data.seq_len))
        boards = cells.astype(np.int32)
        batch = Batch(boards, boards, np.zeros(rows, np.int32))
        learner.step(1, batch, StopSignals())
        # Kept alive, those of other tests are neither freed meanwhile nor counted.
        kept = sum(one.nbytes() for key, one in held().items() if key not in before)
        with profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
        ) as profiled:
            learner.step(2, batch, StopSignals())
        assert profiled.profiler
        assert profiled.profiler.kineto_results
        events = profiled.profiler.kineto_results.events()
        events = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
        seconds = math.inf
        for step in range(3, 3 + tries):
            start = time.perf_counter()
            learner.step(step, batch, StopSignals())
            seconds = min(seconds, time.perf_counter() - start)
        more = max(itertools.accumulate(event.nbytes() for event in events))
        return RealStep(kept, more, seconds, arch.forward_dtype)

    return measure
