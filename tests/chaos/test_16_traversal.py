"""Row 16: names of files that lead out of a folder are refused in one line, or kept inside."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import mutants, processes
from harness.builds import arc_task, build_here, contents
from harness.lab import Lab
from harness.processes import Fault
from harness.trackers import stand_in_wandb

import evaluate
from dataset.format.reading import load_split
from evaluation.evaluators.arc import PuzzleNames, Tally, parse_tasks, submission
from evaluation.outputs import OutputError
from evaluation.puzzles import parse_names
from runtime.errors import CheckpointError, ConfigError, DatasetError
from training.checkpoint.run_folder import prepare_run_dir, save_config, with_names
from training.checkpoint.store import list_steps, load_checkpoint
from training.config.composition import load_config
from training.config.schema import TrainConfig

REFUSALS = (ConfigError, DatasetError, CheckpointError, OutputError)
PLAIN = "..|.|../x|../../x|a/../../x|/|//|x/|/x|./x|..\\x|\\|C:\\x|\0|x\0|../x\0y|..\u2215x"
CODED = "\u2024\u2024/x|\uff0e\uff0e|\u2215x|\uff0fx|%2e%2e%2fx|..%2fx"
SHELL = "~|~/x|~root|$HOME|${HOME}|x\ny|\n|-rf|--help|-|| |\u202etxt|\x1b[2J|link/x|link|con|..."
LISTED = "|".join((PLAIN, CODED, SHELL)).split("|")
NAMES = [*LISTED, "x" * 300, "a|||t1|||0123456789"]


class Root:
    """A folder to write into. Nothing around it may change."""

    def __init__(self, surroundings: Path) -> None:
        self.surroundings, self.path = surroundings, surroundings / "a" / "root"
        self.path.mkdir(parents=True)
        (surroundings / "outside").mkdir()
        (surroundings / "outside" / "kept").write_text("kept")
        (self.path / "link").symlink_to(surroundings / "outside")
        self._before = self.listing()

    def listing(self) -> set[tuple[str, bytes | None]]:
        """Return all paths around the root, with their content."""
        found = contents(self.surroundings, folders=True).items()
        return {(name, content) for name, content in found if not name.startswith("a/root/")}

    def changes(self) -> list[str]:
        """Return the paths outside that are new, gone or changed."""
        return sorted(path for path, _ in self.listing() ^ self._before)


# Uses of a name in a file's name: each takes a folder to write into, the name, and `original`.


def as_run_name(root: Path, name: str, original: Path) -> None:
    _begin_run(root, f"run_name={json.dumps(name)}", "project_name=p")


def as_project_name(root: Path, name: str, original: Path) -> None:
    _begin_run(root, f"project_name={json.dumps(name)}", "run_name=r")


def _begin_run(root: Path, *overrides: str) -> None:
    config = with_names(load_config(TrainConfig, "cfg_pretrain", overrides))
    folder = root / str(config.checkpoint_path)
    prepare_run_dir(folder)
    save_config(folder, config)


def change(path: Path, **changes: Any) -> Path:
    """Change keys of a JSON file, and return its folder."""
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    return path.parent


def evaluation(checkpoint: Path, data: Path) -> list[str]:
    """Return the overrides of an evaluation that saves outputs by the names of sets."""
    given = "device=cpu num_threads=1 evaluators=[] save_outputs=[q_halt_logits]"
    output = data.parent / "results" / "r.json"
    return [*given.split(), f"checkpoint={checkpoint}", f"data_path={data}", f"output={output}"]


def as_set_name(root: Path, name: str, original: Path) -> None:
    data = shutil.copytree(original / "data", root / "data")
    split = change(data / "test" / "dataset.json", sets=[name])
    if "\0" not in name and len(name) < 200:
        # Rename the files too, so that only the name is wrong.
        for path in sorted(split.glob("all__*.npy")):
            target = Path(f"{split}/{name}{path.name.removeprefix('all')}")
            if root in target.resolve().parents and target.parent.is_dir():
                shutil.copy(path, target)
    evaluate.main([*evaluation(original / "published" / "step_7", data), "compile=false"])


def as_field_name(root: Path, name: str, original: Path) -> None:
    data = shutil.copytree(original / "data", root / "data")
    load_split(change(data / "test" / "dataset.json", fields={name: {"num_classes": 3}}))


def as_file_of_a_checkpoint(root: Path, name: str, original: Path) -> None:
    folder = shutil.copytree(original / "own" / "step_7", root / "step_7")
    files = json.loads((folder / "MANIFEST.json").read_bytes())["files"]
    files[name] = {"size": 0, "sha256": "0" * 64}
    load_checkpoint(change(folder / "MANIFEST.json", files=files))


def as_file_of_a_data_set(root: Path, name: str, original: Path) -> None:
    data = shutil.copytree(original / "data", root / "data")
    (data / "manifest.json").write_text(json.dumps({"files": {name: "0" * 64}}))
    load_split(data / "test")


def as_task_name(root: Path, name: str, original: Path) -> None:
    for subset, key in (("training", "b"), ("evaluation", name)):
        (root / f"arc_{subset}_challenges.json").write_text(json.dumps({key: arc_task(0)}))
    flags = f"--input-file-prefix={root / 'arc'} --num-aug=1"
    output = ("--subsets", "training", "evaluation", f"--output-dir={root / 'built'}")
    if code := build_here("arc", *flags.split(), *output):
        assert code == 3
        raise DatasetError("refused")


def as_identifier(root: Path, name: str, original: Path) -> None:
    tasks = parse_tasks({name: {"test": [{"input": [[1]]}]}}, "tasks")
    votes, grid = Tally(), np.array([[3, 1, 1, 0]])
    known = PuzzleNames(parse_names(["<blank>", name], "names"), "names")
    rows = {"inputs": grid, "preds": grid, "puzzle_identifiers": np.array([1])}
    votes.add_rows(tasks, known, rows | {"q_halt_logits": np.zeros(1)})
    (root / "submission.json").write_text(json.dumps(submission(tasks, votes)))


USES = (
    *(as_run_name, as_project_name, as_set_name, as_field_name, as_file_of_a_checkpoint),
    *(as_file_of_a_data_set, as_task_name, as_identifier),
)


@pytest.mark.usefixtures("capsys")
def test_no_name_leads_outside(lab: Lab, original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lab.folder)
    faults, refused, total = [], 0, 0
    for use in USES:
        for name in [*NAMES, f"{lab.folder}/elsewhere/x"]:
            root = Root(lab.folder / f"{total}")
            try:
                use(root.path, name, original)
            except REFUSALS as error:
                refused += 1
                if "\n" in str(error):
                    faults.append(f"{use.__name__} {name!r}: {error}")
            total += 1
            faults += [f"{use.__name__} {name!r}: {path}" for path in root.changes()]
            shutil.rmtree(root.surroundings)
    assert faults == [], "\n".join(faults)
    assert os.listdir(lab.folder) == []
    said = f"{total} names in {len(USES)} places, {refused} refused, the others kept inside"
    lab.tally(said, names=total, files_outside=0)


def test_a_run_among_links_writes_through_none(lab: Lab) -> None:
    root = Root(lab.folder / "around")
    outside, run = root.surroundings / "outside", root.path / "run"
    run.mkdir()
    files = ("config.yaml", ".config.yaml.tmp-0123abcd", "metrics.jsonl", ".lock")
    targets = dict.fromkeys(files, outside / "kept")
    # Some links lead to a file that does not exist.
    targets |= dict.fromkeys((".lock.new", ".lock.gate"), outside / "new")
    targets |= dict.fromkeys((".step_3.tmp", ".step_2.old", "wandb"), outside)
    for name, target in targets.items():
        (run / name).symlink_to(target)
    more = ("logger.name=wandb", "max_steps=6")
    child = lab.train("around/a/root/run", *more, faults=[stand_in_wandb])
    assert child.err.count("is a link, expected a folder") == 1
    assert root.changes() == []
    assert list_steps(run) == [3, 6]
    assert (run / "metrics.jsonl").read_text().count("\n") >= 6
    lab.tally(f"a run among {len(targets)} links, 0 written through")


@pytest.mark.parametrize("mutant", mutants.params("take_any_set_name"))
def test_without_the_check_a_set_is_written_outside(
    lab: Lab, original: Path, mutant: Fault
) -> None:
    data = shutil.copytree(original / "data", lab.folder / "around" / "a" / "root" / "data")
    split = change(data / "test" / "dataset.json", sets=["../../x"])
    for path in sorted(split.glob("all__*.npy")):
        path.rename(data.parent / path.name.replace("all", "x"))
    (data.parent / "results" / "r_outputs").mkdir(parents=True)
    settings = evaluation(original / "own", data)
    lab.server.finish(processes.evaluate, *settings, faults=[mutant])
    assert (data.parent / "x__q_halt_logits.npy").exists()
