"""Row 15: malicious files. None is executed or makes us allocate what it claims.

Each is refused in one line that names it, or has no effect.
"""

import gzip
import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import hostile, mutants
from harness.builds import build
from harness.damage import npy
from harness.hostile import EVALUATES, TOUCHES, Calls, archive_of, array, safetensors, saved
from harness.lab import Lab
from harness.mounts import limit_memory
from harness.processes import Child, Fault, call_main, evaluate, pretrain

Call = tuple[Callable[..., None], tuple[str, ...]]
PIPE = "a pipe"  # Nobody writes to it.


def put(folder: Path, name: str, content: Any) -> Path:
    """Put a file, a link or a pipe into its place in a copy of `original`."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if content == PIPE:
        os.mkfifo(path)
    elif isinstance(content, Path):
        path.symlink_to(content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if path.parent.name == "step_7" and path.name != "MANIFEST.json":
        hostile.seal(path.parent)
    return path


# The entry points that read a file in its place, with arguments.


def evaluated(folder: Path, weights: Path, *, with_data: bool = True) -> Call:
    given = [f"checkpoint={weights}", "device=cpu", "num_threads=1", "evaluators=[]"]
    given += [f"data_path={folder / 'data'}"] if with_data else []
    return evaluate, (*given, f"output={folder / 'result.json'}")


def evaluated_there(folder: Path, path: Path) -> Call:
    """Evaluate the weights that the file belongs to."""
    parts = path.relative_to(folder).parts
    if parts[0] != "own":
        return evaluated(folder, folder / "published" / "step_7")
    return evaluated(folder, path.parent if len(parts) == 2 else folder / "own" / "step_7")


def evaluated_without_data(folder: Path, path: Path) -> Call:
    return evaluated(folder, folder / "published" / "step_7", with_data=False)


def trained(folder: Path, path: Path, *more: str) -> Call:
    given = "global_batch_size=2 epochs=2 eval_interval=2 logger=jsonl evaluators=[] device=cpu"
    places = (f"data_path={folder / 'data'}", f"checkpoint_path={folder / 'run'}")
    return pretrain, (*more, *given.split(), *places)


def trained_on(folder: Path, path: Path) -> Call:
    (folder / "data" / "identifiers.json").unlink()  # Its number of names would not fit.
    return trained(folder, path)


def trained_from(folder: Path, path: Path) -> Call:
    return trained(folder, path, f"load_checkpoint={path}", "arch.hidden_size=32")


def trained_by(folder: Path, path: Path) -> Call:
    return trained(folder, path, "--config-dir", str(folder), "--config-name", path.stem)


def scored(folder: Path, path: Path) -> Call:
    tasks = {"test_puzzles": {"a": {"test": [{"input": [[1]]}]}}, "identifiers": ["<blank>", "a"]}
    rows, known = path, folder / "tasks.json"
    if path == known:
        rows = put(folder, "rows.npz", rows_of())
    else:
        put(folder, "tasks.json", json.dumps(tasks))
    return call_main, ("apps.reports.score_arc", str(rows), str(known))


def built(folder: Path, path: Path) -> Call:
    output = f"--output-dir={folder / 'built'}"
    if path.suffix == ".json":
        return build, ("arc", f"--dataset-dirs={path.parent.parent}", output)
    (path.parent / "test.csv").write_text("source,question,answer,rating\n")
    return build, ("sudoku", f"--source={path.parent}", output)


# Content that changes a file of `original`, is large or slow: made when it is put in place.


def changed(**changes: Any) -> Callable[[Path], str]:
    """Change keys of a JSON file."""
    return lambda path: json.dumps(json.loads(path.read_bytes()) | changes)


def replaced(old: str, new: str, after: str = "") -> Callable[[Path], str]:
    """Change a text, and append another."""

    def change(path: Path) -> str:
        assert old in path.read_text()
        return path.read_text().replace(old, new) + after

    return change


def endless_line(path: Path) -> bytes:
    file = io.BytesIO()
    with gzip.open(file, "wb", compresslevel=1) as packed:
        packed.write(b"source,question,answer,rating\n")
        for _ in range(64):
            packed.write(b"1" * 2**24)
    return file.getvalue()


def rows_of(shape: str = "", **changes: Any) -> bytes:
    """Return an archive of one row's predictions, with other arrays or headers."""
    rows = dict.fromkeys(("inputs", "preds"), np.zeros((1, 4), int))
    rows |= {"puzzle_identifiers": np.ones(1, int), "q_halt_logits": np.zeros(1), **changes}
    file = io.BytesIO()
    np.savez_compressed(file, **rows)
    if shape:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in rows:
                archive.writestr(f"{name}.npy", array("'<i8'", shape))
    return file.getvalue()


