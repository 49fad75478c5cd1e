"""Pages are complete, small and harmless for any content of a run's folder."""

import base64
import gzip
import hashlib
import json
import random
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from apps.reports import page as pages
from apps.reports import runs
from apps.reports.html import percent, text, words
from apps.reports.page import MAX_BYTES
from apps.reports.writing import write_report
from runtime.errors import ConfigError
from runtime.text import duration
from scripts import report

Make = Callable[..., Path]
HOSTILE = "<script>alert(1)</script>\"'&\u202e\x1b[31m"

pytest.importorskip("plotly", reason="plotly is not installed (pip install '.[pictures]')")


class Parsed(HTMLParser):
    """The elements of a page, and its text outside of scripts and styles."""

    VOID = ("meta", "br", "wbr", "rect", "path")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] != ["style"]:
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def written(*folders: Path, output: Path | None = None) -> Parsed:
    path, size = write_report(folders, output)
    content = path.read_bytes()
    assert len(content) == size < MAX_BYTES
    return Parsed(content.decode())


def figures_in(parsed: Parsed) -> list[Any]:
    return json.loads(parsed.scripts[0])


def test_nothing_is_loaded_and_only_two_scripts_may_run(make_run_folder: Make) -> None:
    parsed = written(make_run_folder())
    loads = {"src", "srcset", "data", "action", "formaction", "poster", "background", "xlink:href"}
    assert [a for _, a in parsed.tags if loads & a.keys()] == []
    assert all(str(a["href"])[0] == "#" for _, a in parsed.tags if "href" in a)
    assert not any(name.startswith("on") for _, a in parsed.tags for name in a)
    assert not parsed.named("link") + parsed.named("iframe")
    (policy,) = [a["content"] for a in parsed.named("meta") if a.get("http-equiv")]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    assert "http" not in policy
    kinds = [a.get("type") for a in parsed.named("script")]
    assert kinds == ["application/json", "text/plain", None]
    library = gzip.decompress(base64.b64decode(parsed.scripts[1])).decode()
    assert library == pages.plotly_script()
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
        for code in (parsed.scripts[2], library)
    ]
    assert rules["script-src"].split() == hashes


