"""The GPU programme: tests and speed on a CUDA device in one command, `make gpu`.

    python -m scripts.gpu_programme [--minutes M] [--only PATTERN,...] [--reference FOLDER]
        [--folder FOLDER] [--rehearsal] [KEY=VALUE ...]

Parts run one after another in order of value, each in a process of its own and with a time limit,
so that none can hide another; when the minutes are spent, the rest is skipped. FOLDER/report.json
and table.md are written after every part, log.txt holds all output. What an earlier call has left
there stays, but for the parts that are run again. Settings (KEY=VALUE, as for pretrain.py) change
every model that is timed.
"""

import argparse
import contextlib
import fnmatch
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from runtime.files import write_atomically

ROOT = Path(__file__).resolve().parents[2]
# Model -> its settings and the folder of the published code below that of --reference.
MODELS = {
    "hrm": ("experiment=hrm_sudoku_extreme_1k", "hrm"),
    "trm-mlp": ("experiment=trm_sudoku_extreme_1k_mlp", "trm"),
}
BATCHES = (768, 96)
FORMS = {"compiled": (("compile=true",), 100.0), "eager": (("compile=false",), 45.0)}
_RUNS = "tests/gpu/test_runs.py"
# Even if all of them hang, nine minutes reach HRM compiled, in both codes, and our compiled TRM.
TESTS = {
    "traces": (40.0, ("tests/parity/test_traces.py",)),
    "attention": (30.0, ("tests/gpu/test_attention.py",)),
    "runs": (60.0, (_RUNS, "-k", "not compiled")),
    "compiled": (80.0, (_RUNS, "-k", "compiled")),
}
# Plug-ins of another machine's pytest have no say; what a process has said survives its end.
_ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
# A rehearsal runs parts of every kind on a CPU, which may be a busy one.
_TINY = (
    *("global_batch_size=4", "num_threads=1", "arch.hidden_size=32"),
    *("arch.num_heads=2", "arch.H_layers=1", "arch.L_layers=1", "arch.puzzle_emb_ndim=32"),
    *("arch.H_cycles=1", "arch.L_cycles=2", "arch.halt_max_steps=2"),
)
_PATIENCE = 10
_STAND_IN = {"published": (60.0, ("tests/gpu/test_speed.py",))}  # In place of the code itself.
_REHEARSAL = {"GPU_REHEARSAL": "1", "TORCHDYNAMO_DISABLE": "1"}  # Compiling takes minutes there.
_TAIL_LINES, _KILL_SECONDS = 15, 10.0
PASSED, FAILED, LATE, SKIPPED = "passed", "failed", "out of time", "skipped"


