"""scripts/gpu_programme.py: no part hides another, and all is reported; with other parts."""

import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.bench import gpu_programme
from apps.bench.gpu_programme import Part, as_table, programme, run


def part(name: str, code: str, limit: float = 60.0, missing: str = "") -> Part:
    return Part(name, limit, (sys.executable, "-c", code), missing)


def case(name: str, milliseconds: float, **more: Any) -> dict[str, Any]:
    line = {"milliseconds": milliseconds, "examples_per_second": 8e3 / milliseconds}
    line |= {"activity": "train step", "gflop_per_second": 500.0}
    return (
        {"name": name, "forward_dtype": "bfloat16", "peak_memory_mib": 2048, "compiled": False}
        | more
        | {"lines": [line]}
    )


WRITE = "import os, pathlib; pathlib.Path(os.environ['RESULT']).write_text('''{}''')"


def test_a_part_that_fails_hides_no_other(tmp_path: Path, capsys: Any) -> None:
    rates = {"bfloat16": {"64": 1000.0, "128": 2000.0}}
    result = {"product_gflop_per_second": rates, "cases": [case("hrm", 4.0)]}
    theirs = case("hrm", 8.0, code="published", compiled=True, optimizer="AdamW")
    theirs = {"product_gflop_per_second": {}, "cases": [theirs]}
    asleep = "import time; print('asleep', flush=True); time.sleep(60)"
    parts = [
        part("dies", "import os; print('so far', flush=True); os.abort()"),
        part("fails", "print('a'); raise SystemExit('what was wrong')"),
        part("hangs", asleep, limit=1.0),
        part("lacks", "raise SystemExit(1)", missing="no such folder"),
        part("measures", WRITE.format(json.dumps(result))),
        part("compares", WRITE.format(json.dumps(theirs)) + "; raise SystemExit(3)"),
        part("passes", "print('== 3 passed in 1 s ==')"),
    ]
    report = run(parts, tmp_path / "gpu", 600)
    assert [(done["name"], done["outcome"]) for done in report["parts"]] == [
        *(("dies", "failed"), ("fails", "failed"), ("hangs", "out of time"), ("lacks", "skipped")),
        *(("measures", "passed"), ("compares", "failed"), ("passes", "passed")),
    ]
    tails = {done["name"]: done["tail"] for done in report["parts"]}
    assert tails["dies"] == ["so far"]
    assert tails["fails"] == ["a", "what was wrong"]
    assert tails["hangs"] == ["asleep"]
    assert json.loads((tmp_path / "gpu/report.json").read_text()) == report
    table = (tmp_path / "gpu/table.md").read_text()
    assert "| hrm | ours, eager | 4 | 2000 | 0.5 | 25.0% |  | 2 |" in table
    assert "| hrm | published, compiled, AdamW | 8 | 1000 | 0.5 | 25.0% |  | 2 |" in table
    assert "| skipped | 0 | no such folder |" in table  # It was not started.
    assert re.search(r"\| passes \| [\d-]{10} \| passed \| \d+ \| 3 passed in 1 s \|", table)
    assert "    what was wrong\n" in capsys.readouterr().out
    assert "=== hangs" in (tmp_path / "gpu/log.txt").read_text()


def test_what_the_minutes_do_not_reach_is_said(tmp_path: Path) -> None:
    parts = [part("long", "import time; time.sleep(60)"), part("late", "raise SystemExit(1)")]
    report = run(parts, tmp_path, 0.5)
    outcomes = [done["outcome"] for done in report["parts"]]
    assert outcomes == ["out of time", "no time left"]
    assert "| no time left | 0 | the minutes are spent |" in as_table(report)