def test_hostile_names_and_settings_are_text(make_run_folder: Make) -> None:
    settings = {HOSTILE: HOSTILE, "arch": {"name": HOSTILE}, "data_path": HOSTILE}
    folder = make_run_folder("<script>alert(1)<", settings={**settings, "project_name": HOSTILE})
    record = {"step": 41, "train/lr": 1.0, "diagnose/warnings": [HOSTILE, {"a": HOSTILE}, 7]}
    record |= {f"train/lr/{HOSTILE}": 1.0, "train/grad_norm/$x^2$": 1.0}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n" + json.dumps(record | {"step": 42}) + "\n")
    for name in ("eval_step_40.json", "eval_step_40_records.json", "arc_tasks.json"):
        text = (folder / name).read_text()
        for word in ("all", "task one", "trm", "valid", "sudoku", "step_40"):
            text = text.replace(f'"{word}"', json.dumps(HOSTILE))
        (folder / name).write_text(text)
    parsed = written(folder)
    assert len(parsed.named("script")) == 3
    assert "<script>alert(1)</script>" in parsed.text
    assert not any(sign in parsed.text for sign in ("\x1b", "\u202e"))
    for text in re.findall(r'"(?:name|text)":("(?:[^"\\]|\\.)*")', parsed.scripts[0]):
        assert "<script" not in json.loads(text)
    assert "<" not in parsed.scripts[0]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"config.yaml": b""},
        {"config.yaml": b"\x00\x01", "metrics.jsonl": b"\x00\x01\xff"},
        {"metrics.jsonl": b'{"step": 1, "train/lr": "nan", "train/lm_loss": "inf"}\n'},
        {"metrics.jsonl": b'{"step": 1, "train/lr": 1, "train/lm_loss": -1e308}\n' * 3},
        {"config.yaml": b"lr: .nan\narch: 7\nglobal_batch_size: [1]\n"},
    ],
    ids=range(6),
)
def test_a_broken_run_has_a_page_or_one_line(
    tmp_path: Path, content: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    code = report.main([str(tmp_path)])
    told = capsys.readouterr()
    assert code == (0 if content else 2)
    assert len(told.err.splitlines()) == (0 if content else 1)
    if content:
        assert Parsed((tmp_path / "report.html").read_text()).text
    else:
        assert "holds no run" in told.err


def test_a_page_that_cannot_be_written_and_a_missing_run_are_one_line(
    make_run_folder: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run_folder()
    output = tmp_path / "no" / "such" / "folder.html"
    for arguments, told in (
        (["nowhere"], "nowhere: no such folder"),
        ([str(folder), "-o", str(output)], f"{output}: No such file"),
        ([str(folder), "-o", str(tmp_path)], f"{tmp_path}: Is a directory"),
    ):
        assert report.main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_an_interrupted_report_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "write_report", stop)
    assert report.main(["anywhere"]) == 130
    assert capsys.readouterr().err == "report.py: interrupted\n"


def test_the_path_of_a_page(
    make_run_folder: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = make_run_folder("runs/one"), make_run_folder("others/one")
    monkeypatch.chdir(folder.parents[1])
    assert report.main(["runs"]) == 0
    assert re.fullmatch(r"written: runs/one/report.html \(\d\.\d MB\)\n", capsys.readouterr().out)
    monkeypatch.chdir(folder)
    assert write_report([Path()])[0] == Path("report.html")
    assert write_report([folder, Path()], Path("same.html"))[0] == Path("same.html")
    assert "Report of" not in Path("same.html").read_text()
    # Runs of the same name get labels with their paths.
    text = write_report([folder, other])[0].read_text().replace("<wbr>", "")
    assert re.findall(r'<tr><th scope="row">(\w+/one)', text)[:2] == ["runs/one", "others/one"]
    monkeypatch.setattr("apps.reports.writing.MAX_BYTES", 1_000_000)
    with pytest.raises(ConfigError, match="the page has over 1 MB"):
        write_report([folder])
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    pages.plotly_script.cache_clear()
    assert report.main([str(folder)]) == 2
    assert "plotly is not installed (pip install '.[pictures]')" in capsys.readouterr().err


# Several runs


def test_means_over_seeds_are_printed_as_a_table(
    make_sweep: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep()
    markdown = "| 0.003 | 0.625 | 0.03536 | 2 |\n| 0.001 | 0.525 | 0.03536 | 2 |\n"
    assert runs.main([str(sweep), "--table"]) == 0
    assert capsys.readouterr().out.endswith(markdown)
    assert runs.main([str(sweep), "--table", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "0.003,0.625,0.03536,2"
    record = json.loads((sweep / "sweep.json").read_text())
    record["jobs"]["lr-0.003__seed-1"]["state"] = "stopped"
    (sweep / "sweep.json").write_text(json.dumps(record))
    assert runs.main([str(sweep), "--table", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("0.003,0.6,")


def test_scores_by_different_measures_are_not_ranked(make_run_folder: Make) -> None:
    searched, *others = map(make_run_folder, ("searched", "one", "other"))
    for other in others:
        (other / "eval_step_40_search8x100.json").unlink()
    page = searched.parent / "page.html"
    parsed = written(searched, *others, output=page)
    assert "best of" not in parsed.text
    for heading in ("measure", "solved by search", "exact accuracy"):
        assert heading in parsed.text
    assert "best of 2 runs" in written(*others, output=page).text


@pytest.mark.slow
def test_the_page_of_a_very_large_run_stays_below_the_limit(make_run_folder: Make) -> None:
    folder = make_run_folder()
    with (folder / "metrics.jsonl").open("a") as file:
        for step in range(41, 1000):
            record = {f"train/lr/{n}": random.Random(step * n).random() for n in range(300)}
            file.write(json.dumps({"step": step, "train/lr": 1.0, **record}) + "\n")
    grid = {"votes": 3, "mean_q": 0.5, "grid": [[i % 10 for i in range(30)]] * 30}
    ballot = {"votes": 4, "num_grids": 2, "known": True, "solved_at": 1, "grids": [grid] * 100}
    tasks = {f"task {n}": [ballot] for n in range(40)}
    (folder / "arc_tasks.json").write_text(json.dumps(tasks))
    path = folder / "eval_step_40_records.json"
    content = json.loads(path.read_text())
    of_set = content["sets"]["all"]
    grids = {"inputs": [3] * 900, "labels": [4] * 900, "answer": [5] * 900}
    of_set["failures"] = dict.fromkeys(("surest", "most_wrong"), [{"index": 1, **grids}] * 12)
    sets = {f"set {number}": of_set for number in range(4)}
    path.write_text(json.dumps({"kind": "arc", "sets": sets}))
    written(folder)


# Parts


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        *((0.2, "0 s"), (59.4, "59 s"), (60, "1 min"), (370.5, "6 min 10 s"), (3600, "1 h")),
        *((11100, "3 h 5 min"), (86400 * 1.5, "36 h"), (86400 * 4 + 7200, "4 days 2 h")),
        (1e300, "11,574,074 days 1 h"),
    ],
)
def test_durations_as_text(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((0.0, "0.0 %"), (1e-9, "under 0.1 %"), (0.0006, "0.1 %"), (0.98, "98.0 %")),
        *((0.9994, "99.9 %"), (0.99999, "over 99.9 %"), (1.0, "100.0 %")),
    ],
)
def test_shares_as_text(value: float, expected: str) -> None:
    assert percent(value) == expected


def test_text_is_escaped() -> None:
    assert text("<a href='x'>&\x00") == "&lt;a href=&#x27;x&#x27;&gt;&amp;\\x00"
    assert len(text("x" * 1000)) == 300
    assert str(words("a_b/<c>")) == "<td>a_<wbr>b/<wbr>&lt;c&gt;</td>"


# Any content


VALUES = (None, True, 0, -1, 1e308, 10**400, "nan", "", "x" * 10_000, [], {}, [[]], [None])


def changed(value: Any, draw: random.Random) -> Any:
    """Return JSON with about one value in ten replaced by a value of another type."""
    if draw.random() < 0.1:
        return draw.choice(VALUES)
    if isinstance(value, dict):
        return {key: changed(inner, draw) for key, inner in value.items()}
    if isinstance(value, list):
        return [changed(inner, draw) for inner in value]
    return value


@pytest.mark.parametrize("seed", range(40))
def test_a_page_is_written_for_randomly_changed_files(make_run_folder: Make, seed: int) -> None:
    draw, folders = random.Random(seed), [make_run_folder("a"), make_run_folder("b")]
    for folder in folders:
        for path in [*folder.glob("*.json"), folder / "config.yaml", *folder.glob("*/state.json")]:
            path.write_text(json.dumps(changed(json.loads(path.read_text()), draw)))
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        lines = [json.dumps(changed(json.loads(line), draw)) for line in lines]
        (folder / "metrics.jsonl").write_text("\n".join(lines))
        table = folder / "eval_step_40_records.csv"
        cells = [line.split(",") for line in table.read_text().splitlines()]
        table.write_text(
            "\n".join(",".join(str(changed(cell, draw))[:100] for cell in row) for row in cells)
        )
    written(folders[0])
    written(*folders, output=folders[0] / "both.html")
