"""The builder's command line: what it writes from each source, and what it says to mistakes."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from dataset import build_maze_dataset, sources
from dataset.augmentation import augment_mazes, dihedral_view, maze_keys
from dataset.build_maze_dataset import main
from dataset.format.disk import load_split
from dataset.maze import generator as maze_generator
from dataset.maze.rules import check_paths, solve, text_to_tokens, tokens_to_text
from puzzle_dataset import EvalBatches, PuzzleDataset, TrainBatches

ROOT = Path(__file__).parents[3]
HEADER = "source,question,answer,rating"
QUESTIONS = [
    "".join(lines)
    for lines in (
        ("S   ", "# # ", "# # ", "   G"),
        ("S#  ", " # #", " # #", "   G"),
        (" #S ", "    ", "G#  ", "  ##"),
        ("#S #", "  # ", "G   ", "# # "),
    )
]


def answer(question: str) -> str:
    return tokens_to_text(solve(text_to_tokens([question]))[0][0])


def row(question: str, rating: int | str | None = None) -> str:
    rating = answer(question).count("o") + 2 if rating is None else rating
    return f"made,{question},{answer(question)},{rating}"


TRAIN = [row(question) for question in QUESTIONS[:3]]
TEST = [row(QUESTIONS[3], "")]


def write_csv(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "csv"
    folder.mkdir()
    write_csv(folder / "train.csv", TRAIN)
    write_csv(folder / "test.csv", TEST)
    return folder


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "built" / "set"


def build(output: Path, source: object, *flags: object) -> int:
    return main([f"--output-dir={output}", f"--source={source}", *map(str, flags)])


def split_arrays(output: Path, split: str):
    metadata, sets = load_split(output / split)
    assert metadata.sets == ("all",)
    return metadata, sets["all"]


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that an error printed."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def content(output: Path) -> dict[str, bytes]:
    files = [path for path in output.rglob("*") if path.is_file()]
    return {str(path.relative_to(output)): path.read_bytes() for path in files}


# What is written


def test_a_folder_becomes_the_published_format(folder: Path, output: Path):
    assert build(output, folder, "--size=4") == 0
    metadata, train = split_arrays(output, "train")
    assert json.loads((output / "train/dataset.json").read_text()) == {
        "pad_id": 0,
        "ignore_label_id": 0,
        "blank_identifier_id": 0,
        "vocab_size": 6,
        "seq_len": 16,
        "num_puzzle_identifiers": 1,
        "total_groups": 3,
        "mean_puzzle_examples": 1.0,
        "sets": ["all"],
        "total_puzzles": 3,
        "fields": {"actions": {"num_classes": 5}},
    }
    assert train.inputs.shape == train.labels.shape == (3, metadata.seq_len)
    assert train.inputs[0].tolist() == [3, 2, 2, 2, 1, 2, 1, 2, 1, 2, 1, 2, 2, 2, 2, 4]
    assert train.labels[0].tolist() == [3, 5, 2, 2, 1, 5, 1, 2, 1, 5, 1, 2, 2, 5, 5, 4]
    assert [tokens_to_text(inputs) for inputs in train.inputs] == QUESTIONS[:3]
    assert train.fields["actions"].dtype == np.uint8
    assert train.fields["actions"][0].tolist() == [3, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 3, 0]
    assert train.puzzle_identifiers.tolist() == [0] * 3
    assert train.group_indices.tolist() == train.puzzle_indices.tolist() == [0, 1, 2, 3]
    assert json.loads((output / "identifiers.json").read_text()) == ["<blank>"]
    _, test = split_arrays(output, "test")
    assert [tokens_to_text(labels) for labels in test.labels] == [answer(QUESTIONS[3])]


def test_views_turn_inputs_and_labels_together_and_train_only(folder: Path, output: Path):
    assert build(output, folder, "--size=4", "--aug") == 0
    metadata, train = split_arrays(output, "train")
    assert (metadata.total_groups, metadata.total_puzzles) == (3, 24)
    assert train.group_indices.tolist() == [0, 8, 16, 24]
    assert train.puzzle_indices.tolist() == list(range(25))
    valid, shortest = check_paths(train.inputs, train.labels)
    assert valid.all()
    assert shortest.all()
    for number, question in enumerate(QUESTIONS[:3]):
        group = slice(8 * number, 8 * number + 8)
        assert tokens_to_text(train.inputs[8 * number]) == question
        assert len({inputs.tobytes() for inputs in train.inputs[group]}) == 8
        assert len(set(maze_keys(np.asarray(train.inputs[group])))) == 1
        for view in range(8):
            turned = dihedral_view(train.labels[8 * number].reshape(4, 4), view)
            assert train.labels[8 * number + view].tolist() == turned.reshape(-1).tolist()
    assert split_arrays(output, "test")[1].num_examples == 1


@pytest.mark.parametrize("split", ["train", "test"])
def test_actions_lead_from_start_to_goal_in_every_view(folder: Path, output: Path, split: str):
    assert build(output, folder, "--size=4", "--aug") == 0
    dataset = PuzzleDataset([output], split, fields=["actions"])
    for _, batch, count, _ in EvalBatches(dataset, global_batch_size=8):
        for labels, actions in zip(batch.labels, batch.fields["actions"][:count], strict=False):
            cell = labels.tolist().index(3)
            walked = []
            while labels[cell] != 4:
                walked.append(cell)
                cell += {1: 4, 2: -1, 3: 1, 4: -4}[int(actions[cell])]
            assert sorted(walked) == np.flatnonzero((labels == 3) | (labels == 5)).tolist()
            assert np.flatnonzero(actions).tolist() == sorted(walked)


def test_pixels_are_the_answers_colours_in_every_view(folder: Path, output: Path):
    assert build(output, folder, "--size=4", "--aug", "--pixels") == 0
    declared = json.loads((output / "train/dataset.json").read_text())["fields"]
    assert declared == {
        "actions": {"num_classes": 5},
        "pixels": {"num_classes": 256, "channels": 3},
    }
    colours = {
        1: (0, 0, 0),
        2: (255, 255, 255),
        3: (46, 204, 64),
        4: (255, 65, 54),
        5: (0, 116, 217),
    }
    for split, number in (("train", 24), ("test", 1)):
        _, arrays = split_arrays(output, split)
        assert arrays.fields["pixels"].shape == (number, 16, 3)
        for labels, pixels in zip(arrays.labels, arrays.fields["pixels"], strict=True):
            assert [tuple(cell) for cell in pixels.tolist()] == [
                colours[t] for t in labels.tolist()
            ]
    assert "--pixels" in json.loads((output / "manifest.json").read_text())["command"]


def test_pixels_change_no_other_file(folder: Path, output: Path):
    for name, flags in (("plain", []), ("coloured", ["--pixels"])):
        assert build(output.with_name(name), folder, "--size=4", *flags) == 0
    plain, coloured = content(output.with_name("plain")), content(output.with_name("coloured"))
    differing = {name for name in coloured if plain.get(name) != coloured[name]}
    splits = ("train", "test")
    assert differing == {
        "manifest.json",
        *(f"{split}/{name}" for split in splits for name in ("dataset.json", "all__pixels.npy")),
    }


def test_the_loader_reads_it(folder: Path, output: Path):
    assert build(output, folder, "--size=4", "--aug") == 0
    train = TrainBatches(
        PuzzleDataset([output], "train"), seed=0, global_batch_size=3, epochs_per_iter=2
    )
    batches = [batch for _, batch in train.iterate(0)]
    assert len(batches) == 2  # three groups an epoch, one view of each
    assert all((batch.puzzle_identifiers == 0).all() for batch in batches)
    for batch in batches:
        assert check_paths(batch.inputs, batch.labels)[1].all()
    ((_, batch, count, _),) = EvalBatches(PuzzleDataset([output], "test"), global_batch_size=2)
    assert count == 1
    assert tokens_to_text(batch.labels[0]) == answer(QUESTIONS[3])


def test_manifest_tells_how_it_was_built(folder: Path, output: Path):
    assert build(output, folder, "--size=4", "--aug", "--seed=9", "--subsample-size=2") == 0
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["command"] == [
        "build_maze_dataset.py",
        f"--source={folder}",
        "--size=4",
        "--subsample-size=2",
        "--aug",
        "--seed=9",
    ]
    assert manifest["seed"] == 9
    for name in ("train.csv", "test.csv"):
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert manifest["sources"][name] == digest
    train = split_arrays(output, "train")[1]
    assert manifest["counts"]["train"] == {
        "rows": 3,
        "dropped_as_in_test": 0,
        "puzzles": 2,
        "examples": 16,
        "mean_walls": (train.inputs == 1).sum() / 16,
        "mean_moves": (train.labels == 5).sum() / 16 + 1,
    }
    written = content(output)
    assert set(manifest["files"]) == set(written) - {"manifest.json"}
    for name, digest in manifest["files"].items():
        assert hashlib.sha256(written[name]).hexdigest() == digest


def test_summary_says_what_was_written_and_where(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    assert build(output, folder, "--size=4", "--aug", "--subsample-size=5", "--test-size=2") == 0
    assert capsys.readouterr().out == (
        f"{output}: 24 training examples (3 mazes, 8 views each) and 1 test mazes written; fewer"
        " training mazes than the 5 asked for exist; fewer test mazes than the 2 asked for exist\n"
    )


def test_gzip_byte_order_mark_crlf_quotes_and_empty_lines_are_read(folder: Path, output: Path):
    lines = [HEADER, *TRAIN[:1], "", *(line.replace("made", '"a, b"') for line in TRAIN[1:]), ""]
    (folder / "train.csv").unlink()
    text = b"\xef\xbb\xbf" + "\r\n".join(lines).encode()
    (folder / "train.csv.gz").write_bytes(gzip.compress(text))
    assert build(output, folder, "--size=4") == 0
    inputs = split_arrays(output, "train")[1].inputs
    assert [tokens_to_text(row) for row in inputs] == QUESTIONS[:3]


def test_spaces_at_both_ends_of_a_field_count(folder: Path, output: Path):
    question = "   S  ## ##  G  "
    write_csv(folder / "train.csv", [row(question)])
    assert build(output, folder, "--size=4") == 0
    assert tokens_to_text(split_arrays(output, "train")[1].inputs[0]) == question


def test_subsample_is_without_replacement_and_from_train_only(folder: Path, output: Path):
    write_csv(folder / "test.csv", TEST * 3)
    many = maze_generator.generate_mazes(
        40, seed=0, stream=0, size=4, min_length=4, taken=set(), workers=1
    )
    write_csv(folder / "train.csv", [row(tokens_to_text(maze)) for maze in many.mazes])
    chosen = []
    for seed in (0, 1):
        path = output.with_name(f"seed-{seed}")
        flags = ["--size=4", "--subsample-size=15", "--test-size=2", f"--seed={seed}"]
        assert build(path, folder, *flags) == 0
        train = split_arrays(path, "train")[1]
        assert len({inputs.tobytes() for inputs in train.inputs}) == 15
        assert split_arrays(path, "test")[1].num_examples == 2
        chosen.append(train.inputs.tolist())
    assert chosen[0] != chosen[1]


def test_training_mazes_that_are_views_of_test_mazes_are_dropped(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    views = augment_mazes(text_to_tokens([QUESTIONS[3]]))[[0, 3, 6]]
    write_csv(folder / "train.csv", [*(row(tokens_to_text(view)) for view in views), *TRAIN])
    assert build(output, folder, "--size=4") == 0
    assert "; 3 training rows dropped that are test rows too" in capsys.readouterr().out
    inputs = split_arrays(output, "train")[1].inputs
    assert [tokens_to_text(tokens) for tokens in inputs] == QUESTIONS[:3]
    write_csv(folder / "train.csv", [row(tokens_to_text(view)) for view in views])
    assert build(output, folder, "--size=4") == 3
    assert "train.csv: no maze is left of 3" in error_line(capsys)


# Generated


def test_generated_sets(output: Path):
    flags = ["--size=8", "--min-length=12", "--subsample-size=20", "--test-size=10", "--aug"]
    assert build(output, "generate", *flags) == 0
    metadata, train = split_arrays(output, "train")
    assert (metadata.vocab_size, metadata.seq_len, train.num_examples) == (6, 64, 160)
    _, test = split_arrays(output, "test")
    for arrays in (train, test):
        valid, shortest = check_paths(arrays.inputs, arrays.labels)
        assert valid.all()
        assert shortest.all()
        assert (arrays.labels == 5).sum(axis=1).min() >= 11
    assert solve(test.inputs)[0].tolist() == test.labels.tolist()
    keys = maze_keys(np.concatenate([train.inputs[::8], test.inputs]))
    assert len(set(keys)) == 30
    manifest = json.loads((output / "manifest.json").read_text())
    assert "--min-length=12" in manifest["command"]
    assert manifest["counts"]["train"]["attempts"] >= 20


def test_the_test_set_does_not_depend_on_the_training_set(output: Path):
    for name, number in (("few", 5), ("many", 50)):
        flags = ["--size=6", "--min-length=8", f"--subsample-size={number}", "--test-size=10"]
        assert build(output.with_name(name), "generate", *flags) == 0
    few, many = content(output.with_name("few")), content(output.with_name("many"))
    assert few["test/all__inputs.npy"] == many["test/all__inputs.npy"]


def test_mazes_that_do_not_exist_are_a_configuration_error(
    output: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(maze_generator, "_MAX_ATTEMPTS", 20_000)
    assert build(output, "generate", "--size=6", "--min-length=26", "--test-size=1") == 2
    assert "no 6x6 maze whose shortest path has 26 moves or more" in error_line(capsys)
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize("source", ["generate", "folder"])
def test_same_command_same_bytes(source: str, folder: Path, tmp_path: Path):
    """In other processes, with other hash seeds, run as a file and as a module."""
    flags = ["--size=4", "--subsample-size=2", "--test-size=1", "--aug"]
    generate = ["--source=generate", "--min-length=5"]
    flags += generate if source == "generate" else [f"--source={folder}"]
    digests = []
    for number, program in enumerate(
        [["dataset/build_maze_dataset.py"], ["-m", "dataset.build_maze_dataset"]]
    ):
        output = tmp_path / f"built-{number}"
        subprocess.run(
            [sys.executable, *program, *flags, "--seed=4", f"--output-dir={output}"],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": str(number + 1), "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
        )
        digests.append(content(output))
    assert digests[0] == digests[1]


# Mistakes

GOOD = QUESTIONS[0]
ANSWER = "So  #o# #o#  ooG"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("made,S  G,SooG,4", "question has 4 characters; accepted: 16 (--size 4)"),
        (f"made,{GOOD},{ANSWER[:-1]},7", "answer has 15 characters"),
        (f"made,{GOOD.strip('S')},{ANSWER},7", "question has 15 characters"),
        (
            f"made,{GOOD.replace('#', '.')},{ANSWER},7",
            "has '.' in cell 5; accepted: '# SG'",
        ),
        (f"made,{ANSWER},{ANSWER},7", "question has 'o' in cell 2"),
        (f"made,{GOOD.replace('#', 'é')},{ANSWER},7", "question has 'é' in cell 5"),
        (f"made,{GOOD},{ANSWER.replace('o', 'x')},7", "answer has 'x' in cell 2"),
        (f"made,{GOOD.replace('G', ' ')},{ANSWER},7", "question has 0 G; accepted: exactly one"),
        (f"made,{GOOD.replace('G', 'S')},{ANSWER},7", "question has 2 S"),
        (f"made,{GOOD},{ANSWER.replace('#', ' ')},7", "'#' became ' ' in cell 5"),
        (f"made,{GOOD},{ANSWER.replace('G', 'o')},7", "'G' became 'o' in cell 16"),
        (f"made,{GOOD},{ANSWER.replace('# #', '#o#')},7", "answer is no path: 'o' in cell 8 has 0"),
        (f"made,{GOOD},{ANSWER.replace('So', 'S ')},7", "'S' in cell 1 has 0"),
        (f"made,{GOOD},{GOOD},7", "'S' in cell 1 has 0 neighbours among S, G and 'o'; accepted: 1"),
        (f"made,{GOOD},{ANSWER},6", "rating is 6; accepted: 7, the cells on the path, or nothing"),
        (f"made,{GOOD},{ANSWER},7.0", "rating is '7.0'; accepted: an integer"),
        ("made,SG              ,SG        oo  oo,2", "there are 'o' in a ring apart from it"),
        ("made,S G             ,S G ooo         ,5", "a path of 4 moves; a shortest one has 2"),
        ("made,S G             ,S G oooo        ,6", "'o' in cell 7 has 3"),
        (f"made,{GOOD},{ANSWER},7,1", "5 fields"),
        ("made", "1 fields"),
    ],
)
@pytest.mark.parametrize("name", ["train.csv", "test.csv"])
def test_bad_rows_are_named(
    bad: str,
    reason: str,
    name: str,
    folder: Path,
    output: Path,
    capsys: pytest.CaptureFixture[str],
):
    write_csv(folder / name, [TRAIN[0], bad, TRAIN[1], "another bad row"])
    assert build(output, folder, "--size=4") == 3
    line = error_line(capsys)
    assert line.startswith(f"error: {folder / name}: row 3: ")
    assert reason in line
    assert not output.exists()


def test_the_first_of_several_bad_rows_is_named(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sources, "_ROWS_PER_BATCH", 2)
    rows = [*TRAIN, f"made,{GOOD},{GOOD},", f"made,{GOOD * 2},{GOOD},"]
    write_csv(folder / "train.csv", rows)
    assert build(output, folder, "--size=4") == 3
    assert "row 5: answer is no path" in error_line(capsys)
    write_csv(folder / "train.csv", [*rows[:3], f"made,{'S' * 16},{GOOD},", *rows[3:]])
    assert build(output, folder, "--size=4") == 3
    assert "row 5: question has 16 S" in error_line(capsys)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--augs"], "unknown argument '--augs'; nearest: --aug"),
        (["--subsample-size=0"], "--subsample-size: 0; accepted: 1 or more"),
        (["--test-size=many"], "'many' is no integer"),
        (["--seed=18446744073709551616"], "accepted: 0 to 18446744073709551615"),
        (["--size=1"], "1; accepted: 2 to 362"),
        (["--size=363"], "363; accepted: 2 to 362"),
        (["--min-length=30"], "is for --source generate"),
        (["--source=generate"], "--output-dir is needed"),
        (["--source=generate", "--output-dir=x", "--source-repo=y"], "is for --source hf"),
        (["--source=generate", "--output-dir=x", "--size=8"], "is needed at size 8; accepted: 1"),
        (["--source=generate", "--output-dir=x", "--min-length=675"], "at size 30: 1 to 674"),
        (["--source=generate", "--output-dir=x", "--min-length=0"], "0; accepted: 1 or more"),
    ],
)
def test_bad_flags_are_answered_in_one_line(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as exit_:
        main(flags)
    assert exit_.value.code == 2
    assert reason in error_line(capsys)


def test_published_flags_mean_the_published_defaults():
    options = build_maze_dataset.parse_options([])
    assert options.output_dir == Path("data/maze-30x30-hard-1k")
    assert (options.source, options.source_repo) == ("hf", "sapientinc/maze-30x30-hard-1k")
    assert (options.subsample_size, options.aug, options.size) == (None, False, 30)
    assert build_maze_dataset.parse_options(["--no-aug"]).aug is False


def test_the_generator_defaults_are_the_published_kind():
    options = build_maze_dataset.parse_options(["--source=generate", "--output-dir=x"])
    assert (options.size, options.min_length) == (30, 109)
    assert (options.subsample_size, options.test_size) == (1000, 1000)


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--output-dir", "--subsample-size", "--aug", "--source-repo", "--min-length"):
        assert flag in text


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "somewhere"), 3, "No space left on device"),
        (PermissionError(13, "Permission denied", "somewhere"), 2, "Permission denied"),
        (MemoryError("Unable to allocate 9 TiB"), 3, "9 TiB; lower --subsample-size or --size"),
    ],
)
def test_a_failing_build_leaves_the_older_set(
    error: BaseException,
    code: int,
    reason: str,
    folder: Path,
    output: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    assert build(output, folder, "--size=4") == 0
    before = content(output)
    capsys.readouterr()

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(build_maze_dataset, "write_puzzles", fail)
    assert build(output, folder, "--size=4", "--aug") == code
    assert reason in error_line(capsys)
    assert content(output) == before
    assert list(output.parent.iterdir()) == [output]


def test_a_set_larger_than_the_disk_is_refused(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    usage = types.SimpleNamespace(free=100)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert build(output, folder, "--size=4") == 3
    assert "lower --subsample-size or --size" in error_line(capsys)


def test_hub_files_are_downloaded_and_built(
    folder: Path, output: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def download(repository: str, name: str, *, repo_type: str) -> str:
        asked.append((repository, name, repo_type))
        return str(folder / name)

    module = types.ModuleType("huggingface_hub")
    module.__dict__["hf_hub_download"] = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    assert main([f"--output-dir={output}", "--size=4"]) == 0
    published = "sapientinc/maze-30x30-hard-1k"
    assert asked == [(published, "train.csv", "dataset"), (published, "test.csv", "dataset")]
    command = json.loads((output / "manifest.json").read_text())["command"]
    assert f"--source-repo={published}" in command


# Real mazes


@pytest.mark.skipif("PUZZLE_DATA_DIR" not in os.environ, reason="PUZZLE_DATA_DIR is not set")
def test_real_files_build(output: Path):
    source = Path(os.environ["PUZZLE_DATA_DIR"]) / "maze-30x30-hard-1k"
    assert build(output, source, "--aug") == 0
    metadata, train = split_arrays(output, "train")
    assert (metadata.total_groups, train.num_examples, metadata.vocab_size) == (1000, 8000, 6)
    assert split_arrays(output, "test")[1].num_examples == 1000
    counts = json.loads((output / "manifest.json").read_text())["counts"]
    assert counts["train"]["dropped_as_in_test"] == 0
    for name, mean in (("mean_walls", 334.5), ("mean_moves", 113.8)):
        both = (counts["train"][name] + counts["test"][name]) / 2
        assert both == pytest.approx(mean, abs=0.05)
    # Every view's answer is a shortest path too.
    assert check_paths(train.inputs, train.labels)[1].all()