def objects() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([TOUCHES]), allow_pickle=True)
    return file.getvalue()


def claims(dtype: str, shape: list[int], end: int, begin: int = 0) -> str:
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]})


H_INIT = "model.inner.H_init"
BRACKETS = "[" * 10**6
ENDLESS = {"a file without end": Path("/dev/zero")}
CALL = "!!python/object/apply:os.system ['touch canary']"
SYSTEM = {"os.system": saved(TOUCHES)}
PICKLES = SYSTEM | {
    "builtins.eval": saved(EVALUATES),
    "a call among tensors": saved({H_INIT: torch.zeros(2), "x": TOUCHES}),
    "a bare pickle": pickle.dumps(TOUCHES),
    "protocol 4": saved(TOUCHES, pickle_protocol=4),
    "torch's old format": saved(TOUCHES, _use_new_zipfile_serialization=False),
    "a pickle for torch to load": saved(
        Calls(torch.storage._load_from_bytes, pickle.dumps(TOUCHES))
    ),
    "memory for a bytearray": saved({"x": Calls(bytearray, 10**11)}),
    "an archive in the archive": archive_of(archive_of(pickle.dumps(TOUCHES, 2))),
    "a pickle of a gigabyte in a megabyte": lambda path: archive_of(
        b"\x80\x02(" + b"N" * 2**30 + b"l.", deflated=True
    ),
    "a key without end": hostile.SLOW_KEY,
    "a gigabyte of empty dicts": lambda path: archive_of(b"\x80\x02" + b"}" * 16 * 10**6 + b"."),
    "a storage larger than its data": hostile.tensor_of(H_INIT, (10**9,), (1,), 10**9),
    "a tensor larger than its storage": hostile.tensor_of(H_INIT, (10**12,), (0,), 4),
}
CONFIG, _NAME = "published/all_config.yaml", "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1"
_BOMB, _MERGES = hostile.aliases("[x, x]", "[{}]"), hostile.aliases("{a: 1}", "{{<<: [{}]}}")
YAMLS = {
    "os.system": CALL,
    "eval in arch": "arch: !!python/object/apply:eval [\"open('canary', 'w').close()\"]",
    "an object in the name": replaced(_NAME, "!!python/name:os.system"),
    "a tree of aliases": f"{_BOMB}\narch: *l11",
    "aliases in evaluators": replaced("lr:", "eta:", f"\n{_BOMB}\nevaluators: *l11"),
    "a tree of merges": f"{_MERGES}\narch: *l11",
    "a class of another module": replaced(_NAME, "os.system@x"),
    "a target": replaced("arch:", "arch:\n  _target_: os.system"),
    "a model of terabytes": replaced("hidden_size: 32", "hidden_size: 65536"),
    "a width without end": replaced("hidden_size: 32", f"hidden_size: {2**62 + 1}"),
    "a number of thousands of digits": replaced("H_layers: 2", f"H_layers: 0x{'f' * 20_000}"),
    "brackets": "[" * 100_000,
    "an interpolation": replaced("H_layers: 2", "H_layers: ${oc.decode:2}"),
}
BATCH = replaced("global_batch_size: 4", f"global_batch_size: {10**12}")
HOME = replaced("data_path: data", "data_path: ${oc.env:HOME}")
STATE = "own/step_7/state.json"
_LARGE = {"name": "hrm", "hidden_size": 65536, "H_layers": 1024}
STATES = {
    "brackets": BRACKETS,
    "a number of thousands of digits": b'{"step": ' + b"9" * 10**5 + b"}",
    "a step of another type": changed(step=[7]),
    "a class of another module": changed(
        config={"arch": {"name": "os.system@x", "_target_": "os.system"}}
    ),
    "a model of terabytes": changed(config={"arch": _LARGE}),
}
OPEN = {"brackets": '{"files":' + BRACKETS}
_ONE, _TWO, _LATER = claims("F32", [1], 4), claims("F32", [2], 8), claims("F32", [2], 12, begin=4)
_HUGE = claims("F32", [10**12], 4 * 10**12)
TENSORS = {
    "a header without end": safetensors("{}", length=2**62),
    "a tensor larger than the file": safetensors(f'{{"a":{_HUGE}}}', b"\0" * 8),
    "sizes that overflow": safetensors(f'{{"a":{claims("F32", [2**62, 8], 0)}}}'),
    "overlapping tensors": safetensors(f'{{"a":{_TWO},"b":{_LATER}}}', b"\0" * 12),
    "the same key twice": safetensors(f'{{"a":{_ONE},"a":{_TWO}}}', b"\0" * 8),
    "a type that torch lacks": safetensors(f'{{"a":{claims("F4", [2], 1)}}}', b"\0"),
    "brackets": safetensors('{"a":' + "[" * 10**5),
}
ARRAYS = ENDLESS | {
    "objects": objects(),
    "a bare pickle": pickle.dumps(TOUCHES),
    "an expression": array("__import__('os').system('touch canary')", "(1,)"),
    "a header that warns": array("'<i4'", "(1if 1else 2,)"),
    "a size without end": array("'<i4'", f"({'9' * 4000}, {'9' * 4000}, 1)"),
    "nothing, a googol wide": array("'<i4'", f"(0, {10**100})"),
    "nothing, too wide for NumPy": array("'<i4'", f"(0{f', {2**31 - 1}' * 4})"),
    "a type of thousands of digits": array(f"0x{'f' * 8000}", "(1,)"),
    "signs": npy("-" * 9000 + "1"),
    "a pipe": PIPE,
    "a link to somebody else's file": Path("/etc/passwd"),
}
METADATA = {
    "brackets": BRACKETS,
    "numbers of 4000 digits": changed(vocab_size=10**4000),
    "numbers of 5000 digits": b'{"vocab_size": ' + b"1" * 5000 + b"}",
    "an infinite mean": changed(mean_puzzle_examples=float("inf")),
    "a hundred megabytes": b" " * 10**8,
    "a pipe": PIPE,
}
ROWS = {
    "objects": rows_of(preds=np.array([TOUCHES])),
    "eight gigabytes in eight megabytes": rows_of(f"({10**12}, 4)"),
    "a size that cannot be counted": rows_of(f"(0, {10**30})"),
}
TASKS = {"a task of brackets": BRACKETS, "a task that is a pipe": PIPE}
FIRST = "defaults: [cfg_pretrain, _self_{}]\n".format
CONFIGURATIONS = {
    "os.system": CALL,
    "a package to search in": FIRST("") + "hydra: {searchpath: ['pkg://stranger']}",
    "a callback": FIRST("") + "hydra: {callbacks: {a: {_target_: os.system}}}",
    "a callback by a package": FIRST(", arch@hydra.callbacks: trm"),
    "a launcher of another module": FIRST("") + "hydra: {launcher: {_target_: stranger.X}}",
    "a logger of another module": FIRST(", override hydra/job_logging: none"),
    "brackets": "[" * 10**5,
}
# The file, the entry point that reads it, its exit code, and contents by name.
PAYLOADS: tuple[tuple[str, Callable[[Path, Path], Call], int, dict[str, Any]], ...] = (
    ("published/step_7", evaluated_there, 4, PICKLES),
    ("published/step_7_ema", evaluated_there, 4, SYSTEM),
    ("published/step_7", trained_from, 4, SYSTEM),
    (CONFIG, evaluated_there, 4, YAMLS),
    (CONFIG, evaluated_there, 0, {"a batch of terabytes": BATCH}),
    (CONFIG, evaluated_without_data, 3, {"an interpolation as a path": HOME}),
    ("own/config.yaml", evaluated_there, 0, {"os.system, which nobody reads": CALL}),
    (STATE, evaluated_there, 4, STATES),
    ("own/step_7/MANIFEST.json", evaluated_there, 4, OPEN | ENDLESS),
    ("own/step_7/model.safetensors", evaluated_there, 4, TENSORS),
    ("data/test/all__inputs.npy", evaluated_there, 3, ARRAYS),
    ("data/test/dataset.json", evaluated_there, 3, METADATA),
    ("data/manifest.json", evaluated_there, 3, OPEN),
    ("data/train/dataset.json", trained_on, 2, {"G": changed(num_puzzle_identifiers=2**31 - 1)}),
    ("rows.npz", scored, 3, ROWS),
    ("tasks.json", scored, 3, {"brackets": BRACKETS}),
    ("sources/train.csv.gz", built, 3, {"a line of a gigabyte": endless_line}),
    ("sources/train.csv", built, 3, {"a pipe": PIPE}),
    ("training/a.json", built, 3, TASKS),
    ("mine.yaml", trained_by, 2, CONFIGURATIONS),
)


