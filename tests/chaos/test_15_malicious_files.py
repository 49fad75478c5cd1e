"""Row 15: files from a stranger. Nothing in them is executed, what they claim costs no memory, and
each is refused in one line that names it, or does nothing.
"""

import gzip
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import hostile, mutants
from harness.builds import build
from harness.hostile import Place, archive_of, header, safetensors, tensor_of
from harness.lab import Lab
from harness.mounts import limit_memory
from harness.processes import Child, Fault, call_main, convert, evaluate, pretrain

Call = tuple[Callable[..., None], tuple[str, ...]]
Payload = Callable[[Place], Call]
PAYLOADS: dict[str, tuple[int, Payload]] = {}
PIPE = "a pipe"  # Which nobody writes to.


def payload(name: str, code: int) -> Callable[[Payload], None]:
    """Register how a payload is laid, and the exit code with which it must end."""

    def register(lay: Payload) -> None:
        PAYLOADS[name] = code, lay

    return register


def payloads(kind: str, code: int, lay: Any, contents: Mapping[str, Any]) -> None:
    """Register payloads that are laid alike: by a function, or in the place of a file."""
    lay = partial(evaluated, lay) if isinstance(lay, str) else lay

    def laid(content: Any, place: Place) -> Call:
        return lay(place, content(place) if callable(content) else content)

    for name, content in contents.items():
        PAYLOADS[f"{kind}: {name}"] = code, partial(laid, content)


