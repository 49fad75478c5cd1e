"""Checkpoint folders: the order of a save, faults at each step of it, damage, pruning."""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runtime import files
from runtime.errors import CheckpointError
from runtime.files import write_atomically
from training.checkpoint import store
from training.checkpoint.store import (
    MANIFEST,
    STATE,
    RunState,
    list_steps,
    load_checkpoint,
    save_checkpoint,
)

FILES = ("model.bin", "carry.bin")


def save(run_dir: Path, step: int, **state: Any) -> Path:
    """Save a checkpoint of two small files."""
    writers = {name: lambda path: path.write_bytes(b"content of " * 9) for name in FILES}
    return save_checkpoint(run_dir, RunState(step=step, **state), writers)


def newest(run_dir: Path) -> tuple[int | None, list[str]]:
    """Return the step of the newest good checkpoint and the warnings on the way to it."""
    warnings: list[str] = []
    found = store.newest_good(run_dir, warnings.append)
    return (None if found is None else found.step), warnings


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def list_in_manifest(folder: Path, name: str, size: int, digest: str) -> None:
    manifest = store.read_json(folder / MANIFEST)
    manifest["files"][name] = {"size": size, "sha256": digest}
    (folder / MANIFEST).write_text(json.dumps(manifest))


# Saving


def test_a_checkpoint_comes_back_and_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    path = save(tmp_path, 7, wandb_id="x", score=1)
    again = save(tmp_path / "other", 7, score=1, wandb_id="x")
    loaded = load_checkpoint(path)
    assert (loaded.path, loaded.step, loaded.state.wandb_id) == (tmp_path / "step_7", 7, "x")
    assert names(path) == sorted((*FILES, STATE, MANIFEST))
    assert list_steps(tmp_path) == [7]
    assert all((path / name).read_bytes() == (again / name).read_bytes() for name in names(path))


def test_order_of_a_save_and_a_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def noting(module: Any, name: str) -> None:
        original = getattr(module, name)

        def call(*paths: Any, **options: Any) -> Any:
            named = [p.name for p in map(Path, paths) if p.is_relative_to(tmp_path)]
            calls.append(f"{name} {' -> '.join(named)}")
            return original(*paths, **options)

        monkeypatch.setattr(module, name, call)

    noting(store, "fsync")
    noting(store, "swap_into_place")
    noting(os, "rename")
    noting(store.shutil, "rmtree")
    path = save(tmp_path, 3)
    assert calls[:-1] == [
        *(f"fsync {name}" for name in (*FILES, STATE, MANIFEST, ".step_3.tmp")),
        "swap_into_place .step_3.tmp -> step_3",
        "rename .step_3.tmp -> step_3",
    ]
    calls.clear()
    store.remove_checkpoint(path)
    assert calls == ["rename step_3 -> .step_3.old", f"fsync {tmp_path.name}", "rmtree .step_3.old"]
    assert names(tmp_path) == []


