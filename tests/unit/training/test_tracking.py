"""metrics.jsonl: the records that a resumed run keeps, and a disk that refuses writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import CheckpointError, Preempted
from training import tracking
from training.checkpoint.store import Checkpoint, RunState
from training.tracking import Tracker


def at(step: int, position: int = 1) -> Checkpoint:
    """Return a checkpoint inside an iteration; with position 0, one after an evaluation."""
    return Checkpoint(Path("unused"), RunState(step=step, position=position))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained(step: int) -> dict[str, Any]:
    return {"step": step, "train/lr": 1.0}


def evaluated(step: int) -> dict[str, Any]:
    return {"step": step, "eval/accuracy": 0.5}


# The file


def test_records_are_there_as_soon_as_they_are_logged(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with Tracker(path, at(5)) as tracker:  # A resumed run with its file deleted.
        # The second record has numbers that JSON cannot write.
        tracker.log([trained(1), {"step": 2, "loss": float("nan"), "norm": float("-inf")}])
        assert lines(path) == [trained(1), {"step": 2, "loss": "nan", "norm": "-inf"}]


FOUR = [trained(1), trained(2), evaluated(2), trained(3)]


@pytest.mark.parametrize(
    ("records", "end", "checkpoint", "num_kept"),
    [
        pytest.param(FOUR, b"", None, 0, id="a new run"),
        pytest.param([*FOUR, trained(4)], b"", at(3), 4, id="what came after the checkpoint"),
        pytest.param(FOUR, b"", at(2, position=0), 3, id="saved after the evaluation"),
        pytest.param(FOUR, b"", at(2, position=2), 2, id="saved before the evaluation"),
        *(
            pytest.param([trained(1)], end, at(5), 1, id=f"ends with {end!r}")
            for end in (b"\0\0\0", b"\xff\xfe\n", b"[]\n", b"{}\n", b"7\n", b"{")
        ),
        pytest.param([trained(1)], b'{"step": 2, "tr', at(5), 1, id="a line that a kill cut"),
        pytest.param([trained(1)], b'{"step": 2}', at(5), 1, id="a line without its end"),
    ],
)
def test_a_resumed_run_keeps_what_belongs_to_it(
    tmp_path: Path, records: list[Any], end: bytes, checkpoint: Checkpoint | None, num_kept: int
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes("".join(json.dumps(record) + "\n" for record in records).encode() + end)
    with Tracker(path, checkpoint):
        pass
    assert lines(path) == records[:num_kept]


def test_a_run_that_goes_back_on_purpose_keeps_the_later_records(tmp_path: Path) -> None:
    path, abandoned = tmp_path / "m.jsonl", tmp_path / "abandoned_m.jsonl"
    for keep_dropped, number in ((False, 0), (True, 1), (True, 2)):
        path.write_text("".join(f"{json.dumps(record)}\n" for record in FOUR) + '{"step": 4, "tr')
        with Tracker(path, at(2, position=0), keep_dropped):
            pass
        assert lines(path) == FOUR[:3]
        assert abandoned.exists() == keep_dropped
        assert not keep_dropped or lines(abandoned) == [trained(3)] * number


@pytest.fixture
def on_full_disk(tmp_path: Path) -> Tracker:
    """Return a tracker with a file that refuses all writes, and half a line in its buffer."""
    tracker = Tracker(tmp_path / "m.jsonl", None)
    tracker._file.close()
    tracker._file = Path("/dev/full").open("a")  # noqa: SIM115
    tracker._file.write("{")
    return tracker


REFUSED = r"m\.jsonl: No space left on device"


def test_a_disk_that_refuses_is_one_error_that_names_the_file(
    on_full_disk: Tracker, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=REFUSED):
        on_full_disk.log([trained(1)])
    with pytest.raises(CheckpointError, match=REFUSED), on_full_disk:
        pass
    (tmp_path / "folder").mkdir()
    (tmp_path / "m.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"m\.jsonl: No such file"):
        on_full_disk.sync()
    with pytest.raises(CheckpointError, match=r"folder: Is a directory"):
        Tracker(tmp_path / "folder", None)


def test_closing_hides_no_other_error(on_full_disk: Tracker) -> None:
    with pytest.raises(Preempted), on_full_disk:
        raise Preempted


def test_a_warning_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    tracking.warn("look here")
    assert capsys.readouterr() == ("", "warning: look here\n")