def evaluated(name: str, place: Place, content: bytes | str | Path) -> Call:
    """Put a file into its place, a link to it, or a pipe, and evaluate."""
    path = place.folder / name
    path.unlink(missing_ok=True)
    if content == PIPE:
        os.mkfifo(path)
    elif isinstance(content, Path):
        path.symlink_to(content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if path.parent == place.own and path.name != "MANIFEST.json":
        hostile.seal(place.own)
    own = path.parent if name == "own/config.yaml" else place.own
    return evaluate, place.settings(own if name.startswith("own") else place.published)


def saved(content: Callable[[Place], Any], **how: Any) -> Callable[[Place], bytes]:
    """torch.save into bytes."""

    def save(place: Place) -> bytes:
        torch.save(content(place), place.folder / "saved", **how)
        return (place.folder / "saved").read_bytes()

    return save


def pickled(place: Place, protocol: int | None = None) -> bytes:
    return pickle.dumps(hostile.touches(place.canary), protocol)


def changed(name: str, **changes: Any) -> Callable[[Place], bytes]:
    """Change keys of a JSON file."""
    return lambda p: json.dumps(json.loads((p.folder / name).read_bytes()) | changes).encode()


def replaced(old: str, new: str) -> Callable[[Place], str]:
    """Change text of all_config.yaml."""

    def change(place: Place) -> str:
        text = (place.folder / CONFIG).read_text()
        assert old in text
        return text.replace(old, new)

    return change


# Published files

SYSTEM = saved(lambda p: hostile.touches(p.canary))
EVAL = saved(lambda p: hostile.Calls(eval, (f"open({str(p.canary)!r}, 'w').close()",)))
H_INIT = "model.inner.H_init"
AMONG = saved(lambda p: {H_INIT: torch.zeros(2), "x": hostile.touches(p.canary)})
TO_LOAD = saved(lambda p: hostile.Calls(torch.storage._load_from_bytes, (pickled(p),)))
LARGE_STORAGE, LARGE_TENSOR = (
    archive_of(tensor_of(H_INIT, *claim), storages={"0": b"\0" * 16})
    for claim in (((10**9,), (1,), 10**9), ((10**12,), (0,), 4))
)
SLOW_KEY = b"\x80\x02}" + hostile.slow_to_hash() + b"K\x01s."
PICKLES = {
    "os.system": SYSTEM,
    "builtins.eval": EVAL,
    "a call among tensors": AMONG,
    "a bare pickle": pickled,
    "protocol 4": saved(lambda p: hostile.touches(p.canary), pickle_protocol=4),
    "torch's old format": saved(
        lambda p: hostile.touches(p.canary), _use_new_zipfile_serialization=False
    ),
    "a pickle for torch to load": TO_LOAD,
    "memory for a bytearray": saved(lambda p: {"x": hostile.Calls(bytearray, (10**11,))}),
    "an archive in the archive": lambda p: archive_of(
        archive_of(pickled(p, 2), storages={}), storages={}
    ),
    "a pickle of a gigabyte in a megabyte": lambda p: archive_of(
        b"\x80\x02(" + b"N" * 2**30 + b"l.", storages={}, deflated=True
    ),
    "a key without end": archive_of(SLOW_KEY, storages={}),
    "a gigabyte of empty dicts": archive_of(b"\x80\x02" + b"}" * 16 * 10**6 + b".", storages={}),
    "a storage larger than its data": LARGE_STORAGE,
    "a tensor larger than its storage": LARGE_TENSOR,
}
payloads("published", 4, "published/step_7", PICKLES)
payloads("average", 4, "published/step_7_ema", {"os.system": SYSTEM})


@payload("published: os.system in start weights", 4)
def _(place: Place) -> Call:
    place.published.write_bytes(SYSTEM(place))
    model = ("arch.hidden_size=32", "arch.num_heads=2")
    return pretrain, (*place.run_settings(), f"load_checkpoint={place.published}", *model)


@payload("published: os.system, converted", 4)
def _(place: Place) -> Call:
    place.published.write_bytes(SYSTEM(place))
    return converted(place, f"data_path={place.data}")


def converted(place: Place, *more: str) -> Call:
    output = place.folder / "exported"
    return convert, (f"checkpoint={place.published}", f"output={output}", *more)


CONFIG = "published/all_config.yaml"


def tree(first: str, level: str) -> str:
    """Eleven levels of YAML, each of nine aliases of the one before."""
    levels = [level.format(", ".join([f"*l{i}"] * 9)) for i in range(11)]
    return "\n".join([f"l0: &l0 {first}", *(f"l{i + 1}: &l{i + 1} {levels[i]}" for i in range(11))])


_BOMB, _MERGES = tree("[x, x]", "[{}]"), tree("{a: 1}", "{{<<: [{}]}}")
_NAME = "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1"
CALL = "!!python/object/apply:os.system ['touch canary']"
YAMLS = {
    "os.system": CALL,
    "eval in arch": "arch: !!python/object/apply:eval [\"open('canary', 'w').close()\"]",
    "an object in the name": replaced(_NAME, "!!python/name:os.system"),
    "a tree of aliases": f"{_BOMB}\narch: *l11",
    "aliases in evaluators": lambda p: f"{replaced('lr:', 'eta:')(p)}\n{_BOMB}\nevaluators: *l11",
    "a tree of merges": f"{_MERGES}\narch: *l11",
    "a class of another module": replaced(_NAME, "os.system@x"),
    "a target": replaced("arch:", "arch:\n  _target_: os.system"),
    "a model of terabytes": replaced("hidden_size: 32", "hidden_size: 65536"),
    "a width without end": replaced("hidden_size: 32", f"hidden_size: {2**62 + 1}"),
    "a number of thousands of digits": replaced("H_layers: 2", f"H_layers: 0x{'f' * 20_000}"),
    "brackets": "[" * 100_000,
    "an interpolation": replaced("H_layers: 2", "H_layers: ${oc.decode:2}"),
}
payloads("all_config.yaml", 4, CONFIG, YAMLS)
BATCH = replaced("global_batch_size: 4", f"global_batch_size: {10**12}")
payloads("all_config.yaml", 0, CONFIG, {"a batch of terabytes": BATCH})


@payload("all_config.yaml: an interpolation as a path", 3)
def _(place: Place) -> Call:
    content = replaced("data_path: data", "data_path: ${oc.env:HOME}")(place)
    target, settings = evaluated(CONFIG, place, content)
    return target, tuple(setting for setting in settings if not setting.startswith("data_path="))


@payload("all_config.yaml: less than no tokens, converted", 2)
def _(place: Place) -> Call:
    facts = "data_facts: {vocab_size: -5, seq_len: 81, num_puzzle_identifiers: 3}"
    evaluated(CONFIG, place, f"{replaced('data_path:', 'data_paht:')(place)}\n{facts}\n")
    return converted(place)


# A run of ours

STATE = "own/step_7/state.json"
_ARCH = {"name": "os.system@x", "_target_": "os.system"}
_LARGE = {"name": "hrm", "hidden_size": 65536, "H_layers": 1024}
STATES = {
    "brackets": b"[" * 10**6,
    "a number of thousands of digits": b'{"step": ' + b"9" * 10**5 + b"}",
    "a step of another type": changed(STATE, step=[7]),
    "a class of another module": changed(STATE, config={"arch": _ARCH}),
    "a model of terabytes": changed(STATE, config={"arch": _LARGE}),
}
OPEN = {"brackets": b'{"files":' + b"[" * 10**6}
ENDLESS = {"a file without end": Path("/dev/zero")}


def claims(dtype: str, shape: list[int], end: int, begin: int = 0) -> str:
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]})


