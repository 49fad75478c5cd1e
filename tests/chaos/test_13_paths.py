"""Row 13: what cannot be written is refused before anything is trained, measured or built, with
exit code 2 and the path.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.builds import CachedDownloads, build, flags, write_sources
from harness.mounts import Protected, ReadOnly, available
from harness.operations import FailAll
from harness.processes import Child, Fault, ForkServer, evaluate, pretrain

GENERATED = {
    "sudoku": ("--source=generate", "--size=4", "--subsample-size=4", "--test-size=2"),
    "maze": (
        *("--source=generate", "--size=6", "--min-length=6"),
        *("--subsample-size=4", "--test-size=2"),
    ),
}


@pytest.fixture(scope="module", params=["read-only disk", "no permission"])
def hindrance(request: pytest.FixtureRequest) -> str:
    """Why nothing can be written."""
    return request.param


@pytest.fixture(scope="module")
def unwritable(hindrance: str) -> Callable[[Path], Fault]:
    """Return the fault that lets nobody write below a folder."""
    if hindrance == "no permission":
        return Protected
    # Where nobody may mount, the hook answers as such a disk would.
    return ReadOnly if available() else lambda folder: FailAll(folder, errno.EROFS)


@pytest.fixture
def tally(tally: Callable[..., None], hindrance: str) -> Callable[..., None]:
    """Say of each figure what the hindrance was."""
    return lambda *figures: tally(*(f"{hindrance}: {figure}" for figure in figures))


def tree(folder: Path) -> Mapping[str, bytes | None]:
    """All that is below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def require_refusal(child: Child, named: Path, folder: Path, before: Mapping[str, Any]) -> None:
    """Demand exit code 2, one line that names the path, and everything as it was."""
    assert child.wait() == 2, child.err
    assert len(child.err.splitlines()) == 1, child.err
    assert str(named) in child.err, child.err
    assert child.out == ""
    assert tree(folder) == before


@pytest.mark.row(13)
def test_a_run_where_nothing_can_be_written(
    fork_server: ForkServer,
    full_settings: list[str],
    unwritable: Callable[[Path], Fault],
    tmp_path: Path,
    tally: Callable[..., None],
) -> None:
    disk = tmp_path / "disk"
    (disk / "empty").mkdir(parents=True)
    settings = [*full_settings, "max_steps=3"]
    fork_server.finish(pretrain, *settings, f"checkpoint_path={disk / 'begun'}")
    places = ("empty", "begun", "to be made", "to be made/below")
    before = tree(disk)
    for place in places:
        overrides = [*settings, f"checkpoint_path={disk / place}", "max_steps=6"]
        child = fork_server.run(pretrain, *overrides, faults=[unwritable(disk)])
        require_refusal(child, disk / place, disk, before)
    without_path = [one for one in settings if not one.startswith("checkpoint_path")]
    faults = [unwritable(disk), partial(os.chdir, disk)]
    child = fork_server.run(pretrain, *without_path, faults=faults)
    require_refusal(child, Path("checkpoints"), disk, before)
    tally(f"{len(places) + 1} run folders refused")


@pytest.mark.row(13)
def test_an_evaluation_whose_result_cannot_be_written(
    fork_server: ForkServer,
    full_settings: list[str],
    unwritable: Callable[[Path], Fault],
    tmp_path: Path,
    tally: Callable[..., None],
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    run = disk / "run"
    fork_server.finish(pretrain, *full_settings, f"checkpoint_path={run}", "max_steps=3")
    before = tree(disk)
    outputs = {
        "": run / "eval_step_3.json",
        f"output={disk / 'other.json'}": disk / "other.json",
        f"output={disk / 'new' / 'other.json'}": disk / "new" / "other.json",
    }
    for setting, named in outputs.items():
        overrides = [f"checkpoint={run}", "device=cpu", *filter(None, [setting])]
        child = fork_server.run(evaluate, *overrides, faults=[unwritable(disk)])
        require_refusal(child, named, disk, before)
    elsewhere = [f"checkpoint={run}", "device=cpu", f"output={tmp_path / 'elsewhere.json'}"]
    fork_server.finish(evaluate, *elsewhere, faults=[unwritable(disk)])
    assert json.loads((tmp_path / "elsewhere.json").read_bytes())["step"] == 3
    tally(f"{len(outputs)} results of evaluations refused")


@pytest.mark.row(13)
@pytest.mark.parametrize("kind", ["sudoku", "maze", "arc"])
def test_a_data_set_that_cannot_be_written(
    fork_server: ForkServer,
    unwritable: Callable[[Path], Fault],
    tmp_path: Path,
    kind: str,
    tally: Callable[..., None],
) -> None:
    disk, sources = tmp_path / "disk", write_sources(tmp_path / "sources")
    disk.mkdir()

    def arguments(output: Path) -> list[str]:
        if kind in GENERATED:
            return [*GENERATED[kind], f"--output-dir={output}"]
        return flags(kind, sources, output)

    fork_server.finish(build, kind, *arguments(disk / "built"))
    before = tree(disk)
    places = ("built", "new", "new/below")
    for place in places:
        faults = [unwritable(disk)]
        child = fork_server.run(build, kind, *arguments(disk / place), faults=faults)
        require_refusal(child, disk / place, disk, before)
    tally(f"{len(places)} outputs of the {kind} builder refused")


@pytest.mark.row(13)
def test_a_cache_of_downloads_that_cannot_be_written(
    fork_server: ForkServer,
    unwritable: Callable[[Path], Fault],
    tmp_path: Path,
    tally: Callable[..., None],
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    faults = [CachedDownloads(cache), unwritable(cache)]
    output = f"--output-dir={tmp_path / 'new'}"
    child = fork_server.run(build, "sudoku", "--source=hf", output, faults=faults)
    require_refusal(child, cache, cache, {})
    assert not (tmp_path / "new").exists()
    tally("1 cache of downloads refused")