class Part(NamedTuple):
    """A command with a time limit in seconds. It may write a JSON to the file named in $RESULT."""

    name: str
    limit: float
    command: Sequence[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run the programme; returns 1 unless all parts passed."""
    options = _parser().parse_intermixed_args(arguments)
    if options.rehearsal:
        os.environ.update(_REHEARSAL)
    parts = programme(options.reference, options.settings, rehearsal=options.rehearsal)
    patterns = [pattern.strip() for pattern in options.only.split(",")]
    names = [part.name for part in parts]
    if idle := [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]:
        sys.stderr.write(f"--only {idle[0]}: there is no such part, only {', '.join(names)}\n")
        return 2
    wanted = [part for part in parts if any(fnmatch.fnmatch(part.name, p) for p in patterns)]
    report = run(wanted, options.folder, options.minutes * 60)
    sys.stdout.write(f"\n{as_table(report)}\nwritten: {options.folder}\n")
    asked = {part.name for part in wanted}
    own = [done["outcome"] for done in report["parts"] if done["name"] in asked]
    return int(not own or set(own) != {PASSED})


def programme(
    reference: Path | None, settings: Sequence[str], *, rehearsal: bool = False
) -> list[Part]:
    """Return the parts in order of value; of the published code those that `reference` holds."""
    python, module = sys.executable, ("-m", "scripts.gpu_speed")
    device, seconds, tests, batches, tiny = "cuda", "2", TESTS, BATCHES, ()
    if rehearsal:
        device, seconds, tests = "cpu", "0.01", TESTS | _STAND_IN
        batches, tiny = BATCHES[:1], _TINY
    parts = [Part("machine", 30, (python, *module, "machine", device))]
    flags = ("-m", "gpu", "-v", "--tb=short", "-W", "default", "-p", "no:cacheprovider")
    for name, (limit, chosen) in tests.items():
        parts.append(Part(f"tests-{name}", limit, (python, "-m", "pytest", *flags, *chosen)))
    for batch, form, model in itertools.product(batches, FORMS, MODELS):
        (experiment, folder), (how, limit) = MODELS[model], FORMS[form]
        name = f"{model}-{batch}-{form}"
        own = (experiment, f"global_batch_size={batch}", f"device={device}", *how)
        own = (name, seconds, *own, *tiny, *settings)
        parts.append(Part(f"ours-{name}", limit, (python, *module, "ours", *own)))
        if reference and (reference / folder).is_dir():
            command = (python, *module, "published", str(reference.resolve() / folder), *own)
            parts.append(Part(f"published-{name}", limit, command))
    return [part._replace(limit=_PATIENCE * part.limit) for part in parts] if rehearsal else parts


def run(parts: Sequence[Part], folder: Path, seconds: float) -> dict[str, Any]:
    """Run parts for at most `seconds`; returns the report, and writes it anew after each part. In
    the report of an earlier call they take the places of those with their names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    all_done = {}
    with contextlib.suppress(FileNotFoundError):
        earlier = json.loads((folder / "report.json").read_bytes())
        all_done = {done["name"]: done for done in earlier["parts"]}
    report: dict[str, Any] = {"parts": list(all_done.values())}
    for part in parts:
        sys.stdout.write(f"{part.name}: ")
        sys.stdout.flush()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        done = _run_part(part, folder, end - time.monotonic())
        all_done[part.name] = {"name": part.name, "date": date, **done}
        report["parts"] = list(all_done.values())
        sys.stdout.write(f"{done['outcome']}, {done['seconds']:.0f} s; {done['why']}\n")
        if done["outcome"] in (FAILED, LATE):
            sys.stdout.write("".join(f"    {line}\n" for line in done["tail"]))
        write_atomically(folder / "report.json", json.dumps(report, indent=1) + "\n")
        write_atomically(folder / "table.md", as_table(report))
    return report


def _run_part(part: Part, folder: Path, left: float) -> dict[str, Any]:
    """Run a part within its limit and the `left` seconds; returns what the report says of it."""
    done = {"outcome": SKIPPED, "why": "no time left", "seconds": 0.0, "tail": [], "result": None}
    if left <= 0:
        return done
    result, start, log_path = folder / "result.json", time.monotonic(), folder / "log.txt"
    limit = min(part.limit, left)
    result.unlink(missing_ok=True)  # Of a call that was killed.
    with log_path.open("a+", errors="replace") as log:
        log.write(f"\n=== {part.name}: {' '.join(part.command)}\n")
        log.flush()
        begin = log.tell()
        code = _ended(part.command, limit, log, {"RESULT": str(result.resolve())})
        log.seek(begin)
        lines = log.read().splitlines()
    tail = [line for line in lines if line.strip()][-_TAIL_LINES:]
    why = tail[-1].strip("= ") if tail else f"exit code {code}"
    if code is None:
        why = f"stopped after {limit:.0f} s"
    done |= {"why": why, "seconds": time.monotonic() - start, "tail": tail}
    done["outcome"] = LATE if code is None else FAILED if code else PASSED
    if code == 0 and result.exists():
        done |= {"result": json.loads(result.read_bytes()), "why": ""}  # Its figures say it.
    return done


def _ended(
    command: Sequence[str], limit: float, log: Any, environment: dict[str, str]
) -> int | None:
    """Run a command and end what it left running; returns its exit code, None if it is late."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | _ENVIRONMENT | environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_KILL_SECONDS)  # A driver may hold it for ever.


def as_table(report: dict[str, Any]) -> str:
    """Lay out a report as the tables of docs/benchmarks.md, in Markdown."""
    found = [(done["result"], done["date"][:10]) for done in report["parts"] if done["result"]]
    text = []
    for result, date in found:
        if machine := result.get("machine"):
            facts = ", ".join(f"{name} {value}" for name, value in machine.items())
            text.append(f"{facts}, {date}.\n")
    measured = [result for result, _ in found if "cases" in result]
    # One peak for each number format: the best of all parts.
    peaks: dict[str, float] = {}
    for dtype, rates in [r for one in measured for r in one["product_gflop_per_second"].items()]:
        peaks[dtype] = max([peaks.get(dtype, 0.0), *rates.values()])
    text += [f"Best product in {dtype}: {p / 1e3:.4g} TFLOP/s.\n" for dtype, p in peaks.items()]
    if cases := [case for result in measured for case in result["cases"]]:
        text += [
            "| case | code | step, ms | examples/s | TFLOP/s | of peak | ACT step, ms | GiB |",
            "|---|---|---|---|---|---|---|---|",
        ]
        text += [_row(case, peaks.get(case["forward_dtype"])) for case in cases]
        text.append("")
    text += ["| part | date | outcome | seconds | |", "|---|---|---|---|---|"]
    for done in report["parts"]:
        why, outcome = done["why"].replace("|", "/"), f"{done['outcome']} | {done['seconds']:.0f}"
        text.append(f"| {done['name']} | {done['date'][:10]} | {outcome} | {why} |")
    return "\n".join([*text, ""])


def _row(case: dict[str, Any], peak: float | None) -> str:
    """The line of a case; its ACT step is that of an evaluation."""
    step, *others = case["lines"]
    evaluation = f"{others[0]['milliseconds']:.4g}" if others else ""
    rate, memory = step["gflop_per_second"], case["peak_memory_mib"]
    code = [case.get("code", "ours"), "compiled" if case["compiled"] else "eager"]
    code += [case["optimizer"]] if "optimizer" in case else []
    cells = [
        *(case["name"], ", ".join(code), f"{step['milliseconds']:.4g}"),
        *(f"{step['examples_per_second']:.4g}", f"{rate / 1e3:.4g}"),
        *(f"{rate / peak:.1%}" if peak else "", evaluation),
        f"{memory / 1024:.3g}" if memory else "",
    ]
    return f"| {' | '.join(cells)} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts (default 9)")
    only = "parts to run, as in 'tests-*,machine' (default: all)"
    parser.add_argument("--only", default="*", metavar="PATTERN,...", help=only)
    reference = "holds unpacked copies of the published code in hrm/ and trm/"
    parser.add_argument("--reference", type=Path, metavar="FOLDER", help=reference)
    parser.add_argument("--folder", type=Path, default=Path("gpu"), help="output (default: gpu)")
    parser.add_argument("--rehearsal", action="store_true", help="tiny sizes on a CPU")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="for every model timed")
    return parser