def test_a_failing_disk_leaves_older_checkpoints_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = save(tmp_path, 1)

    def fail(*call: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def write(path: Path) -> None:
        path.write_bytes(b"half of the con")
        fail()

    with pytest.raises(CheckpointError, match=r"step_2: could not be saved: .*Input/output error"):
        save_checkpoint(tmp_path, RunState(step=2), {"model.bin": write})
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(CheckpointError, match="step_1: could not be removed"):
        store.remove_checkpoint(kept)
    assert names(tmp_path) == ["step_1"]
    assert newest(tmp_path) == (1, [])


def test_each_writer_has_its_own_file_and_deletes_those_of_killed_writers(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    (tmp_path / ".config.yaml.tmp-0123abcd").write_text("half of the con")
    with files.replacing(path) as file:
        file.write(b"of the one")
        write_atomically(path, "of the other")
        assert path.read_text() == "of the other"
        assert len(names(tmp_path)) == 2
    assert (names(tmp_path), path.read_text()) == (["config.yaml"], "of the one")


def test_a_checkpoint_that_a_killed_save_had_moved_away_counts(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2).rename(tmp_path / ".step_2.replaced-0123abcd")
    assert newest(tmp_path) == (2, [])
    store.put_back_replaced(tmp_path)
    assert list_steps(tmp_path) == [1, 2]
    assert newest(tmp_path) == (2, [])


def test_leftovers_of_kills_are_removed_and_nothing_else(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for folder in (run, elsewhere):
        folder.mkdir()
    for name in (".step_3.tmp", ".step_4.tmp", ".step_1.old", ".step_2.replaced-0123abcd"):
        (run / name).mkdir()
        (run / name / "model.bin").write_bytes(b"x")
    assert names(save(run, 3)) == sorted((*FILES, STATE, MANIFEST))
    (run / ".notes").write_text("mine")
    kept = save(elsewhere, 5)
    for name in ("step_5", ".step_6.tmp", ".step_7.old"):
        (run / name).symlink_to(kept)
    store.remove_leftovers(run)
    assert names(run) == [".notes", "step_3", "step_5"]
    store.remove_checkpoint(run / "step_5")
    assert names(run) == [".notes", "step_3"]
    assert load_checkpoint(kept).step == 5  # The targets of links stay.


# Damage


@pytest.mark.parametrize("name", [*FILES, STATE, MANIFEST])
def test_cut_grown_changed_and_missing_files_are_found_and_named(tmp_path: Path, name: str) -> None:
    file = save(tmp_path, 1) / name
    content = file.read_bytes()
    cut = [content[:length] for length in (0, 1, len(content) // 2, len(content) - 2)]
    for each in (*cut, content + b"}", content[:-2] + b"?" + content[-1:]):
        file.write_bytes(each)
        with pytest.raises(CheckpointError, match=f"step_1/{name}"):
            load_checkpoint(tmp_path / "step_1")
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{name}: No such file"):
        load_checkpoint(tmp_path / "step_1")


def test_a_file_that_cannot_be_read_is_named_and_skipped(tmp_path: Path) -> None:
    save(tmp_path, 1)
    file = save(tmp_path, 2) / "model.bin"
    file.unlink()
    # This file of the kernel exists, and reading it always fails.
    file.symlink_to("/proc/self/mem")
    list_in_manifest(file.parent, file.name, 0, "")
    with pytest.raises(CheckpointError, match=r"model\.bin: Input/output error"):
        load_checkpoint(file.parent)
    found, warnings = newest(tmp_path)
    assert (found, len(warnings)) == (1, 1)


def test_a_file_that_was_not_saved_is_found_and_named(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / ".DS_Store").write_bytes(b"a file manager's")
    assert load_checkpoint(path).step == 1
    (path / "optimizer.bin").write_bytes(b"from elsewhere")
    with pytest.raises(CheckpointError, match=r"optimizer\.bin: is not in MANIFEST\.json"):
        load_checkpoint(path)


def test_the_newest_good_one_is_found_with_a_warning_of_each_bad_one(tmp_path: Path) -> None:
    assert newest(tmp_path) == (None, [])
    assert newest(tmp_path / "nowhere") == (None, [])
    for step in (5, 10, 100):
        save(tmp_path, step)
    assert newest(tmp_path) == (100, [])
    (tmp_path / "step_100" / "model.bin").write_bytes(b"other")
    (tmp_path / "step_10" / MANIFEST).unlink()
    step, (first, second) = newest(tmp_path)
    assert step == 5
    assert str(tmp_path / "step_100" / "model.bin") in first
    assert str(tmp_path / "step_10" / MANIFEST) in second
    # Without a good one, the run does not start anew.
    (tmp_path / "step_5" / "model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"all checkpoints are damaged: .*model\.bin"):
        newest(tmp_path)


def entry(name: str, size: object = 1, sha256: str = "0" * 64) -> str:
    return json.dumps({"files": {STATE: {"size": 1}, name: {"size": size, "sha256": sha256}}})


SECRET = 1, hashlib.sha256(b"s").hexdigest()
MALFORMED = ["", "{", "[]", "null", '"files"', "{}", '{"files": []}', '{"files": {}}', "\udcff"]
MALFORMED += [f'{{"files": {{"state.json": {entry}}}}}' for entry in (7, "{}", '{"size": "1"}')]
MALFORMED += [entry(name, *SECRET) for name in ("../secret", "a/../../secret")]
MALFORMED += [entry(name) for name in ("/etc/hostname", "..", ".", "", "a/b", "\0")]


@pytest.mark.parametrize("content", [*MALFORMED, "[" * 100_000])
def test_malformed_manifests_and_names_that_lead_outside_are_refused(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "secret").write_text("s")
    path = save(tmp_path, 1)
    size, digest = (path / STATE).stat().st_size, store.sha256(path / STATE)
    state = json.dumps({"size": size, "sha256": digest})
    content = content.replace('{"size": 1}', state)
    (path / MANIFEST).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match="step_1"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": None}, r"step is None, expected a valid integer"),
        ({"of_another_version": 1}, r"step is None, expected a valid integer"),
        ({"step": "1"}, r"step is '1', expected a valid integer"),
        ({"step": True}, "step is True, "),
        ({"step": 2}, "step 2 in the folder step_1"),
        ({"step": 1, "iteration": -1}, "iteration is -1, expected greater than or equal to 0"),
        ({"step": 1, "position": 0.5}, r"position is 0\.5, "),
        ({"step": 1, "best_score": "0.5"}, r"best_score is '0\.5', expected a valid number"),
        ({"step": 1, "score": False}, "score is False, "),
        ({"step": 1, "permanent": 1}, "permanent is 1, "),
        ({"step": 1, "config": []}, r"config is \[\], "),
        ({"step": 1, "facts": "x"}, "facts is 'x', "),
        ({"step": 1, "environment": None}, "environment is None, "),
        ({"step": 1, "wandb_id": ["x" * 99]}, r"wandb_id is \['xxx.*\.\.\., "),
    ],
)
def test_values_of_other_types_in_a_state_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = save(tmp_path, 1)
    write_state(path, change)
    with pytest.raises(CheckpointError, match=rf"step_1/state\.json: {message}"):
        load_checkpoint(path)


def test_a_state_needs_only_a_step_and_may_have_keys_of_other_versions(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    write_state(path, {"step": 1, "of_another_version": {"x": 1}})
    assert load_checkpoint(path).state == RunState(step=1)


def write_state(folder: Path, state: dict[str, Any]) -> None:
    (folder / STATE).write_text(json.dumps(state))
    size, digest = (folder / STATE).stat().st_size, store.sha256(folder / STATE)
    list_in_manifest(folder, STATE, size, digest)


def test_huge_json_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MAX_JSON_BYTES", 10)
    (tmp_path / "x.json").write_text('{"a": "much more"}')
    with pytest.raises(CheckpointError, match=r"x\.json: larger than 10 bytes"):
        store.read_json(tmp_path / "x.json")


# Pruning


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [
        (2, 0, [1, 5, 6]),
        (3, 0, [1, 4, 5, 6]),
        (2, 1, [1, 3, 5, 6]),
        (2, 2, [1, 2, 3, 5, 6]),  # of equal scores, the later one
        (10, 0, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_last_the_best_and_the_permanent_stay(
    tmp_path: Path, keep_last: int, keep_best: int, kept: list[int]
) -> None:
    for step, score in enumerate((0.5, 0.1, 0.5, 0.9, None, None, None)):
        save(tmp_path, step, score=score, permanent=step == 1)
    store.prune(tmp_path, keep_last=keep_last, keep_best=keep_best)
    assert list_steps(tmp_path) == kept
    assert newest(tmp_path) == (6, [])


def test_scores_on_other_puzzles_are_not_compared(tmp_path: Path) -> None:
    on_test, on_selection = {"eval_split": "test"}, {"eval_split": "selection"}
    elsewhere = on_test | {"data_paths_test": ["elsewhere"]}
    scored = [({}, 0.9), (on_test, 0.8), (on_selection, 0.3), (elsewhere, 0.1), (on_selection, 0.2)]
    for step, (config, score) in enumerate([*scored, (on_test, None)]):
        save(tmp_path, step, score=score, config=config)
    store.prune(tmp_path, keep_last=1, keep_best=1)
    assert list_steps(tmp_path) == [0, 2, 3, 5]
    for step, (config, score) in enumerate([({"eval_max_examples": 9}, 0.99), ({}, 0.1)], start=6):
        save(tmp_path, step, score=score, config=on_test | config)
    store.prune(tmp_path, keep_last=1, keep_best=1)
    assert list_steps(tmp_path) == [0, 2, 3, 6, 7]


def test_an_unreadable_one_is_neither_counted_nor_deleted(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    (tmp_path / "step_3" / STATE).write_text("{")
    store.prune(tmp_path, keep_last=2, keep_best=0)
    assert list_steps(tmp_path) == [2, 3, 4]


def test_folders_with_other_names_are_not_checkpoints(tmp_path: Path) -> None:
    for name in ("step_x", "step_", "xstep_1", "step_1.tmp", ".step_1.tmp", "abandoned_step_4"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_9").write_text("a published file")
    assert list_steps(tmp_path) == []


def test_a_checkpoint_pruned_meanwhile_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save(tmp_path, step)

    def load(path: Path) -> store.Checkpoint:
        if path.name == "step_2":  # Meanwhile the run removes it.
            store.remove_checkpoint(path)
        return load_checkpoint(path)

    monkeypatch.setattr(store, "load_checkpoint", load)
    found = store.newest_good(tmp_path, pytest.fail)
    assert found is not None
    assert found.step == 1
