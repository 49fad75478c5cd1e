"""The lock on a run's folder: which run gets it, and the message for the run that does not."""

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import ConfigError, LockedError
from training.checkpoint import lock as module
from training.checkpoint.lock import LOCK_FILE, Owner, run_lock


@pytest.fixture(params=[True, False], ids=["flock", "no flock"])
def either_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Test with and without flock; the value says whether the file system has it."""
    if not request.param:
        without_flock(monkeypatch)
    return bool(request.param)


def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def write_record(folder: Path, **changes: Any) -> None:
    owner = vars(Owner.this_process()) | changes
    (folder / LOCK_FILE).write_text(json.dumps(owner))


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.usefixtures("either_system")
def test_one_run_holds_the_lock_and_leaves_no_file(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        owner = Owner.recorded(tmp_path / LOCK_FILE)
        assert names(tmp_path) == [LOCK_FILE]
        with pytest.raises(LockedError) as refused, run_lock(tmp_path):
            pytest.fail("two runs in one folder")
        assert names(tmp_path) == [LOCK_FILE]
    assert names(tmp_path) == []
    using = f"{tmp_path}: another run is using this folder (process {os.getpid()} on "
    since = r".*since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S+\): stop it, or choose another"
    since += " checkpoint_path(;|$)"
    assert re.match(re.escape(using) + since, str(refused.value))
    assert owner is not None
    assert owner.pid == os.getpid()
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in owner.boot
    assert owner.started.isdigit()
    with pytest.raises(KeyboardInterrupt), run_lock(tmp_path):
        raise KeyboardInterrupt
    assert names(tmp_path) == []


# Processes that have ended


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({}, False),
        ({"started": "1"}, True),
        ({"host": "elsewhere", "started": "1"}, False),
        ({"boot": "another", "started": "1"}, False),
    ],
    ids=["lives", "number used again", "other host", "other boot"],
)
def test_an_owner_is_gone_only_if_that_is_certain(
    tmp_path: Path, changes: dict[str, Any], gone: bool
) -> None:
    write_record(tmp_path, **changes)
    owner = Owner.recorded(tmp_path / LOCK_FILE)
    assert owner is not None
    assert owner.is_gone is gone


def test_a_process_that_has_ended_is_gone_before_its_parent_waits_for_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = module._start_of(process.pid)
        write_record(tmp_path, pid=process.pid, started=started)
        owner = Owner.recorded(tmp_path / LOCK_FILE)
        assert owner is not None
        assert not owner.is_gone
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner.is_gone


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": 1}', "\0" * 99])
def test_a_lock_file_without_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / LOCK_FILE).write_text(content)
    assert Owner.recorded(tmp_path / LOCK_FILE) is None
    with run_lock(tmp_path):  # No process holds it.
        pass
    (tmp_path / LOCK_FILE).write_text(content)
    without_flock(monkeypatch)
    with pytest.raises(LockedError, match="unknown process"), run_lock(tmp_path):
        pass


# Killed runs


def test_a_lock_that_is_held_after_its_owner_has_ended(tmp_path: Path) -> None:
    """A child of a killed run may still hold the lock."""
    write_record(tmp_path, started="1", host="elsewhere")
    with (tmp_path / LOCK_FILE).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(LockedError, match="on elsewhere, since"), run_lock(tmp_path):
            pass
        write_record(tmp_path, started="1")
        with run_lock(tmp_path):
            assert '"started": "1"' not in (tmp_path / LOCK_FILE).read_text()
            with pytest.raises(LockedError), run_lock(tmp_path):
                pass
    assert names(tmp_path) == []


def test_leftovers_of_killed_runs_block_no_start(tmp_path: Path) -> None:
    for suffix in ("", ".new", ".gate"):
        (tmp_path / f"{LOCK_FILE}{suffix}").write_text("{")
    write_record(tmp_path, started="1")
    with run_lock(tmp_path):
        assert names(tmp_path) == [LOCK_FILE]
    assert names(tmp_path) == []


@pytest.mark.usefixtures("either_system")
@pytest.mark.parametrize("target", ["new", "kept"])
@pytest.mark.parametrize("suffix", ["", ".new", ".gate"])
def test_links_are_not_followed(tmp_path: Path, suffix: str, target: str) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    write_record(outside)  # The recorded process lives.
    (outside / LOCK_FILE).rename(outside / "kept")
    before = (outside / "kept").read_bytes()
    (run / f"{LOCK_FILE}{suffix}").symlink_to(outside / target)
    with (outside / "kept").open() as file:
        module._flock(file.fileno())
        with run_lock(run):
            assert names(run) == [LOCK_FILE]
            assert not (run / LOCK_FILE).is_symlink()
    assert names(outside) == ["kept"]
    assert (outside / "kept").read_bytes() == before
    assert names(run) == []


def test_without_flock_the_recorded_process_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_flock(monkeypatch)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    write_record(tmp_path, pid=process.pid)
    with run_lock(tmp_path):
        pass
    assert names(tmp_path) == []
    write_record(tmp_path, host="elsewhere")
    wanted = f"if that run has ended, delete {tmp_path / LOCK_FILE}"
    with pytest.raises(LockedError, match=re.escape(wanted)), run_lock(tmp_path):
        pass
    assert names(tmp_path) == [LOCK_FILE]


# The gate, and folders that cannot be written


def test_waiting_at_the_gate_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GATE_SECONDS", 0.1)
    starting = pytest.raises(LockedError, match="another run is just starting")
    with module._gate(tmp_path, True), starting, run_lock(tmp_path):
        pass
    without_flock(monkeypatch)
    gate = tmp_path / f"{LOCK_FILE}.gate"
    gate.touch()
    with pytest.raises(LockedError, match=f"if there is none, delete {gate}"), run_lock(tmp_path):
        pass


@pytest.mark.parametrize("call", ["write", "open"])
def test_a_folder_that_cannot_be_written_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    original: Callable[..., Any] = getattr(os, call)

    def refuse(first: Any, *rest: Any) -> Any:
        if call == "write" or str(first).endswith(".new"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(first, *rest)

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(ConfigError, match=f"{tmp_path}: No space left"), run_lock(tmp_path):
        pass
    monkeypatch.undo()
    assert names(tmp_path) == []


def test_programs_that_the_run_starts_do_not_inherit_the_lock(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        links = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        same = [link for link in links if link.exists() and link.samefile(tmp_path / LOCK_FILE)]
        assert [os.get_inheritable(int(link.name)) for link in same] == [False]
