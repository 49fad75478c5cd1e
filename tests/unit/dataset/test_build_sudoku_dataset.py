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

from dataset import build_sudoku_dataset, sources
from dataset.augmentation import sudoku_symmetries
from dataset.build_sudoku_dataset import main
from dataset.format.disk import load_split
from dataset.sudoku import generator as sudoku_generator
from dataset.sudoku.rules import count_solutions, tokens_to_grid

ROOT = Path(__file__).parents[3]
HEADER = "source,question,answer,rating"
SOLUTIONS = ["1234341221434321", "1234341243212143", "2143341212344321", "4321123424133142"]


def question(solution: str, *empty: int) -> str:
    return "".join("." if cell in empty else digit for cell, digit in enumerate(solution))


def row(solution: str, rating: int | str, *empty: int) -> str:
    return f"made,{question(solution, *empty)},{solution},{rating}"


TRAIN = [row(SOLUTIONS[0], 3, 0, 1), row(SOLUTIONS[1], 8, 2, 5, 7), row(SOLUTIONS[2], 12, 3)]
TEST = [row(SOLUTIONS[3], 5, 0, 15), row(SOLUTIONS[0], 9, 4, 6)]


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
    assert build(output, folder, "--size=4", "--num-aug=3") == 0
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
        "total_puzzles": 12,
    }
    assert train.inputs.shape == train.labels.shape == (12, metadata.seq_len)
    assert train.inputs[0].tolist() == [1, 1, 4, 5, 4, 5, 2, 3, 3, 2, 5, 4, 5, 4, 3, 2]
    for number, text in enumerate(TRAIN):
        _, question_text, answer_text, _ = text.split(",")
        expected = [int(digit) + 1 for digit in question_text.replace(".", "0")]
        assert train.inputs[4 * number].tolist() == expected
        assert train.labels[4 * number].tolist() == [int(digit) + 1 for digit in answer_text]
    assert train.puzzle_identifiers.tolist() == [0] * 12
    assert train.puzzle_indices.tolist() == list(range(13))
    assert train.group_indices.tolist() == [0, 4, 8, 12]
    assert json.loads((output / "identifiers.json").read_text()) == ["<blank>"]

    _, test = split_arrays(output, "test")
    assert test.group_indices.tolist() == [0, 1, 2]  # the test puzzles have no augmentations
    assert [tokens_to_grid(labels).reshape(-1).tolist() for labels in test.labels] == [
        [int(digit) for digit in solution] for solution in (SOLUTIONS[3], SOLUTIONS[0])
    ]


def test_the_files_have_the_published_types(folder: Path, output: Path):
    assert build(output, folder, "--size=4") == 0
    types_written = {
        path.name: np.load(path, allow_pickle=False).dtype
        for path in sorted((output / "train").glob("*.npy"))
    }
    assert types_written == {
        "all__group_indices.npy": np.int32,
        "all__inputs.npy": np.uint8,
        "all__labels.npy": np.uint8,
        "all__puzzle_identifiers.npy": np.int32,
        "all__puzzle_indices.npy": np.int32,
    }


def test_manifest_tells_how_it_was_built(folder: Path, output: Path):
    assert build(output, folder, "--size=4", "--num-aug=2", "--seed=9", "--min-difficulty=5") == 0
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["command"] == [
        "build_sudoku_dataset.py",
        f"--source={folder}",
        "--size=4",
        "--num-aug=2",
        "--min-difficulty=5",
        "--seed=9",
    ]
    assert manifest["seed"] == 9
    for name in ("train.csv", "test.csv"):
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert manifest["sources"][name] == digest
    assert manifest["counts"]["train"] == {
        "rows": 3,
        "dropped_as_in_test": 0,
        "dropped_as_too_easy": 1,
        "puzzles": 2,
        "examples": 6,
        "mean_clues": 14.0,
        "mean_rating": 10.0,
    }
    written = content(output)
    assert set(manifest["files"]) == set(written) - {"manifest.json"}
    for name, digest in manifest["files"].items():
        assert hashlib.sha256(written[name]).hexdigest() == digest