def meet(
    lab: Lab, original: Path, name: str, meeting: Any, content: Any, *faults: Fault
) -> tuple[Path, Child]:
    """Put a payload into a copy of `original`, and start the entry point that reads it."""
    folder = lab.copy(original, "copy")
    path = put(folder, name, content(folder / name) if callable(content) else content)
    target, arguments = meeting(folder, path)
    faults = (partial(limit_memory, 3 * 2**30), *faults)
    return folder, lab.server.start(target, *arguments, faults=faults, folder=folder)


def test_nothing_of_a_strangers_files_is_executed(lab: Lab, original: Path) -> None:
    wrong, number = [], 0
    for name, meeting, wanted, contents in PAYLOADS:
        for kind, content in contents.items():
            folder, child = meet(lab, original, name, meeting, content)
            code, said, case = child.wait(60.0), child.err.splitlines(), f"{name}: {kind}"
            if (folder / "canary").exists():
                wrong.append(f"{case}: executed")
            if code != wanted or (code and len(said) != 1) or any(len(x) > 12_000 for x in said):
                wrong.append(f"{case}: exit code {code}: {child.err[-400:]}")
            elif code and str(folder) not in said[0] and "${oc.env:HOME}" not in said[0]:
                wrong.append(f"{case}: which file? {said[0]}")
            shutil.rmtree(folder)
            number += 1
    assert wrong == [], "\n".join(wrong)
    said = f"{number} payloads, each refused in one line or without effect"
    lab.tally(said, payloads=number, executed=0)


