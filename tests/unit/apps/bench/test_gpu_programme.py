"""scripts/gpu_programme.py: no part hides another, and all is reported; with other parts."""

import itertools
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from apps.bench import gpu_programme
from apps.bench.gpu_programme import Part, programme, run


def part(name: str, code: str, limit: float = 60.0) -> Part:
    return Part(name, limit, (sys.executable, "-c", code))


def case(name: str, milliseconds: float, **more: Any) -> dict[str, Any]:
    line = {"milliseconds": milliseconds, "examples_per_second": 8e3 / milliseconds}
    line |= {"activity": "train step", "gflop_per_second": 500.0}
    own = {"name": name, "forward_dtype": "bfloat16", "peak_memory_mib": 2048, "compiled": False}
    return own | {"settings": []} | more | {"lines": [line]}


WRITE = "import os, pathlib; pathlib.Path(os.environ['RESULT']).write_text('''{}''')"
# Starts a child, says its number, and hangs.
PARENT = (
    "import subprocess, time; process = subprocess.Popen(['sleep', '600']);"
    "print(process.pid, flush=True); time.sleep(600)"
)


def has_ended(pid: int) -> bool:
    """Wait until nothing of a process is left but its exit code."""
    end = time.monotonic() + 30
    stat = Path(f"/proc/{pid}/stat")
    while time.monotonic() < end:
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_part_that_fails_hides_no_other(tmp_path: Path, capsys: Any) -> None:
    rates = {"bfloat16": {"64": 1000.0, "128": 2000.0}}
    result = {"product_gflop_per_second": rates, "cases": [case("hrm", 4.0)]}
    theirs = case("hrm", 8.0, code="published", compiled=True, optimizer="AdamW")
    theirs = {"product_gflop_per_second": {}, "cases": [theirs]}
    parts = [
        part("dies", "import os; print('so far', flush=True); os.abort()"),
        part("fails", "print('a'); raise SystemExit('what was wrong')"),
        part("hangs", PARENT, limit=1.0),
        part("measures", WRITE.format(json.dumps(result))),
        part("compares", WRITE.format(json.dumps(theirs))),
        part("passes", "print('== 3 passed in 1 s ==')"),
        part("writes half", WRITE.format("{") + "; raise SystemExit(3)"),
    ]
    report = run(parts, tmp_path / "gpu", 600)
    outcomes = ["failed", "failed", "out of time", "passed", "passed", "passed", "failed"]
    assert [done["outcome"] for done in report["parts"]] == outcomes
    tails = {done["name"]: done["tail"] for done in report["parts"]}
    assert (tails["dies"], tails["fails"]) == (["so far"], ["a", "what was wrong"])
    assert has_ended(int(tails["hangs"][0]))
    assert json.loads((tmp_path / "gpu/report.json").read_text()) == report
    table = (tmp_path / "gpu/table.md").read_text()
    assert "| hrm | ours, eager | 4 | 2000 | 0.5 | 25.0% |  | 2 |" in table
    assert "| hrm | published, compiled, AdamW | 8 | 1000 | 0.5 | 25.0% |  | 2 |" in table
    assert re.search(r"\| passes \| [\d-]{10} \| passed \| \d+ \| 3 passed in 1 s \|", table)
    assert "    what was wrong\n" in capsys.readouterr().out
    assert "=== hangs" in (tmp_path / "gpu/log.txt").read_text()


def test_what_the_minutes_do_not_reach_is_said(tmp_path: Path) -> None:
    parts = [part("long", "import time; time.sleep(60)"), part("late", "raise SystemExit(1)")]
    outcomes = [(done["outcome"], done["why"]) for done in run(parts, tmp_path, 0.5)["parts"]]
    assert outcomes == [("out of time", "stopped after 0 s"), ("skipped", "no time left")]


def test_the_parts_and_their_order(tmp_path: Path) -> None:
    for folder in ("hrm", "trm"):
        (tmp_path / folder).mkdir()
    parts = programme(tmp_path, ["arch.H_cycles=3"])
    names = [part.name for part in parts]
    assert names[:3] == ["machine", "tests-traces", "tests-attention"]
    assert names[5:7] == ["ours-hrm-768-compiled", "published-hrm-768-compiled"]
    assert names[9] == "ours-hrm-768-eager"
    limits = itertools.accumulate(part.limit for part in parts)
    assert dict(zip(names, limits, strict=True))["ours-trm-mlp-768-compiled"] <= 9 * 60
    assert len(set(names)) == 5 + 2 * 2 * (2 + 2)
    command = {part.name: part for part in parts}["ours-trm-mlp-96-compiled"].command
    assert {"global_batch_size=96", "device=cuda", "compile=true"} < set(command)
    assert command[-1] == "arch.H_cycles=3"


def test_a_rehearsal_runs_parts_of_every_kind_on_the_cpu() -> None:
    parts, rehearsed = programme(None, []), programme(None, [], rehearsal=True)
    kinds = {part.name for part in parts if "-96-" not in part.name}
    assert {part.name for part in rehearsed} == {*kinds, "tests-published"}
    assert not any("device=cuda" in part.command for part in rehearsed)


def test_the_exit_code_and_the_choice_of_parts(monkeypatch: Any, tmp_path: Path) -> None:
    parts = [part("good", "pass"), part("bad", "raise SystemExit(1)")]
    monkeypatch.setattr(gpu_programme, "programme", lambda *arguments, **options: parts)

    def main(*more: str) -> int:
        return gpu_programme.main(["--folder", str(tmp_path), *more])

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
    assert main("--only", "good,bud*") == 2