_ONE, _TWO = claims("F32", [1], 4), claims("F32", [2], 8)
TENSORS = {
    "a header without end": safetensors("{}", length=2**62),
    "a tensor larger than the file": safetensors(
        f'{{"a":{claims("F32", [10**12], 4 * 10**12)}}}', b"\0" * 8
    ),
    "sizes that overflow": safetensors(f'{{"a":{claims("F32", [2**62, 8], 0)}}}'),
    "overlapping tensors": safetensors(
        f'{{"a":{_TWO},"b":{claims("F32", [2], 12, begin=4)}}}', b"\0" * 12
    ),
    "the same key twice": safetensors(f'{{"a":{_ONE},"a":{_TWO}}}', b"\0" * 8),
    "a type that torch lacks": safetensors(f'{{"a":{claims("F4", [2], 1)}}}', b"\0"),
    "brackets": safetensors('{"a":' + "[" * 10**5),
}
payloads("config.yaml, which nobody reads", 0, "own/config.yaml", {"os.system": CALL})
payloads("state.json", 4, STATE, STATES)
payloads("MANIFEST.json", 4, "own/step_7/MANIFEST.json", OPEN | ENDLESS)
payloads("safetensors", 4, "own/step_7/model.safetensors", TENSORS)


# Data


def objects(place: Place) -> bytes:
    np.save(place.folder / "x.npy", np.array([hostile.touches(place.canary)]), allow_pickle=True)
    return (place.folder / "x.npy").read_bytes()


ARRAYS = {
    "objects": objects,
    "a bare pickle": pickled,
    "an expression": header("__import__('os').system('touch canary')", "(1,)"),
    "a header that warns": header("'<i4'", "(1if 1else 2,)"),
    "a size without end": header("'<i4'", f"({'9' * 4000}, {'9' * 4000}, 1)"),
    "nothing, a googol wide": header("'<i4'", f"(0, {10**100})"),
    "nothing, too wide for NumPy": header("'<i4'", f"(0{f', {2**31 - 1}' * 4})"),
    "a type of thousands of digits": header(f"0x{'f' * 8000}", "(1,)"),
    "signs": hostile.npy("-" * 9000 + "1"),
    "a pipe": PIPE,
    "a link to somebody else's file": Path("/etc/passwd"),
}
FACTS = "data/test/dataset.json"
METADATA = {
    "brackets": b"[" * 10**6,
    "numbers of 4000 digits": changed(FACTS, vocab_size=10**4000),
    "numbers of 5000 digits": b'{"vocab_size": ' + b"1" * 5000 + b"}",
    "an infinite mean": changed(FACTS, mean_puzzle_examples=float("inf")),
    "a hundred megabytes": b" " * 10**8,
    "a pipe": PIPE,
}
payloads(".npy", 3, "data/test/all__inputs.npy", ARRAYS | ENDLESS)
payloads("dataset.json", 3, FACTS, METADATA)
payloads("manifest.json", 3, "data/manifest.json", OPEN)


