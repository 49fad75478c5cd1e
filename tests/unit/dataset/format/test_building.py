"""A data set is built beside its folder and moved there in one step."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from dataset.format.reading import load_split
from dataset.format.writing import atomic_build, write_manifest, write_puzzles
from runtime import files
from runtime.errors import DatasetError

Patch = pytest.MonkeyPatch
CELLS = np.arange(20, dtype=np.int64).reshape(5, 4) % 7


def build(directory: Path, *, manifest: bool = False) -> None:
    write_puzzles(directory / "train", CELLS, CELLS, vocab_size=7)
    if manifest:
        write_manifest(directory, command=["build"], seed=1, sources={}, counts={})


def test_atomic_build_puts_the_set_in_place(tmp_path: Path):
    output = tmp_path / "deep" / "set"
    with atomic_build(output) as temporary:
        assert temporary.parent == output.parent
        build(temporary)
        assert not output.exists()
    load_split(output / "train")
    assert [path.name for path in output.parent.iterdir()] == ["set"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(output.stat().st_mode) == 0o777 & ~umask


def test_atomic_build_refuses_what_is_no_data_set(tmp_path: Path):
    folder, file, late = (tmp_path / name for name in ("home", "file", "late"))
    folder.mkdir()
    file.touch()

    def build_and_write_thesis() -> None:
        with atomic_build(late) as temporary:
            build(temporary)
            late.mkdir()
            (late / "thesis.tex").touch()

    (folder / "thesis.tex").touch()
    for output, reason in ((folder, "is not a data set"), (file, "is not a folder")):
        with pytest.raises(DatasetError, match=reason), atomic_build(output):
            pytest.fail("the build was started")
    # The folder is checked again before it is replaced.
    with pytest.raises(DatasetError, match="is not a data set"):
        build_and_write_thesis()
    assert [path.name for each in (folder, late) for path in each.iterdir()] == ["thesis.tex"] * 2
    (folder / "thesis.tex").unlink()
    with atomic_build(folder) as temporary:
        build(temporary)
    load_split(folder / "train")


@pytest.mark.parametrize(
    ("is_set", "name", "reason"),
    [
        (True, "train.csv", "train.csv is no part of the data set and would be deleted; move it"),
        (True, "train/notes.md", "train/notes.md is no part of the data set and would be deleted"),
        (False, "manifest.json", "exists and is not a data set"),
    ],
)
def test_files_of_others_are_never_deleted(tmp_path: Path, is_set: bool, name: str, reason: str):
    output = tmp_path / "set"
    output.mkdir()
    if is_set:
        build(output, manifest=True)
    (output / name).touch()
    before = sorted(output.rglob("*"))
    with pytest.raises(DatasetError, match=reason), atomic_build(output):
        pytest.fail("the build was started")
    assert sorted(output.rglob("*")) == before


@pytest.mark.parametrize("exchange", [True, False])
def test_an_older_set_is_replaced_once_everything_is_on_the_disk(
    tmp_path: Path, monkeypatch: Patch, exchange: bool
):
    output = tmp_path / "set"
    build(output)
    (output / "train" / "all__old.npy").touch()
    reader = load_split(output / "train")[1]["all"].inputs
    done: list[tuple[str, int | None]] = []
    sync, rename, swap = os.fsync, os.rename, files.exchange

    def note_sync(descriptor: int) -> None:
        done.append(("sync", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def note_rename(first: Path, second: Path) -> None:
        done.append(("swap", None))
        rename(first, second)

    def note_exchange(first: Path, second: Path) -> bool:
        if exchange:
            done.append(("swap", None))
        return exchange and swap(first, second)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    monkeypatch.setattr(files, "exchange", note_exchange)
    with atomic_build(output) as temporary:
        build(temporary, manifest=True)
    swaps = [place for place, (what, _) in enumerate(done) if what == "swap"]
    before = {inode for _, inode in done[: swaps[0]]}
    assert {path.stat().st_ino for path in [output, *output.rglob("*")]} <= before
    assert ("sync", tmp_path.stat().st_ino) in done[swaps[-1] :]
    assert sorted(path.name for path in output.iterdir()) == ["manifest.json", "train"]
    assert not (output / "train" / "all__old.npy").exists()
    assert list(tmp_path.iterdir()) == [output]
    np.testing.assert_array_equal(reader, CELLS)  # Old readers keep the old file.


def test_builds_at_the_same_time_do_not_disturb_each_other(tmp_path: Path):
    output = tmp_path / "set"
    with atomic_build(output) as slow:
        build(slow)
        with atomic_build(output) as quick:
            build(quick)
        load_split(output / "train")
        (slow / "slow").touch()
    assert (output / "slow").exists()
    assert list(tmp_path.iterdir()) == [output]
