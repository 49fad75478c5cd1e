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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import hostile, mutants
from harness.builds import build
from harness.lab import Lab
from harness.mounts import MemoryLimit
from harness.processes import Child, Fault, convert, evaluate, pretrain

TASKS = '{"identifiers": ["<blank>", "a"], "test_puzzles": {"a": {"test": [{"input": [[1]]}]}}}'


@dataclass(frozen=True)
class Place:
    """Where a payload is put: copies of a published run, of a run of ours, and of their data."""

    folder: Path

    @property
    def canary(self) -> Path:
        """The file that must not come into being."""
        return self.folder / "canary"

    @property
    def published(self) -> Path:
        """A published file of weights."""
        return self.folder / "published" / "step_7"

    @property
    def own(self) -> Path:
        """A checkpoint of ours."""
        return self.folder / "own" / "step_7"

    @property
    def data(self) -> Path:
        """A data set."""
        return self.folder / "data"

    def settings(self, weights: Path, *more: str) -> tuple[str, ...]:
        """The overrides of an evaluation."""
        given = (f"checkpoint={weights}", "device=cpu", "num_threads=1", "evaluators=[]")
        return (*given, f"data_path={self.data}", f"output={self.folder / 'result.json'}", *more)


Call = tuple[Callable[..., None], tuple[str, ...]]
Payload = Callable[[Place], Call]
PAYLOADS: dict[str, tuple[Payload, int]] = {}


def payload(name: str, code: int) -> Callable[[Payload], None]:
    """Register how a payload is laid, and the exit code with which it must end."""

    def register(lay: Payload) -> None:
        PAYLOADS[name] = lay, code

    return register


def payloads(
    kind: str, code: int, lay: Callable[[Place, Any], Call], contents: Mapping[str, Any]
) -> None:
    """Register payloads that are laid alike; a content may depend on the place."""

    def laid(content: Any) -> Payload:
        return lambda place: lay(place, content(place) if callable(content) else content)

    for name, content in contents.items():
        payload(f"{kind}: {name}", code)(laid(content))


def evaluated(place: Place, content: bytes) -> Call:
    place.published.write_bytes(content)
    return evaluate, place.settings(place.published)