@payload("dataset.json: two thousand million puzzles", 2)
def _(place: Place) -> Call:
    name = "data/train/dataset.json"
    evaluated(name, place, changed(name, num_puzzle_identifiers=2**31 - 1)(place))
    # Which would have to hold as many names.
    (place.data / "identifiers.json").unlink()
    return pretrain, place.run_settings()


# What the scripts and builders read

TASKS = '{"identifiers": ["<blank>", "a"], "test_puzzles": {"a": {"test": [{"input": [[1]]}]}}}'


def scored(place: Place, *, tasks: str = TASKS, preds: Any = None, shape: str = "") -> Call:
    rows = dict.fromkeys(("inputs", "preds"), np.zeros((1, 4), int))
    rows |= {"puzzle_identifiers": np.ones(1, int), "q_halt_logits": np.zeros(1)}
    rows |= {} if preds is None else {"preds": preds}
    np.savez_compressed(place.folder / "rows.npz", **rows)
    if shape:
        with zipfile.ZipFile(place.folder / "rows.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for name in rows:
                archive.writestr(f"{name}.npy", header("'<i8'", shape))
    (place.folder / "tasks.json").write_text(tasks)
    paths = (str(place.folder / name) for name in ("rows.npz", "tasks.json"))
    return call_main, ("apps.reports.score_arc", *paths)


SCORED = {
    "objects": lambda p: {"preds": np.array([hostile.touches(p.canary)])},
    "eight gigabytes in eight megabytes": {"shape": f"({10**12}, 4)"},
    "a size that cannot be counted": {"shape": f"(0, {10**30})"},
    "brackets": {"tasks": "[" * 10**6},
}
payloads("score_arc", 3, lambda place, content: scored(place, **content), SCORED)


def built(place: Place, content: tuple[str, Any]) -> Call:
    """Put a source into its place (see `evaluated`), and build."""
    name, source = content
    (place.folder / "tasks" / "training").mkdir(parents=True)
    (place.folder / "test.csv").write_text("source,question,answer,rating\n")
    evaluated(name, place, source)
    output = f"--output-dir={place.folder / 'built'}"
    if name.startswith("tasks"):
        return build, ("arc", f"--dataset-dirs={place.folder / 'tasks'}", output)
    return build, ("sudoku", f"--source={place.folder}", output)


def endless_line(place: Place) -> tuple[str, bytes]:
    with gzip.open(place.folder / "line.gz", "wb", compresslevel=1) as file:
        file.write(b"source,question,answer,rating\n")
        for _ in range(64):
            file.write(b"1" * 2**24)
    return "train.csv.gz", (place.folder / "line.gz").read_bytes()


SOURCES = {
    "a line of a gigabyte in train.csv.gz": endless_line,
    "a train.csv that is a pipe": ("train.csv", PIPE),
    "a task of brackets": ("tasks/training/a.json", "[" * 10**6),
    "a task that is a pipe": ("tasks/training/a.json", PIPE),
}
payloads("source", 3, built, SOURCES)


# A configuration of the user's own


def configured(place: Place, content: str) -> Call:
    (place.folder / "mine.yaml").write_text(content)
    folder = ("--config-dir", str(place.folder), "--config-name", "mine")
    return pretrain, (*folder, *place.run_settings())


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
payloads("mine.yaml", 2, configured, CONFIGURATIONS)


# The row


def lay(lab: Lab, original: Path, folder: str, name: str, *faults: Fault) -> tuple[Place, Child]:
    """Put a payload into a copy of `original`, and let its entry point meet it."""
    place = Place(lab.copy(original, folder))
    target, arguments = PAYLOADS[name][1](place)
    faults = (partial(limit_memory, 3 * 2**30), *faults)
    child = lab.server.start(target, *arguments, faults=faults, folder=place.folder)
    child.wait(60.0)
    return place, child


def test_nothing_of_a_strangers_files_is_executed(lab: Lab, original: Path) -> None:
    faults = []
    for number, (name, (wanted, _)) in enumerate(PAYLOADS.items()):
        place, child = lay(lab, original, f"{number}", name)
        code, said = child.wait(), child.err.splitlines()
        if place.canary.exists():
            faults.append(f"{name}: executed")
        if code != wanted or (code and len(said) != 1) or any(len(line) > 12_000 for line in said):
            faults.append(f"{name}: exit code {code}: {child.err[-400:]}")
        elif code and str(place.folder) not in said[0] and "${oc.env:HOME}" not in said[0]:
            faults.append(f"{name}: which file? {said[0]}")
        shutil.rmtree(place.folder)
    assert faults == [], "\n".join(faults)
    said = f"{len(PAYLOADS)} payloads, each refused in one line or without effect"
    lab.tally(said, payloads=len(PAYLOADS), executed=0)


def test_python_files_beside_a_checkpoint_are_not_imported(
    lab: Lab, run_python: Callable[..., Any], original: Path
) -> None:
    names = ("models", "evaluation", "sitecustomize", "usercustomize", "yaml", "json", "torch")
    place = Place(lab.folder)
    shutil.copytree(original, lab.folder, dirs_exist_ok=True)
    for below in ("", "published", "published/recursive_reasoning"):
        folder = lab.folder / below
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / f"{name}.py").write_text(f"open({str(place.canary)!r}, 'w').close()\n")
    finished = run_python("evaluate.py", *place.settings(place.published))
    assert finished.code == 0, finished.err
    assert not place.canary.exists()
    lab.tally(f"{3 * len(names)} modules beside a checkpoint and in the working folder: 0 imported")


