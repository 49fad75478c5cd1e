"""Row 16: names that lead out of a folder, wherever a name becomes that of a file: refused in one
line, or kept inside.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import mutants, processes
from harness.lab import Lab
from harness.processes import ForkServer
from harness.trackers import writing_wandb

import evaluate
from dataset.build_arc_dataset import main as build_arc
from dataset.format.reading import load_split
from dataset.format.schema import PuzzleDatasetMetadata
from evaluation.arc import PuzzleNames, Tally, parse_names, parse_tasks, submission
from evaluation.outputs import OutputError
from runtime.errors import CheckpointError, ConfigError, DatasetError
from scripts.convert_checkpoint import facts_of_folder
from training.checkpoint.conversion import from_published
from training.checkpoint.run_folder import prepare_run_dir, save_config, with_names
from training.checkpoint.store import list_steps, load_checkpoint
from training.checkpoint.trained_model import find_trained_model
from training.config.composition import load_config
from training.config.schema import TrainConfig

REFUSALS = (ConfigError, DatasetError, CheckpointError, OutputError)


def names(outside: Path) -> list[str]:
    """Names that should go nowhere; about thirty."""
    plain = "..|.|../x|../../x|a/../../x|/|//|x/|/x|./x|..\\x|\\|C:\\x|\0|x\0|../x\0y|..\u2215x"
    encoded = "\u2024\u2024/x|\uff0e\uff0e|\u2215x|\uff0fx|%2e%2e%2fx|..%2fx"
    shell = (
        "~|~/x|~root|$HOME|${HOME}|x\ny|\n|-rf|--help|-|| |\u202etxt|\x1b[2J|link/x|link|con|..."
    )
    listed = "|".join((plain, encoded, shell)).split("|")
    return [*listed, f"{outside}/x", "x" * 300, "a|||t1|||0123456789"]


class Root:
    """A folder to write into, in surroundings where nothing may change."""

    def __init__(self, surroundings: Path) -> None:
        self.surroundings, self.path = surroundings, surroundings / "a" / "root"
        self.path.mkdir(parents=True)
        (surroundings / "outside").mkdir()
        (surroundings / "outside" / "kept").write_text("kept")
        (self.path / "link").symlink_to(surroundings / "outside")
        self._before = self.listing()

    def listing(self) -> dict[str, bytes]:
        """What is around the root, and its content."""
        found = {}
        for folder, folders, files in os.walk(self.surroundings):
            if Path(folder) == self.path:
                folders.clear()
                continue
            for name in [*folders, *files]:
                path = Path(folder) / name
                found[str(path)] = path.read_bytes() if path.is_file() else b""
        return found

    def changes(self) -> list[str]:
        """What is new, gone or changed outside."""
        after = self.listing()
        return sorted(
            path
            for path in after.keys() | self._before.keys()
            if after.get(path) != self._before.get(path)
        )


Use = Callable[[Root, str, Path], object]


# Where names become files' names


def as_run_name(root: Root, name: str, original: Path) -> None:
    _begin_run(root, f"run_name={json.dumps(name)}", "project_name=p")


def as_project_name(root: Root, name: str, original: Path) -> None:
    _begin_run(root, f"project_name={json.dumps(name)}", "run_name=r")


def _begin_run(root: Root, *overrides: str) -> None:
    config = with_names(load_config(TrainConfig, "cfg_pretrain", overrides))
    folder = root.path / str(config.checkpoint_path)
    prepare_run_dir(folder)
    save_config(folder, config)


def as_set_name(root: Root, name: str, original: Path) -> None:
    data = shutil.copytree(original / "data", root.path / "data")
    described = data / "test" / "dataset.json"
    described.write_text(json.dumps(json.loads(described.read_bytes()) | {"sets": [name]}))
    if "\0" not in name and len(name) < 200:
        # So that nothing but the name is wrong.
        for path in sorted((data / "test").glob("all__*.npy")):
            target = Path(f"{data / 'test'}/{name}{path.name.removeprefix('all')}")
            if root.path in target.resolve().parents and target.parent.is_dir():
                shutil.copy(path, target)
    evaluate.main(
        [
            *(f"checkpoint={original / 'published' / 'step_7'}", f"data_path={data}"),
            *("device=cpu", "num_threads=1", "evaluators=[]", "compile=false"),
            *(f"output={root.path / 'results' / 'r.json'}", "save_outputs=[q_halt_logits]"),
        ]
    )


def as_field_name(root: Root, name: str, original: Path) -> None:
    described = json.loads((original / "data" / "test" / "dataset.json").read_bytes())
    described["fields"] = {name: {"num_classes": 3}}
    PuzzleDatasetMetadata.from_json(json.dumps(described), root.path / "dataset.json")


def as_file_of_a_checkpoint(root: Root, name: str, original: Path) -> None:
    folder = shutil.copytree(original / "own" / "step_7", root.path / "step_7")
    manifest = json.loads((folder / "MANIFEST.json").read_bytes())
    manifest["files"][name] = {"size": 0, "sha256": "0" * 64}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    load_checkpoint(folder)


def as_file_of_a_data_set(root: Root, name: str, original: Path) -> None:
    data = shutil.copytree(original / "data", root.path / "data")
    (data / "manifest.json").write_text(json.dumps({"files": {name: "0" * 64}}))
    load_split(data / "test")


def as_task_name(root: Root, name: str, original: Path) -> None:
    grids = {"input": [[1]], "output": [[2]]}
    tasks = {name: {"train": [grids], "test": [grids]}}
    for subset in ("training", "evaluation"):
        path = root.path / f"arc_{subset}_challenges.json"
        path.write_text(json.dumps(tasks if subset == "evaluation" else {"b": tasks[name]}))
    code = build_arc(
        [
            *("--input-file-prefix", str(root.path / "arc"), "--subsets", "training", "evaluation"),
            *("--output-dir", str(root.path / "built"), "--num-aug=1", "--drop-duplicates"),
        ]
    )
    if code:
        assert code == 3
        raise DatasetError("refused")


def as_identifier(root: Root, name: str, original: Path) -> None:
    tasks = parse_tasks({name: {"test": [{"input": [[1]]}]}}, "tasks")
    tally = Tally()
    tally.add_rows(
        tasks,
        PuzzleNames(parse_names(["<blank>", name], "names"), "names"),
        inputs=np.array([[3, 1, 1, 0]]),
        preds=np.array([[3, 1, 1, 0]]),
        puzzle_identifiers=np.array([1]),
        q_halt_logits=np.zeros(1),
    )
    (root.path / "submission.json").write_text(json.dumps(submission(tasks, tally)))


def as_recorded_data(root: Root, name: str, original: Path) -> None:
    """The data folder that a published run recorded: it is read, and its name becomes none."""
    folder = shutil.copytree(original / "published", root.path / "published")
    text = (folder / "all_config.yaml").read_text()
    (folder / "all_config.yaml").write_text(
        text.replace("data_path: data", f"data_path: {json.dumps(name)}")
    )
    trained = find_trained_model(folder / "step_7", pytest.fail)
    from_published(trained, facts_of_folder(original / "data"), root.path / "own")


USES: dict[str, Use] = {
    use.__name__.removeprefix("as_").replace("_", " "): use
    for use in (
        as_run_name,
        as_project_name,
        as_set_name,
        as_field_name,
        as_file_of_a_checkpoint,
        as_file_of_a_data_set,
        as_task_name,
        as_identifier,
        as_recorded_data,
    )
}


def tried(folder: Path, use: Use, name: str, original: Path) -> tuple[bool, list[str]]:
    """Use a name; return whether it was refused, and what changed outside of the root."""
    root, said = Root(folder), None
    try:
        use(root, name, original)
    except REFUSALS as error:
        said = str(error)
    assert said is None or len(said.splitlines()) == 1, f"{name!r}: {said}"
    return said is not None, root.changes()


@pytest.mark.row(16)
@pytest.mark.usefixtures("restored_host", "capsys")
def test_no_name_leads_outside(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    faults, refused, total = [], 0, 0
    for what, use in USES.items():
        for name in names(tmp_path / "elsewhere"):
            folder = tmp_path / f"{total}"
            was_refused, changes = tried(folder, use, name, original)
            total, refused = total + 1, refused + was_refused
            faults += [f"{what} {name!r}: {path}" for path in changes]
            shutil.rmtree(folder)
    assert faults == [], "\n".join(faults)
    assert os.listdir(tmp_path) == []
    tally(
        f"{total} names in {len(USES)} places, {refused} refused, the others kept inside",
        names=total,
        files_outside=0,
    )


@pytest.mark.row(16)
def test_a_run_among_links_writes_through_none(lab: Lab) -> None:
    root = Root(lab.folder / "around")
    outside, run = root.surroundings / "outside", root.path / "run"
    run.mkdir()
    files = ("config.yaml", ".config.yaml.tmp", "metrics.jsonl", ".metrics.jsonl.tmp", ".lock")
    # In these places a link leads to a file that is not there.
    absent = (".lock.new", ".lock.gate")
    folders = (".step_3.tmp", ".step_2.old", "wandb")
    targets = dict.fromkeys(files, outside / "kept") | dict.fromkeys(absent, outside / "new")
    targets |= dict.fromkeys(folders, outside)
    for name, target in targets.items():
        (run / name).symlink_to(target)
    more = ("logger.name=wandb", "max_steps=6")
    child = lab.train("around/a/root/run", *more, faults=[writing_wandb])
    assert child.err.count("is a link, expected a folder") == 1
    assert root.changes() == []
    assert list_steps(run) == [3, 6]
    assert (run / "metrics.jsonl").read_text().count("\n") >= 6
    lab.tally(f"a run among {len(targets)} links, 0 written through")


@pytest.mark.row(16)
def test_the_probe_of_a_folder_is_not_written_through_a_link(tmp_path: Path) -> None:
    root = Root(tmp_path)
    link = root.path / f".probe.{os.getpid()}"
    link.symlink_to(tmp_path / "outside" / "new")
    prepare_run_dir(root.path)
    assert root.changes() == []
    assert not link.is_symlink()


@pytest.mark.row(16, mutant=f"{mutants.take_any_set_name.__doc__}")
def test_without_the_check_a_set_is_written_outside(
    fork_server: ForkServer, original: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(original / "data", tmp_path / "around" / "a" / "root" / "data")
    described = data / "test" / "dataset.json"
    described.write_text(json.dumps(json.loads(described.read_bytes()) | {"sets": ["../../x"]}))
    for path in sorted((data / "test").glob("all__*.npy")):
        path.rename(data.parent / path.name.replace("all", "x"))
    output = data.parent / "results" / "r.json"
    (output.parent / "r_outputs").mkdir(parents=True)
    fork_server.finish(
        processes.evaluate,
        *(f"checkpoint={original / 'own'}", f"data_path={data}", f"output={output}"),
        *("device=cpu", "num_threads=1", "evaluators=[]", "save_outputs=[q_halt_logits]"),
        faults=[mutants.take_any_set_name],
    )
    assert (data.parent / "x__q_halt_logits.npy").exists()