def piped(path: Path) -> None:
    """Put a pipe that nobody writes to in the place of a file."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def linked(path: Path, target: str) -> None:
    """Put a link in the place of a file."""
    path.unlink()
    path.symlink_to(target)


def saved(content: Any, **how: Any) -> Callable[[Path], bytes]:
    """torch.save into bytes."""

    def save(folder: Path) -> bytes:
        torch.save(content, folder / "saved", **how)
        return (folder / "saved").read_bytes()

    return save


# Published files


PICKLES: dict[str, Callable[[Place], bytes]] = {
    "os.system": lambda p: saved(hostile.touches(p.canary))(p.folder),
    "builtins.eval": lambda p: saved(hostile.evaluates(p.canary))(p.folder),
    "a call among tensors": lambda p: saved(
        {"model.inner.H_init": torch.zeros(2), "x": hostile.touches(p.canary)}
    )(p.folder),
    "a bare pickle": lambda p: pickle.dumps(hostile.touches(p.canary)),
    "torch's old format": lambda p: saved(
        hostile.touches(p.canary), _use_new_zipfile_serialization=False
    )(p.folder),
    "a pickle for torch to load": lambda p: saved(
        hostile.Calls(torch.storage._load_from_bytes, (pickle.dumps(hostile.touches(p.canary)),))
    )(p.folder),
    "protocol 4": lambda p: saved(hostile.touches(p.canary), pickle_protocol=4)(p.folder),
    "memory for a bytearray": lambda p: saved({"x": hostile.Calls(bytearray, (10**11,))})(p.folder),
    "an archive in the archive": lambda p: hostile.archive_of(
        hostile.archive_of(pickle.dumps(hostile.touches(p.canary), 2), storages={}), storages={}
    ),
    "a harmless pickle after it": lambda p: hostile.archive_of(
        pickle.dumps(hostile.touches(p.canary), 2), storages={"data.pkl": pickle.dumps({}, 2)}
    ),
    "a pickle of a gigabyte in a megabyte": lambda p: hostile.archive_of(
        b"\x80\x02(" + b"N" * 2**30 + b"l.", storages={}, deflated=True
    ),
    "a TorchScript program": lambda p: hostile.archive_of(b"\x80\x02}.", storages={}).replace(
        b"x/byteorder", b"constants.p"
    ),
    "a storage larger than its data": lambda p: hostile.archive_of(
        hostile.tensor_of("model.inner.H_init", (10**9,), (1,), 10**9), storages={"0": b"\0" * 16}
    ),
    "a tensor larger than its storage": lambda p: hostile.archive_of(
        hostile.tensor_of("model.inner.H_init", (10**12,), (0,), 4), storages={"0": b"\0" * 16}
    ),
    "four gigabytes of tensors that share a megabyte": lambda p: hostile.archive_of(
        hostile.tensor_of("model.inner.H_init", (2**18,), (1,), 2**18, times=4096),
        storages={"0": bytes(2**20)},
    ),
}
payloads("published", 4, evaluated, PICKLES)


@payload("published: os.system in the average", 4)
def _(place: Place) -> Call:
    torch.save(hostile.touches(place.canary), place.published.with_name("step_7_ema"))
    return evaluate, place.settings(place.published)


@payload("published: os.system in start weights", 4)
def _(place: Place) -> Call:
    torch.save(hostile.touches(place.canary), place.published)
    return pretrain, (
        *(f"data_path={place.data}", f"load_checkpoint={place.published}", "logger=jsonl"),
        *(f"checkpoint_path={place.folder / 'run'}", "global_batch_size=2", "epochs=2"),
        *("eval_interval=2", "device=cpu", "evaluators=[]", "arch.hidden_size=32"),
        "arch.num_heads=2",
    )


@payload("published: os.system, converted", 4)
def _(place: Place) -> Call:
    torch.save(hostile.touches(place.canary), place.published)
    output = place.folder / "exported"
    return convert, (f"checkpoint={place.published}", f"output={output}", f"data_path={place.data}")


# all_config.yaml


def configured(place: Place, content: str) -> Call:
    place.published.with_name("all_config.yaml").write_text(content)
    return evaluate, place.settings(place.published)


def changed(old: str, new: str) -> Callable[[Place], str]:
    def change(place: Place) -> str:
        text = place.published.with_name("all_config.yaml").read_text()
        assert old in text
        return text.replace(old, new)

    return change


_BOMB = "\n".join(
    ["l0: &l0 [x, x]"] + [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)]
)
_MERGES = "\n".join(
    ["l0: &l0 {a: 1}"]
    + [f"l{i}: &l{i} {{<<: [{', '.join([f'*l{i - 1}'] * 9)}]}}" for i in range(1, 12)]
)
_NAME = "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1"
YAMLS: dict[str, Callable[[Place], str]] = {
    "os.system": lambda p: f"!!python/object/apply:os.system ['touch {p.canary}']",
    "eval in arch": lambda p: (
        f"arch: !!python/object/apply:eval [\"open('{p.canary}', 'w').close()\"]"
    ),
    "an object in the name": changed(_NAME, "!!python/name:os.system"),
    "a tree of aliases": lambda p: f"{_BOMB}\narch: *l11",
    "aliases in evaluators": lambda p: f"{changed('lr:', 'eta:')(p)}\n{_BOMB}\nevaluators: *l11",
    "a tree of merges": lambda p: f"{_MERGES}\narch: *l11",
    "a class of another module": changed(_NAME, "os.system@x"),
    "a target": changed("arch:", "arch:\n  _target_: os.system"),
    "a model of terabytes": changed("hidden_size: 32", "hidden_size: 65536"),
    "a width without end": changed("hidden_size: 32", f"hidden_size: {2**62 + 1}"),
    "a number of thousands of digits": changed("H_layers: 2", f"H_layers: 0x{'f' * 20_000}"),
    "brackets": lambda p: "[" * 100_000,
    "an interpolation": changed("H_layers: 2", "H_layers: ${oc.decode:2}"),
}
payloads("all_config.yaml", 4, configured, YAMLS)


@payload("all_config.yaml: an interpolation as a path", 3)
def _(place: Place) -> Call:
    target, settings = configured(
        place, changed("data_path: data", "data_path: ${oc.env:HOME}")(place)
    )
    return target, tuple(setting for setting in settings if not setting.startswith("data_path="))


BATCH = changed("global_batch_size: 4", f"global_batch_size: {10**12}")
payloads("all_config.yaml", 0, configured, {"a batch of terabytes": BATCH})


@payload("all_config.yaml: less than no tokens, converted", 2)
def _(place: Place) -> Call:
    content = place.published.with_name("all_config.yaml").read_text()
    facts = "data_facts: {vocab_size: -5, seq_len: 81, num_puzzle_identifiers: 3}"
    content = content.replace("data_path:", "data_paht:")
    place.published.with_name("all_config.yaml").write_text(f"{content}\n{facts}\n")
    settings = (f"checkpoint={place.published}", f"output={place.folder / 'converted'}")
    return convert, settings


# A run of ours


@payload("config.yaml: os.system, which nobody reads", 0)
def _(place: Place) -> Call:
    (place.own.parent / "config.yaml").write_text(
        f"!!python/object/apply:os.system ['touch {place.canary}']"
    )
    return evaluate, place.settings(place.own.parent)


def resealed(name: str, place: Place, content: bytes) -> Call:
    (place.own / name).write_bytes(content)
    hostile.seal(place.own)
    return evaluate, place.settings(place.own)


def state_with(place: Place, **changes: Any) -> bytes:
    return json.dumps(json.loads((place.own / "state.json").read_bytes()) | changes).encode()


STATES: dict[str, Callable[[Place], bytes]] = {
    "brackets": lambda p: b"[" * 10**6,
    "a number of thousands of digits": lambda p: b'{"step": ' + b"9" * 10**5 + b"}",
    "a step of another type": lambda p: state_with(p, step=[7]),
    "a class of another module": lambda p: state_with(
        p, config={"arch": {"name": "os.system@x", "_target_": "os.system"}}
    ),
    "a model of terabytes": lambda p: state_with(
        p, config={"arch": {"name": "hrm", "hidden_size": 65536, "H_layers": 1024}}
    ),
}
payloads("state.json", 4, partial(resealed, "state.json"), STATES)


@payload("MANIFEST.json: brackets", 4)
def _(place: Place) -> Call:
    (place.own / "MANIFEST.json").write_bytes(b'{"files":' + b"[" * 10**6)
    return evaluate, place.settings(place.own)


@payload("MANIFEST.json: a file without end", 4)
def _(place: Place) -> Call:
    linked(place.own / "MANIFEST.json", "/dev/zero")
    return evaluate, place.settings(place.own)


TENSORS = {
    "a header without end": hostile.safetensors("{}", length=2**62),
    "a tensor larger than the file": hostile.safetensors(
        '{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}', b"\0" * 8
    ),
    "sizes that overflow": hostile.safetensors(
        '{"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,0]}}'
    ),
    "overlapping tensors": hostile.safetensors(
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        '"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
        b"\0" * 12,
    ),
    "the same key twice": hostile.safetensors(
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b"\0" * 8,
    ),
    "a type that torch lacks": hostile.safetensors(
        '{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', b"\0"
    ),
    "brackets": hostile.safetensors('{"a":' + "[" * 10**5),
}
payloads("safetensors", 4, partial(resealed, "model.safetensors"), TENSORS)


# Data


def with_data(name: str, place: Place, content: bytes) -> Call:
    (place.data / name).write_bytes(content)
    return evaluate, place.settings(place.published)


def objects(place: Place) -> bytes:
    np.save(place.folder / "x.npy", np.array([hostile.touches(place.canary)]), allow_pickle=True)
    return (place.folder / "x.npy").read_bytes()


def header(descr: str, shape: str) -> bytes:
    return hostile.npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}")


ARRAYS: dict[str, Callable[[Place], bytes]] = {
    "objects": objects,
    "a bare pickle": lambda p: pickle.dumps(hostile.touches(p.canary)),
    "an expression": lambda p: header(f"__import__('os').system('touch {p.canary}')", "(1,)"),
    "a header that warns": lambda p: header("'<i4'", "(1if 1else 2,)"),
    "a size without end": lambda p: header("'<i4'", f"({'9' * 4000}, {'9' * 4000}, 1)"),
    "nothing, a googol wide": lambda p: header("'<i4'", f"(0, {10**100})"),
    "nothing, too wide for NumPy": lambda p: header("'<i4'", f"(0{f', {2**31 - 1}' * 4})"),
    "a type of thousands of digits": lambda p: header(f"0x{'f' * 8000}", "(1,)"),
    "signs": lambda p: hostile.npy("-" * 9000 + "1"),
}
payloads(".npy", 3, partial(with_data, "test/all__inputs.npy"), ARRAYS)


def metadata_with(place: Place, **changes: Any) -> bytes:
    path = place.data / "test" / "dataset.json"
    return json.dumps(json.loads(path.read_bytes()) | changes).encode()


METADATA: dict[str, Callable[[Place], bytes]] = {
    "brackets": lambda p: b"[" * 10**6,
    "numbers of 4000 digits": lambda p: metadata_with(p, vocab_size=10**4000),
    "numbers of 5000 digits": lambda p: b'{"vocab_size": ' + b"1" * 5000 + b"}",
    "an infinite mean": lambda p: metadata_with(p, mean_puzzle_examples=float("inf")),
    "a hundred megabytes": lambda p: b" " * 10**8,
}
payloads("dataset.json", 3, partial(with_data, "test/dataset.json"), METADATA)


@payload("dataset.json: two thousand million puzzles", 2)
def _(place: Place) -> Call:
    path = place.data / "train" / "dataset.json"
    content = json.loads(path.read_bytes()) | {"num_puzzle_identifiers": 2**31 - 1}
    path.write_text(json.dumps(content))
    # Which would have to hold as many names.
    (place.data / "identifiers.json").unlink()
    return pretrain, (
        *(f"data_path={place.data}", "global_batch_size=2", "epochs=2", "eval_interval=2"),
        *(f"checkpoint_path={place.folder / 'run'}", "logger=jsonl", "evaluators=[]"),
        "device=cpu",
    )


def with_pipe(place: Place, name: str) -> Call:
    piped(place.data / "test" / name)
    return evaluate, place.settings(place.published)


PIPES = {name: name for name in ("dataset.json", "all__inputs.npy")}
payloads("a pipe that nobody writes to", 3, with_pipe, PIPES)


OPEN = {"brackets": b'{"files":' + b"[" * 10**6}
payloads("manifest.json", 3, partial(with_data, "manifest.json"), OPEN)


def with_link(place: Place, link: tuple[str, str]) -> Call:
    name, target = link
    linked(place.data / "test" / name, target)
    return evaluate, place.settings(place.published)


LINKS = {
    "to a device": ("all__labels.npy", "/dev/zero"),
    "to somebody else's file": ("all__inputs.npy", "/etc/passwd"),
}
payloads("a link", 3, with_link, LINKS)


# What the scripts and builders read


def scored(place: Place, tasks: str = TASKS, **arrays: np.ndarray) -> Call:
    rows = {"puzzle_identifiers": np.ones(1, int), "q_halt_logits": np.zeros(1)}
    rows |= {name: np.zeros((1, 4), int) for name in ("inputs", "preds")}
    np.savez_compressed(place.folder / "rows.npz", **(rows | arrays))
    (place.folder / "tasks.json").write_text(tasks)
    return hostile.score_arc, (str(place.folder / "rows.npz"), str(place.folder / "tasks.json"))


@payload("score_arc: objects", 3)
def _(place: Place) -> Call:
    return scored(place, preds=np.array([hostile.touches(place.canary)]))


def with_shape(place: Place, shape: str) -> Call:
    call = scored(place)
    with zipfile.ZipFile(place.folder / "rows.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("puzzle_identifiers", "q_halt_logits", "inputs", "preds"):
            archive.writestr(f"{name}.npy", header("'<i8'", shape))
    return call


SHAPES = {
    "eight gigabytes in eight megabytes": f"({10**12}, 4)",
    "a size that cannot be counted": f"(0, {10**30})",
}
payloads("score_arc", 3, with_shape, SHAPES)


@payload("score_arc: brackets", 3)
def _(place: Place) -> Call:
    return scored(place, tasks="[" * 10**6)


def with_votes(place: Place, content: str) -> Call:
    (place.folder / "votes.json").write_text(content)
    return hostile.show_votes, (str(place.folder / "votes.json"),) * 2


VOTES = {
    "brackets": "[" * 10**6,
    "values of another type": '{"a": [{"solved_at": {}, "grids": 3}]}',
}
payloads("show_votes", 3, with_votes, VOTES)


def built(place: Place, kind: str, source: str) -> Call:
    return build, (kind, f"--{source}", f"--output-dir={place.folder / 'built'}")


@payload("a line of a gigabyte in train.csv.gz", 3)
def _(place: Place) -> Call:
    for split in ("train", "test"):
        with gzip.open(place.folder / f"{split}.csv.gz", "wb", compresslevel=1) as file:
            file.write(b"source,question,answer,rating\n")
            for _ in range(64):
                file.write(b"1" * 2**24)
    return built(place, "sudoku", f"source={place.folder}")


@payload("a train.csv that is a pipe", 3)
def _(place: Place) -> Call:
    (place.folder / "test.csv").write_text("source,question,answer,rating\n")
    piped(place.folder / "train.csv")
    return built(place, "sudoku", f"source={place.folder}")


@payload("a task of brackets", 3)
def _(place: Place) -> Call:
    (place.folder / "tasks" / "training").mkdir(parents=True)
    (place.folder / "tasks" / "training" / "a.json").write_text("[" * 10**6)
    return built(place, "arc", f"dataset-dirs={place.folder / 'tasks'}")


@payload("a task that is a pipe", 3)
def _(place: Place) -> Call:
    piped(place.folder / "tasks" / "training" / "a.json")
    return built(place, "arc", f"dataset-dirs={place.folder / 'tasks'}")


# The row


def lay(lab: Lab, original: Path, folder: str, name: str, *faults: Fault) -> tuple[Place, Child]:
    """Put a payload into a copy of `original`, and let its entry point meet it."""
    place = Place(lab.copy(original, folder))
    target, arguments = PAYLOADS[name][0](place)
    faults = (MemoryLimit(3 * 2**30), *faults)
    child = lab.server.start(target, *arguments, faults=faults, folder=place.folder)
    child.wait(60.0)
    return place, child


@pytest.mark.row(15)
def test_nothing_of_a_strangers_files_is_executed(lab: Lab, original: Path) -> None:
    faults = []
    for number, (name, (_, wanted)) in enumerate(PAYLOADS.items()):
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
    lab.tally(
        f"{len(PAYLOADS)} payloads, each refused in one line or without effect",
        payloads=len(PAYLOADS),
        executed=0,
    )


@pytest.mark.row(15)
def test_python_files_beside_a_checkpoint_are_not_imported(
    run_python: Callable[..., Any], original: Path, tmp_path: Path, tally: Callable[..., None]
) -> None:
    names = ("models", "evaluation", "sitecustomize", "usercustomize", "yaml", "json", "torch")
    place = Place(tmp_path)
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    for below in ("", "published", "published/recursive_reasoning"):
        folder = tmp_path / below
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / f"{name}.py").write_text(f"open({str(place.canary)!r}, 'w').close()\n")
    finished = run_python("evaluate.py", *place.settings(place.published))
    assert finished.code == 0, finished.err
    assert not place.canary.exists()
    tally(f"{3 * len(names)} modules beside a checkpoint and in the working folder: 0 imported")


@pytest.mark.row(15)
def test_torch_refuses_too_what_is_not_looked_through(lab: Lab, original: Path) -> None:
    names = [f"published: {name}" for name in ("os.system", "builtins.eval", "a bare pickle")]
    for number, name in enumerate(names):
        place, child = lay(lab, original, f"{number}", name, mutants.skip_the_look)
        assert (child.wait(), place.canary.exists()) == (4, False), child.err
    lab.tally(f"{len(names)} pickles stopped by weights_only alone")


EXECUTED_BY = {
    mutants.trust_pickles: "published: os.system",
    mutants.allow_pickled_arrays: ".npy: objects",
    mutants.load_any_yaml: "all_config.yaml: os.system",
}


@pytest.mark.parametrize("mutant", mutants.params(15, *EXECUTED_BY))
def test_without_its_protection_a_payload_is_executed(
    lab: Lab, original: Path, mutant: Fault
) -> None:
    place, _ = lay(lab, original, "copy", EXECUTED_BY[mutant], mutant)
    assert place.canary.exists()