def test_summary_says_what_was_written_and_where(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    assert build(output, folder, "--size=4", "--num-aug=999", "--subsample-size=5") == 0
    assert capsys.readouterr().out == (
        f"{output}: 3,000 training examples (3 puzzles, 999 augmentations each) and 2 test puzzles"
        " written; fewer training puzzles than the 5 asked for exist\n"
    )


def test_gzip_is_read_and_dot_and_zero_are_empty(folder: Path, output: Path):
    for name in ("train", "test"):
        text = (folder / f"{name}.csv").read_text().replace(".", "0")
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
        assert build(output.with_name(f"plain-{name}"), folder, "--size=4") == 0
        (folder / f"{name}.csv").unlink()
    assert build(output, folder, "--size=4") == 0
    for split in ("train", "test"):
        _, plain = split_arrays(output.with_name("plain-train"), split)
        _, zipped = split_arrays(output, split)
        assert zipped.inputs.tolist() == plain.inputs.tolist()


def test_byte_order_mark_crlf_quotes_and_empty_lines_are_read(folder: Path, output: Path):
    lines = [HEADER, *TRAIN[:1], "", *(line.replace("made", '"a, b"') for line in TRAIN[1:]), ""]
    (folder / "train.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert build(output, folder, "--size=4") == 0
    assert split_arrays(output, "train")[1].num_examples == 3


def test_min_difficulty_filters_both_files(folder: Path, output: Path):
    assert build(output, folder, "--size=4", "--min-difficulty=9") == 0
    train, test = split_arrays(output, "train")[1], split_arrays(output, "test")[1]
    assert tokens_to_grid(train.labels[0]).reshape(-1).tolist() == list(map(int, SOLUTIONS[2]))
    assert (train.num_examples, test.num_examples) == (1, 1)


def test_too_high_a_difficulty_leaves_nothing(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    assert build(output, folder, "--size=4", "--min-difficulty=13") == 3
    assert "--min-difficulty 13" in error_line(capsys)
    assert not output.exists()


def test_subsample_is_without_replacement_and_from_train_only(folder: Path, output: Path):
    rows = [row(SOLUTIONS[i % 4], i, *range(i // 4 + 1)) for i in range(40)]
    write_csv(folder / "train.csv", rows)
    flags = ["--size=4", "--subsample-size=15", "--test-size=1"]
    chosen = []
    for seed in (0, 1):
        path = output.with_name(f"seed-{seed}")
        assert build(path, folder, *flags, f"--seed={seed}") == 0
        train = split_arrays(path, "train")[1]
        assert len({bytes(inputs) for inputs in train.inputs}) == 15
        assert split_arrays(path, "test")[1].num_examples == 1
        chosen.append(train.inputs.tolist())
    assert chosen[0] != chosen[1]


def test_training_puzzles_that_are_test_puzzles_are_dropped_before_choosing(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    write_csv(folder / "train.csv", [*TEST, *TRAIN])
    assert build(output, folder, "--size=4", "--subsample-size=3", "--test-size=1") == 0
    assert "; 2 training rows dropped that are test rows too" in capsys.readouterr().out
    train = split_arrays(output, "train")[1]
    assert train.num_examples == 3
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["counts"]["train"]["dropped_as_in_test"] == 2
    assert manifest["counts"]["train"]["rows"] == 5


def test_nothing_left_to_train_on_is_an_error(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    write_csv(folder / "train.csv", TEST)
    assert build(output, folder, "--size=4") == 3
    assert "2 training puzzles are test puzzles too" in error_line(capsys)


@pytest.mark.parametrize(("size", "vocabulary"), [(4, 6), (6, 8), (9, 11)])
def test_generated_sets(size: int, vocabulary: int, output: Path):
    flags = [f"--size={size}", "--subsample-size=20", "--test-size=10", "--num-aug=2"]
    assert build(output, "generate", *flags) == 0
    metadata, train = split_arrays(output, "train")
    assert (metadata.vocab_size, metadata.seq_len) == (vocabulary, size * size)
    assert train.num_examples == 60
    _, test = split_arrays(output, "test")
    assert test.num_examples == 10
    for inputs in test.inputs:
        assert count_solutions(tokens_to_grid(inputs)) == 1
    assert json.loads((output / "manifest.json").read_text())["counts"]["train"]["attempts"] >= 20


def test_generated_training_puzzles_are_no_images_of_test_puzzles(output: Path):
    flags = ["--size=4", "--subsample-size=150", "--test-size=50", "--num-aug=20"]
    assert build(output, "generate", *flags) == 0
    symmetries = sudoku_symmetries(4)
    numbers = np.arange(symmetries.num_symmetries)
    images = set()
    for inputs in split_arrays(output, "test")[1].inputs:
        (boards,) = symmetries.apply(numbers, np.repeat(inputs[None], len(numbers), axis=0))
        images |= {board.tobytes() for board in boards}
    train = split_arrays(output, "train")[1].inputs
    assert len(train) == 150 * 21
    assert not any(inputs.tobytes() in images for inputs in train)


def test_the_test_set_does_not_depend_on_the_training_set(output: Path):
    for name, number in (("few", 5), ("many", 50)):
        path = output.with_name(name)
        assert build(path, "generate", f"--subsample-size={number}", "--test-size=10") == 0
    few, many = content(output.with_name("few")), content(output.with_name("many"))
    assert few["test/all__inputs.npy"] == many["test/all__inputs.npy"]


def test_generated_clues_and_difficulty(output: Path):
    flags = ["--subsample-size=2", "--test-size=2", "--min-difficulty=5", "--min-clues=27"]
    assert build(output, "generate", *flags) == 0
    counts = json.loads((output / "manifest.json").read_text())["counts"]
    for split in ("train", "test"):
        assert counts[split]["mean_rating"] >= 5
        clues = (split_arrays(output, split)[1].inputs != 1).sum(axis=1)
        assert clues.min() >= 27


# The same bytes


@pytest.mark.parametrize("source", ["generate", "folder"])
def test_same_command_same_bytes(source: str, folder: Path, tmp_path: Path):
    """In other processes, with other hash seeds, run as a file and as a module."""
    flags = ["--size=4", "--subsample-size=3", "--num-aug=5", "--test-size=2"]
    flags.append(f"--source={folder if source == 'folder' else 'generate'}")
    digests = []
    for number, (seed, program) in enumerate(
        [
            (4, ["dataset/build_sudoku_dataset.py"]),
            (4, ["-m", "dataset.build_sudoku_dataset"]),
            (5, ["-m", "dataset.build_sudoku_dataset"]),
        ]
    ):
        output = tmp_path / f"built-{number}"
        subprocess.run(
            [sys.executable, *program, *flags, f"--seed={seed}", f"--output-dir={output}"],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": str(number + 1), "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
        )
        digests.append(content(output))
    assert digests[0] == digests[1]
    assert digests[2].keys() == digests[0].keys()
    assert digests[2]["train/all__inputs.npy"] != digests[0]["train/all__inputs.npy"]


def test_reading_csv_loads_neither_compiler_nor_torch():
    program = (
        "import sys, dataset.build_sudoku_dataset;"
        "sys.exit('numba' in sys.modules or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0


# Mistakes


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("made,....,1234341221434321,1", "question has 4 characters; accepted: 16 (--size 4)"),
        ("made,1234341221434321,123,1", "answer has 3 characters"),
        (row(SOLUTIONS[0], 1, 3).replace(".", "x"), "question has 'x' in cell 4"),
        (row(SOLUTIONS[0], 1, 3).replace(".", "5"), "question has '5' in cell 4"),
        (row(SOLUTIONS[0], 1, 3).replace(".", "é"), "question has 'é' in cell 4"),
        ("made,................,123434122143432.,1", "answer has '.' in cell 16"),
        ("made,................,1234341221434320,1", "answer has '0' in cell 16"),
        ("made,................,1134341221434321,1", "digit 1 stands twice in row 1"),
        ("made,................,1234234134124123,1", "digit 2 stands twice in box 1"),
        ("made,..3..........2..,1234341221434321,1", "2 became 3 in cell 14"),
        (row(SOLUTIONS[0], "1.5", 3), "rating is '1.5'"),
        (row(SOLUTIONS[0], "", 3), "rating is ''"),
        (row(SOLUTIONS[0], "٣", 3), "rating is '٣'"),
        (row(SOLUTIONS[0], 10**30, 3), "rating is '1000"),
        (row(SOLUTIONS[0], "1,1", 3), "5 fields"),
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
    rows = [*TRAIN, "made,................,1111111111111111,1", TRAIN[0], "short"]
    write_csv(folder / "train.csv", rows)
    assert build(output, folder, "--size=4") == 3
    assert "row 5: answer breaks the rules" in error_line(capsys)
    write_csv(folder / "train.csv", [*rows[:3], *rows[4:]])
    assert build(output, folder, "--size=4") == 3
    assert "row 6: 1 fields" in error_line(capsys)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is missing; it is empty"),
        (TRAIN[0].encode() + b"\n", "the header source,question,answer,rating is missing"),
        (HEADER.encode() + b"\n", "no puzzle below the header"),
        (HEADER.encode() + b"\n" + b"\xff\xfe\x00", "row 2: "),
        (HEADER.encode() + b'\n"' + b"x" * 200_000, "cannot be read"),
    ],
)
def test_files_without_puzzles_are_named(
    text: bytes, reason: str, folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "test.csv").write_bytes(text)
    assert build(output, folder, "--size=4") == 3
    line = error_line(capsys)
    assert line.startswith(f"error: {folder / 'test.csv'}: ")
    assert reason in line


@pytest.mark.parametrize("damage", ["plain text", "cut", "flipped", "empty"])
def test_damaged_gzip_files_are_named(
    damage: str, folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    plain = (folder / "train.csv").read_bytes()
    zipped = bytearray(gzip.compress(plain))
    if damage == "flipped":
        zipped[len(zipped) // 2] ^= 0xFF
    damaged = {"plain text": plain, "cut": zipped[:-9], "flipped": zipped, "empty": b""}[damage]
    (folder / "train.csv").unlink()
    (folder / "train.csv.gz").write_bytes(damaged)
    assert build(output, folder, "--size=4") == 3
    assert error_line(capsys).startswith(f"error: {folder / 'train.csv.gz'}: ")


@pytest.mark.parametrize("name", ["train.csv", "train.csv.gz"])
def test_a_pipe_is_not_waited_for(
    name: str, folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "train.csv").unlink()
    os.mkfifo(folder / name)
    assert build(output, folder, "--size=4") == 3
    assert f"{folder / name}: cannot be read after line 0: not a regular" in error_line(capsys)


def test_a_file_that_unpacks_to_too_much_is_refused(
    folder: Path,
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    text = (folder / "train.csv").read_bytes()
    (folder / "train.csv").unlink()
    (folder / "train.csv.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr(sources, "_MAX_CHARACTERS", len(text))
    assert build(output, folder, "--size=4") == 0
    monkeypatch.setattr(sources, "_MAX_CHARACTERS", len(text) - 1)
    capsys.readouterr()
    assert build(output, folder, "--size=4") == 3
    reason = f"cannot be read after line 3: more than {len(text) - 1} characters"
    assert f"{folder / 'train.csv.gz'}: {reason}" in error_line(capsys)


def test_missing_files_and_folders_are_named(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "test.csv").unlink()
    assert build(output, folder, "--size=4") == 3
    assert f"{folder / 'test.csv'}: no such file, and no test.csv.gz" in error_line(capsys)
    assert build(output, folder / "nowhere") == 3
    assert f"{folder / 'nowhere'}: no such folder" in error_line(capsys)
    assert not output.parent.exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--num-augs=3"], "unknown argument '--num-augs=3'; nearest: --num-aug"),
        (["--subsample-size=0"], "--subsample-size: 0; accepted: 1 or more"),
        (["--subsample-size=many"], "'many' is no integer"),
        (["--test-size=-1"], "-1; accepted: 1 or more"),
        (["--num-aug=-1"], "-1; accepted: 0 or more"),
        (["--seed=18446744073709551616"], "accepted: 0 to 18446744073709551615"),
        (["--size=5"], "--size"),
        (["--min-clues=30"], "are for --source generate"),
        (["--source=generate"], "--output-dir is needed"),
        (["--source=generate", "--output-dir=x", "--source-repo=y"], "is for --source hf"),
        (["--source=generate", "--output-dir=x", "--min-clues=41", "--max-clues=40"], "is above"),
        (["--source=generate", "--output-dir=x", "--max-clues=16"], "16; accepted at size 9: 17"),
        (["--source=generate", "--output-dir=x", "--min-clues=81"], "81; accepted at size 9: 1 to"),
        (["--source=generate", "--output-dir=x", "--size=6", "--max-clues=36"], "8 to 35"),
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
    options = build_sudoku_dataset.parse_options([])
    assert options.output_dir == Path("data/sudoku-extreme-full")
    assert (options.source, options.source_repo) == ("hf", "sapientinc/sudoku-extreme")
    assert (options.subsample_size, options.num_aug, options.min_difficulty) == (None, 0, None)


def test_one_clue_bound_moves_the_other_default():
    base = ["--source=generate", "--output-dir=x"]
    options = build_sudoku_dataset.parse_options([*base, "--min-clues=50"])
    assert (options.min_clues, options.max_clues) == (50, 50)
    options = build_sudoku_dataset.parse_options([*base, "--max-clues=25"])
    assert (options.min_clues, options.max_clues) == (25, 25)
    options = build_sudoku_dataset.parse_options([*base, "--min-difficulty=5"])
    assert (options.min_clues, options.max_clues) == (17, 80)


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--output-dir", "--subsample-size", "--num-aug", "--min-difficulty"):
        assert flag in text
    assert "backtracks" in text


def test_puzzles_that_do_not_exist_are_a_configuration_error(
    output: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sudoku_generator, "_MAX_EFFORT", 300)
    flags = ["--size=4", "--min-clues=4", "--max-clues=4", "--test-size=14"]
    assert build(output, "generate", *flags) == 2
    assert "no 4x4 puzzle with 4 to 4 clues" in error_line(capsys)
    assert list(output.parent.iterdir()) == []


def test_other_folders_are_not_replaced(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    output.mkdir(parents=True)
    (output / "letter.txt").write_text("mine")
    assert build(output, folder, "--size=4") == 3
    assert str(output) in error_line(capsys)
    assert content(output) == {"letter.txt": b"mine"}


def test_an_older_set_is_replaced_as_a_whole(folder: Path, output: Path):
    assert build(output, folder, "--size=4", "--num-aug=3") == 0
    assert build(output, folder, "--size=4", "--num-aug=1") == 0
    assert split_arrays(output, "train")[1].num_examples == 6
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "somewhere"), 3, "No space left on device"),
        (PermissionError(13, "Permission denied", "somewhere"), 2, "Permission denied"),
        (MemoryError("Unable to allocate 9 TiB"), 3, "9 TiB; lower --subsample-size"),
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

    monkeypatch.setattr(build_sudoku_dataset, "write_puzzles", fail)
    assert build(output, folder, "--size=4", "--num-aug=1") == code
    assert reason in error_line(capsys)
    assert content(output) == before
    assert list(output.parent.iterdir()) == [output]


def test_a_set_larger_than_the_disk_is_refused_at_once(
    folder: Path, output: Path, capsys: pytest.CaptureFixture[str]
):
    assert build(output, folder, "--size=4", "--num-aug=10000000000000") == 3
    line = error_line(capsys)
    assert "GB are free" in line
    assert str(output.parent) in line


# Hugging Face


def hub(monkeypatch: pytest.MonkeyPatch, download: object) -> None:
    module = types.ModuleType("huggingface_hub")
    module.__dict__["hf_hub_download"] = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_hub_files_are_downloaded_and_built(
    folder: Path, output: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def download(repository: str, name: str, *, repo_type: str) -> str:
        asked.append((repository, name, repo_type))
        return str(folder / name)

    hub(monkeypatch, download)
    flags = [f"--output-dir={output}", "--size=4", "--source-repo=someone/sudoku"]
    assert main(flags) == 0
    assert asked == [
        ("someone/sudoku", "train.csv", "dataset"),
        ("someone/sudoku", "test.csv", "dataset"),
    ]
    assert split_arrays(output, "train")[1].num_examples == 3
    command = json.loads((output / "manifest.json").read_text())["command"]
    assert "--source-repo=someone/sudoku" in command


def test_hub_failures_offer_other_sources(
    output: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def download(*_: object, **__: object) -> str:
        raise ConnectionError("Name or service not known\nand a second line")

    hub(monkeypatch, download)
    assert main([f"--output-dir={output}"]) == 3
    line = error_line(capsys)
    assert "train.csv of sapientinc/sudoku-extreme cannot be downloaded" in line
    assert "ConnectionError: Name or service not known" in line
    assert "--source generate" in line
    assert not output.parent.exists()


def test_without_huggingface_hub_it_says_how_to_install_it(
    output: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main([f"--output-dir={output}"]) == 3
    line = error_line(capsys)
    assert "pip install huggingface_hub" in line
    assert "--source FOLDER" in line


# Real puzzles


@pytest.mark.skipif("PUZZLE_DATA_DIR" not in os.environ, reason="PUZZLE_DATA_DIR is not set")
def test_real_files_build(output: Path):
    source = Path(os.environ["PUZZLE_DATA_DIR"]) / "sudoku-extreme-1k"
    assert build(output, source, "--num-aug=3") == 0
    metadata, train = split_arrays(output, "train")
    assert (metadata.total_groups, train.num_examples, metadata.vocab_size) == (1000, 4000, 11)
    assert split_arrays(output, "test")[1].num_examples == 5000
    counts = json.loads((output / "manifest.json").read_text())["counts"]["train"]
    assert counts["dropped_as_in_test"] == 0
    assert counts["mean_rating"] == pytest.approx(20.8, abs=0.05)
    assert counts["mean_clues"] == pytest.approx(25.2, abs=0.05)