def test_the_parts_and_their_order(tmp_path: Path) -> None:
    (tmp_path / "hrm").mkdir()
    parts = programme(tmp_path, ["arch.H_cycles=3"])
    names = [part.name for part in parts]
    assert names[:3] == ["machine", "tests-traces", "tests-attention"]
    assert names[5:7] == ["ours-hrm-768-compiled", "published-hrm-768-compiled"]
    assert names[9] == "ours-hrm-768-eager"
    limits = itertools.accumulate(part.limit for part in parts)
    assert dict(zip(names, limits, strict=True))["ours-trm-mlp-768-compiled"] <= 9 * 60
    assert len(set(names)) == 5 + 2 * 2 * (2 + 2 + 1)
    by_name = {part.name: part for part in parts}
    assert by_name["published-hrm-96-compiled"].missing == ""
    assert "trm/" in by_name["published-trm-mlp-96-compiled"].missing
    command = by_name["ours-trm-mlp-96-compiled"].command
    assert {"global_batch_size=96", "device=cuda", "compile=true"} < set(command)
    assert command[-1] == "arch.H_cycles=3"


def test_a_rehearsal_runs_parts_of_every_kind_on_the_cpu() -> None:
    parts, rehearsed = programme(None, []), programme(None, [], rehearsal=True)
    kinds = {part.name for part in parts if "-96-" not in part.name}
    assert {part.name for part in rehearsed} == {*kinds, "tests-published"}
    assert not any("cuda" in word for part in rehearsed for word in part.command)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """The command line, on two parts of which one fails."""
    parts = [part("good", "pass"), part("bad", "raise SystemExit(1)")]
    monkeypatch.setattr(gpu_programme, "programme", lambda *arguments, **options: parts)
    return lambda *arguments: gpu_programme.main(["--folder", str(tmp_path), *arguments])


def test_the_exit_code_and_the_choice_of_parts(main: Callable[..., int], tmp_path: Path) -> None:
    assert main() == 1
    assert main("--only", "go*") == 0
    report = json.loads((tmp_path / "report.json").read_text())
    # What was not run again is still there, and says nothing about this call.
    outcomes = {done["name"]: done["outcome"] for done in report["parts"]}
    assert outcomes == {"good": "passed", "bad": "failed"}
    log = (tmp_path / "log.txt").read_text()
    assert [log.count(f"=== {name}") for name in outcomes] == [2, 1]
    assert main("--minutes", "0", "--only", "good") == 1
    assert main("--only", "go*,bad", "lr=1") == 1


def test_a_pattern_that_no_part_has_is_named(main: Callable[..., int], capsys: Any) -> None:
    assert main("--only", "good,bud*") == 2
    assert capsys.readouterr().err == "--only bud*: there is no such part, only good, bad\n"


def test_a_result_that_is_not_whole_is_none(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"cases": []}')  # Of a call that was killed.
    parts = [part("none", "pass"), part("half", WRITE.format('{"cases": ['))]
    report = run(parts, tmp_path, 600)
    assert [done["result"] for done in report["parts"]] == [None, None]
    assert not (tmp_path / "result.json").exists()


# Starts a process of a session of its own, says its number, and hangs.
PARENT = (
    "import subprocess, time; process = subprocess.Popen(['sleep', '600'], start_new_session=True);"
    "print(process.pid, flush=True); time.sleep(600)"
)


def has_ended(pid: int) -> bool:
    """Wait until nothing of a process is left but its exit code."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_child_survives_its_part(tmp_path: Path) -> None:
    report = run([part("hangs", PARENT, limit=2.0)], tmp_path, 600)
    assert report["parts"][0]["outcome"] == "out of time"
    (child,) = report["parts"][0]["tail"]
    assert has_ended(int(child))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_signal_ends_the_part_that_runs(start_command: Any, tmp_path: Path) -> None:
    root = Path(gpu_programme.__file__).parents[2]
    code = "\n".join(
        [
            "import signal, sys; from pathlib import Path",
            "from apps.bench import gpu_programme as g",
            "signal.signal(signal.SIGTERM, g.stop)",
            f"g.run([g.Part('hangs', 600, (sys.executable, '-c', {PARENT!r}))], Path('gpu'), 600)",
        ]
    )
    process = start_command(sys.executable, "-c", code, env={"PYTHONPATH": str(root)})
    log, end = tmp_path / "gpu/log.txt", time.monotonic() + 60
    while not (log.exists() and log.read_text().splitlines()[-1:][0].isdigit()):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert has_ended(int(log.read_text().splitlines()[-1]))