def test_python_files_beside_a_checkpoint_are_not_imported(
    lab: Lab, run_python: Callable[..., Any], original: Path
) -> None:
    names = ("models", "evaluation", "sitecustomize", "usercustomize", "yaml", "json", "torch")
    shutil.copytree(original, lab.folder, dirs_exist_ok=True)
    for below in ("", "published", "published/recursive_reasoning"):
        for name in names:
            file = lab.folder / below / f"{name}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"open({str(lab.folder / 'canary')!r}, 'w').close()\n")
    _, settings = evaluated(lab.folder, lab.folder / "published" / "step_7")
    finished = run_python("evaluate.py", *settings)
    assert finished.code == 0, finished.err
    assert not (lab.folder / "canary").exists()
    lab.tally(f"{3 * len(names)} modules beside a checkpoint and in the working folder: 0 imported")


def advice(lab: Lab, original: Path, *faults: Fault) -> str:
    """Return the error of evaluating a checkpoint that names missing data and how to build it."""

    def changed_data(path: Path) -> str:
        data = {"name": "theirs; touch x", "path": "nowhere", "builder": {"name": "sudoku"}}
        config = json.loads(path.read_bytes())["config"]
        return changed(config=config | {"data": data, "data_path": "nowhere"})(path)

    def meeting(folder: Path, path: Path) -> Call:
        return evaluated(folder, path.parent, with_data=False)

    _, child = meet(lab, original, STATE, meeting, changed_data, *faults)
    assert child.wait() == 3, child.err
    assert "nowhere: no such data folder" in child.err
    return child.err


def test_a_strangers_command_is_not_our_advice(lab: Lab, original: Path) -> None:
    assert "touch" not in advice(lab, original)
    lab.tally("a checkpoint's command for building its data: not shown as advice")


@pytest.mark.parametrize("mutant", mutants.params("pass_commands_on"))
def test_a_command_that_is_passed_on_is_noticed(lab: Lab, original: Path, mutant: Fault) -> None:
    assert "touch" in advice(lab, original, mutant)


@pytest.mark.parametrize(
    ("mutant", "name", "content"),
    mutants.params(
        trust_pickles=("published/step_7", SYSTEM["os.system"]),
        allow_pickled_arrays=("data/test/all__inputs.npy", objects()),
        load_any_yaml=(CONFIG, CALL),
    ),
)
def test_without_its_protection_a_payload_is_executed(
    lab: Lab, original: Path, mutant: Fault, name: str, content: Any
) -> None:
    folder, child = meet(lab, original, name, evaluated_there, content, mutant)
    child.wait()
    assert (folder / "canary").exists()


@pytest.mark.parametrize("mutant", mutants.params("unpickle"))
def test_without_our_reader_a_key_hangs(lab: Lab, original: Path, mutant: Fault) -> None:
    content = hostile.SLOW_KEY
    _, child = meet(lab, original, "published/step_7", evaluated_there, content, mutant)
    assert not child.ended_within(5.0), child.err
    child.kill()