def advice(lab: Lab, original: Path, name: str, *faults: Fault) -> str:
    """Return what an evaluation says of a checkpoint whose data are not here, and which says how
    they are built.
    """
    place = Place(lab.copy(original, name))
    data = {"name": "theirs; touch x", "path": "nowhere", "build_command": f"touch {place.canary}"}
    config = json.loads((place.folder / STATE).read_bytes())["config"]
    evaluated(
        STATE, place, changed(STATE, config=config | {"data": data, "data_path": "nowhere"})(place)
    )
    settings = [each for each in place.settings(place.own) if not each.startswith("data_path")]
    child = lab.server.start(evaluate, *settings, faults=faults, folder=place.folder)
    assert child.wait() == 3, child.err
    assert "nowhere: no such data folder" in child.err
    return child.err


def test_a_strangers_command_is_not_our_advice(lab: Lab, original: Path) -> None:
    assert "touch" not in advice(lab, original, "copy")
    lab.tally("a checkpoint that names a command to build its data: not passed on")


@pytest.mark.mutant(fault=mutants.pass_commands_on)
def test_a_command_that_is_passed_on_is_noticed(lab: Lab, original: Path) -> None:
    assert "touch" in advice(lab, original, "copy", mutants.pass_commands_on)


EXECUTED_BY = {
    mutants.trust_pickles: "published: os.system",
    mutants.allow_pickled_arrays: ".npy: objects",
    mutants.load_any_yaml: "all_config.yaml: os.system",
}


@pytest.mark.parametrize("mutant", mutants.params(*EXECUTED_BY))
def test_without_its_protection_a_payload_is_executed(
    lab: Lab, original: Path, mutant: Fault
) -> None:
    place, _ = lay(lab, original, "copy", EXECUTED_BY[mutant], mutant)
    assert place.canary.exists()


@pytest.mark.mutant(fault=mutants.unpickle)
def test_without_the_reader_a_key_never_ends(lab: Lab, original: Path) -> None:
    place = Place(lab.copy(original, "copy"))
    evaluated("published/step_7", place, archive_of(SLOW_KEY, storages={}))
    settings = place.settings(place.published)
    child = lab.server.start(evaluate, *settings, faults=[mutants.unpickle], folder=place.folder)
    assert not child.ended_within(5.0), child.err
    child.kill()
