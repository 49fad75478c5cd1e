"""Row 17: from a malformed source a builder makes a valid set, or names the file and row or task.

If it fails, the older set stays unchanged. tests/property has the tests of the readers.
"""

import gzip
import json
import os
import re
import shutil
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis
import pytest
from harness import builds
from harness.builds import build_here, contents
from harness.lab import Lab
from hypothesis import HealthCheck
from hypothesis import strategies as st

from dataset.format.reading import load_split

SECONDS = 30  # A build takes 0.02 s.

# The text after the file's name in a message about a row, and about a task.
CSV_PLACE = (
    r"row \d+: |cannot be read after line \d+: |the header |no puzzle below|no \w+ is left of \d"
)
JSON_PLACE = r"task |not JSON: |expected an object of |\w+, expected a JSON object|no such file"

characters = st.sampled_from("0123456789.,#SGo \"'\n\r\0\t-+aé\u2028;|\x1a") | st.characters()
WIDE = b"source,question,answer,rating\n" + b"," * 200_000
odd_files = st.binary(max_size=80) | st.sampled_from(
    [
        *(b"", b"{}", b"null", b"[" * 200_000, b'{"a":' * 50_000, b'"' + b"x" * 300_000),
        *(b"\xff\xfe" + "source,question".encode("utf-16-le"), b"\0" * 5000, WIDE),
        gzip.compress(b"1" * 5_000_000),
    ]
)


class Source:
    """Good sources of one kind, and an older set in the output folder."""

    def __init__(self, folder: Path, kind: str, capture: Any) -> None:
        self._kind, self._capture = kind.replace("kaggle", "arc"), capture
        self.output, self._kept = folder / "data" / "set", folder / "kept"
        self.folder = builds.write_sources(folder / "sources") / self._kind
        self._flags = builds.flags(self._kind, self.folder.parent, self.output)
        if kind == "kaggle":
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            tasks = {f"t{number}": builds.arc_task(number) for number in range(3)}
            solved = {name: [pair.pop("output") for pair in tasks[name]["test"]] for name in tasks}
            for name, content in (("challenges", tasks), ("solutions", solved)):
                (self.folder / f"agi_evaluation_{name}.json").write_text(json.dumps(content))
            source = (f"--input-file-prefix={self.folder / 'agi'}", "--subsets=evaluation")
            self._flags = [*source, "--num-aug=0", f"--output-dir={self.output}"]
        self.texts = {path: path.read_text() for path in sorted(self.folder.rglob("*.*"))}
        assert self.build() == (0, "")
        shutil.copytree(self.output, self._kept)
        self.old = contents(self._kept)

    def build(self) -> tuple[int, str]:
        """Build, and return the exit code and standard error."""
        self._capture.readouterr()
        signal.alarm(SECONDS)
        try:
            code = build_here(self._kind, *self._flags)
        finally:
            signal.alarm(0)
        return code, self._capture.readouterr().err

    def try_with(self, path: Path, content: bytes, place: str) -> bool:
        """Build with new content of a file; check the result, return whether it was accepted."""
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
        named = [f"{re.escape(str(file))}: " for file in self.texts]
        assert re.match(f"error: ({'|'.join(named)})({place})", message), message
        return False


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    """End a builder that hangs, and let fsync return at once."""

    def too_slow(*details: object) -> None:
        raise AssertionError(f"the builder has not ended within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_slow)
    with patch.object(os, "fsync", lambda descriptor: None):
        yield
    signal.signal(signal.SIGALRM, before)


def spoil_text(data: st.DataObject, text: str) -> bytes:
    """Replace, insert or remove pieces of a text; sometimes replace all of it."""
    if data.draw(st.integers(0, 5)) == 0:
        return data.draw(odd_files)
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = begin + data.draw(st.sampled_from([0, 1, 1, 2, 20]))
        new = "".join(data.draw(st.lists(characters, max_size=3)))
        text = text[:begin] + new + text[end:]
    return text.encode("utf-8", "surrogatepass")


CSV, JSON = (CSV_PLACE, "row"), (JSON_PLACE, "task")


@pytest.mark.parametrize(
    ("kind", "how"), [("sudoku", CSV), ("maze", CSV), ("arc", JSON), ("kaggle", JSON)]
)
def test_malformed_sources(lab: Lab, capsys: Any, kind: str, how: Any) -> None:
    named, unit = how
    source, accepted = Source(lab.folder, kind, capsys), []

    @hypothesis.seed(int(os.environ.get("CHAOS_SEED", "0")))
    @hypothesis.settings(
        max_examples=lab.cases(quick=200, long=20_000),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(st.data())
    def once(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(list(source.texts)))
        accepted.append(source.try_with(path, spoil_text(data, source.texts[path]), named))

    once()
    number, refused = len(accepted), accepted.count(False)
    assert refused > 0.5 * number
    lab.tally(f"{kind}: {number} files, {refused} refused with file and {unit}", files=number)


def test_a_folder_with_a_name_that_is_not_utf_8(lab: Lab, capsys: Any) -> None:
    source = Source(lab.folder, "arc", capsys)
    concept = source.folder / "concept"
    concept.rename(os.fsdecode(bytes(concept) + b"\xff"))
    assert source.build() == (0, "")
    manifest = json.loads((source.output / "manifest.json").read_bytes())
    assert any(name.endswith("concept\udcff/d.json") for name in manifest["sources"])
    load_split(source.output / "train")
    lab.tally("a folder with a name that is not UTF-8: built")


def test_a_small_file_of_one_endless_line(lab: Lab, capsys: Any) -> None:
    source = Source(lab.folder, "sudoku", capsys)
    path = source.folder / "train.csv"
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
    lab.tally("a line of 32 MB, packed into 33 kB: refused with 8 MB of memory")
