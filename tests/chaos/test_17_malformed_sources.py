"""Row 17: whatever a source file holds, a builder builds a valid set, or says in one line which
file and which row or task is wrong, and leaves what it was to replace alone.

What the readers of CSV and JSON make of a file is in tests/property; here it is the builders.
"""

import gzip
import json
import os
import re
import shutil
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis
import pytest
from harness import builds
from harness.builds import contents, main_of
from hypothesis import HealthCheck
from hypothesis import strategies as st

from dataset.format.reading import load_split

SECONDS = 30  # A build takes 0.02 s.

# Of what follows the name of the file, for rows and for tasks.
CSV_PLACE = (
    r"row \d+: |cannot be read after line \d+: |the header |there is no puzzle|no \w+ is left of \d"
)
JSON_PLACE = r"task |not JSON: |expected an object of |no such file"

characters = st.sampled_from("0123456789.,#SGo \"'\n\r\0\t-+aé\u2028;|\x1a") | st.characters()
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 11)
    | st.sampled_from([2**63, 10**4000, 1e308, float("nan"), float("inf"), -0.0, 3.0])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
odd_files = st.sampled_from(
    [
        b"",
        b"\xff\xfe" + "source,question".encode("utf-16-le"),
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b"{}",
        b"null",
        b'"' + b"x" * 300_000,
        b"\0" * 5000,
        b"source,question,answer,rating\n" + b"," * 200_000,
        gzip.compress(b"1" * 5_000_000),
    ]
) | st.binary(max_size=80)


class Source:
    """Good sources of one kind, some of whose files are replaced, and an older set in the place of
    the one to be built.
    """

    def __init__(self, folder: Path, kind: str, capture: Any) -> None:
        self.kind, self._capture = kind, capture
        self.output, self._kept = folder / "data" / "set", folder / "kept"
        self.sources = builds.write_sources(folder / "sources")
        if kind == "kaggle":
            challenges = {f"t{number}": builds.arc_task(number) for number in range(3)}
            solutions = {
                name: [pair.pop("output") for pair in task["test"]]
                for name, task in challenges.items()
            }
            for name, content in (("challenges", challenges), ("solutions", solutions)):
                path = self.sources / "arc" / f"agi_evaluation_{name}.json"
                path.write_text(json.dumps(content))
        self.files = sorted(
            path
            for path in self.sources.rglob("*")
            if path.suffix in (".csv", ".json")
            and {"kaggle": "agi_", "arc": "arc/"}.get(kind, f"{kind}/") in path.as_posix()
        )
        self.texts = {path: path.read_text() for path in self.files}
        assert self.build() == (0, "")
        shutil.copytree(self.output, self._kept)
        self.old = contents(self._kept)

    def build(self) -> tuple[int, str]:
        """Build; returns the exit code and standard error."""
        flags = (
            builds.flags(self.kind, self.sources, self.output)
            if self.kind != "kaggle"
            else [
                f"--input-file-prefix={self.sources / 'arc' / 'agi'}",
                "--subsets=evaluation",
                "--num-aug=0",
                f"--output-dir={self.output}",
            ]
        )
        self._capture.readouterr()
        signal.alarm(SECONDS)
        try:
            code = main_of("arc" if self.kind == "kaggle" else self.kind)(flags)
        finally:
            signal.alarm(0)
        return code, self._capture.readouterr().err

    def try_with(self, path: Path, content: bytes, place: str) -> bool:
        """Build with another content of a file, and judge; returns whether it was accepted."""
        path.write_bytes(content)
        try:
            code, message = self.build()
        finally:
            path.write_text(self.texts[path])
        assert [each.name for each in self.output.parent.iterdir()] == ["set"]
        if code == 0:
            for split in sorted(self.output.glob("t*/")):
                load_split(split)
            shutil.rmtree(self.output)
            shutil.copytree(self._kept, self.output)
            return True
        assert code == 3, message
        assert contents(self.output) == self.old
        assert re.fullmatch(r"error: [^\n]*\n", message), message
        assert len(message) < 1000, message
        named = [f"{re.escape(str(file))}: " for file in self.files]
        assert re.match(f"error: ({'|'.join(named)})({place})", message), message
        return False


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    """End what hangs; and let fsync return at once."""

    def too_slow(*details: object) -> None:
        raise AssertionError(f"the builder has not ended within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_slow)
    with patch.object(os, "fsync", lambda descriptor: None):
        yield
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def explore(cases: Callable[..., int]) -> Callable[..., tuple[int, int]]:
    """Call a function with what hypothesis draws; returns how often it was, and was true."""

    def run(judge: Callable[[st.DataObject], bool], *, quick: int) -> tuple[int, int]:
        results = []

        @hypothesis.seed(int(os.environ.get("CHAOS_SEED", "0")))
        @hypothesis.settings(
            max_examples=cases(quick=quick, long=100 * quick),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(st.data())
        def once(data: st.DataObject) -> None:
            results.append(judge(data))

        once()
        return len(results), sum(results)

    return run


def spoil_text(data: st.DataObject, text: str) -> bytes:
    """Replace, insert or remove pieces of a text, or all of it; some of its bytes are no UTF-8."""
    if data.draw(st.integers(0, 5)) == 0:
        return data.draw(odd_files)
    content = text
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(content)))
        end = begin + data.draw(st.sampled_from([0, 1, 1, 2, 20]))
        new = "".join(data.draw(st.lists(characters, max_size=3)))
        content = content[:begin] + new + content[end:]
    return content.encode("utf-8", "surrogatepass")


@pytest.mark.row(17)
@pytest.mark.parametrize("kind", ["sudoku", "maze"])
def test_malformed_csv(
    explore: Callable[..., tuple[int, int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tally: Callable[..., None],
    kind: str,
) -> None:
    source = Source(tmp_path, kind, capsys)

    def judge(data: st.DataObject) -> bool:
        path = data.draw(st.sampled_from(source.files))
        if data.draw(st.booleans()):
            return source.try_with(path, spoil_text(data, source.texts[path]), CSV_PLACE)
        lines = source.texts[path].splitlines()
        number = data.draw(st.integers(1, len(lines) - 1))
        fields = lines[number].split(",")
        place = data.draw(st.integers(0, 3))
        fields[place] = "".join(data.draw(st.lists(characters, max_size=20)))
        lines[number] = ",".join(fields)
        content = "\n".join(lines).encode("utf-8", "surrogatepass")
        return source.try_with(path, content, CSV_PLACE)

    number, accepted = explore(judge, quick=200)
    assert accepted < 0.5 * number
    tally(f"{kind}: {number} files, {number - accepted} refused with file and row", files=number)


@pytest.mark.row(17)
@pytest.mark.parametrize("kind", ["arc", "kaggle"])
def test_malformed_tasks(
    explore: Callable[..., tuple[int, int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tally: Callable[..., None],
    kind: str,
) -> None:
    source = Source(tmp_path, kind, capsys)

    def judge(data: st.DataObject) -> bool:
        path = data.draw(st.sampled_from(source.files))
        if data.draw(st.integers(0, 3)) == 0:
            return source.try_with(path, spoil_text(data, source.texts[path]), JSON_PLACE)
        content = json.loads(source.texts[path])
        place = content
        for _ in range(data.draw(st.integers(0, 6))):
            inside = place[data.draw(st.sampled_from(keys_of(place)))]
            if not isinstance(inside, list | dict) or not inside:
                break
            place = inside
        key = data.draw(st.sampled_from(keys_of(place)))
        if data.draw(st.booleans()):
            place[key] = data.draw(anything)
        elif isinstance(place, dict):
            place[data.draw(st.text(max_size=4))] = place.pop(key)
        else:
            place.insert(key, data.draw(anything))
        return source.try_with(path, json.dumps(content).encode(), JSON_PLACE)

    number, accepted = explore(judge, quick=200)
    assert accepted < 0.5 * number
    tally(f"{kind}: {number} files, {number - accepted} refused with file and task", files=number)


def keys_of(place: Any) -> list[Any]:
    """Keys of an object, indices of a list."""
    return list(place) if isinstance(place, dict) else list(range(len(place)))


@pytest.mark.row(17)
def test_a_folder_whose_name_is_no_utf_8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tally: Callable[..., None]
) -> None:
    source = Source(tmp_path, "arc", capsys)
    concept = source.sources / "arc" / "concept"
    concept.rename(os.fsdecode(bytes(concept) + b"\xff"))
    assert source.build() == (0, "")
    manifest = json.loads((source.output / "manifest.json").read_bytes())
    assert any(name.endswith("concept\udcff/d.json") for name in manifest["sources"])
    load_split(source.output / "train")
    tally("a folder named in no UTF-8: built")


@pytest.mark.row(17)
def test_a_small_file_of_one_endless_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tally: Callable[..., None]
) -> None:
    source = Source(tmp_path, "sudoku", capsys)
    path = source.sources / "sudoku" / "train.csv"
    path.unlink()
    text = source.texts[path].encode() + b"1" * 2**25
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(text))
    tracemalloc.start()
    code, message = source.build()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code == 3
    assert message.startswith(f"error: {path}.gz: cannot be read after line 3: a line of ")
    assert peak < 2**23
    tally("32 MB on one line in 33 kB: refused in 8 MB")
