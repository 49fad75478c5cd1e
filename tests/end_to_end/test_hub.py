"""Checkpoints on the Hugging Face Hub, with a stand-in server on this machine.

Downloads use the real client; pushes use a fake client that writes into the same repositories.
"""

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from apps.hub import pushing

pytest.importorskip("huggingface_hub", reason="huggingface-hub is not installed (the extra `hub`)")

PUBLISHED = Path(__file__).resolve().parents[1] / "parity" / "published_format"
TOKEN = "hf_of_the_owner"
OWNER = f"Bearer {TOKEN}"


@dataclass
class Repository:
    """A repository: commits by oid (files by path), and branches by name."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add a commit with only these files, and return its oid."""
        said = repr((len(self.commits), sorted(files.items()))).encode()
        oid = hashlib.sha1(said).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        return oid


class Hub:
    """The stand-in server: its repositories, and the paths of all requests."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.asked.append(self.path)
                status, headers, content = hub.answer(self.path, self.headers["authorization"])
                self.send_response(status)
                for name, value in {"content-length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, who: str | None) -> tuple[int, dict[str, str], bytes]:
        asked = r"(?:/api/models)?/([^/]+/[^/]+)/(revision|tree|resolve)/([^/?]+)/?([^?]*)"
        if (found := re.match(asked, path)) is None:
            return 404, {}, b""
        name, action, revision, file = found.groups()
        repository = self.repositories.get(name)
        if repository is None or (repository.private and who != OWNER):
            return 401, {"x-error-code": "RepoNotFound"}, b""
        if repository.gated and who != OWNER and action == "resolve":
            return 403, {"x-error-code": "GatedRepo"}, b""
        oid = repository.branches.get(revision, revision)
        if oid not in repository.commits:
            return 404, {"x-error-code": "RevisionNotFound"}, b""
        files = repository.commits[oid]
        if action == "revision":
            names = [{"rfilename": each} for each in files]
            return _json({"id": "x", "sha": oid, "siblings": names, "private": repository.private})
        if action == "tree":
            return _json(
                [{"type": "file", "path": n, "size": len(c), "oid": n} for n, c in files.items()]
            )
        if file not in files:
            return 404, {"x-error-code": "EntryNotFound", "x-repo-commit": oid}, b""
        etag = f'"{hashlib.sha256(files[file]).hexdigest()}"'
        headers = {"etag": etag, "x-repo-commit": oid, "accept-ranges": "bytes"}
        return 200, headers, files[file]


def _json(content: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {"content-type": "application/json"}, json.dumps(content).encode()


@pytest.fixture
def hub() -> Iterator[Hub]:
    stand_in = Hub()
    yield stand_in
    stand_in.server.shutdown()
    stand_in.server.server_close()


@pytest.fixture
def push(hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., Any]:
    """Return a function that pushes to the stand-in and returns exit code, output and errors."""
    from huggingface_hub import HfApi

    def create_repo(repo: str, *, private: bool | None, exist_ok: bool) -> None:
        if os.environ.get("HF_TOKEN") != TOKEN:
            raise ValueError("401 Client Error\nfurther lines")
        hub.repositories.setdefault(repo, Repository(private=bool(private)))

    def upload_folder(*, repo_id: str, folder_path: Path, **options: Any) -> Any:
        assert options["delete_patterns"] == ["step_*/*"]
        branch = options["revision"] or "main"
        return SimpleNamespace(oid=hub.repositories[repo_id].commit(files_of(folder_path), branch))

    api = create_autospec(HfApi, instance=True)  # It takes only arguments of the real client.
    api.create_repo.side_effect, api.upload_folder.side_effect = create_repo, upload_folder
    api.model_info.side_effect = lambda repo, **_: hub.repositories[repo]
    monkeypatch.setattr("huggingface_hub.HfApi", lambda library_name: api)
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def run(*arguments: object) -> Any:
        capsys.readouterr()
        code = pushing.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process that uses the stand-in and its own cache."""
    own = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": TOKEN}
    own |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


@pytest.fixture
def own_run(save_run: Callable[..., Path], sudoku_data: Path, tmp_path: Path) -> Path:
    return save_run(tmp_path / "run", sudoku_data)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


FIND = """
import sys
from pathlib import Path
from training.checkpoint.trained_model import find_trained_model
from runtime.errors import CheckpointError
try:
    found = find_trained_model(Path(sys.argv[1]), print)
    print("found", found.origin, found.weights.name)
except CheckpointError as error:
    print("error:", error)
"""


@pytest.mark.slow
def test_a_pushed_model_comes_back_and_answers_the_same(
    hub: Hub,
    push: Callable[..., Any],
    environment: dict[str, str],
    own_run: Path,
    sudoku_data: Path,
    run_python: Callable[..., Any],
    tmp_path: Path,
) -> None:
    (own_run / "eval_step_12.json").write_text('{"sets": {"all": {"metrics": 7}}}')
    code, out, err = push(own_run, "me/small", "--private", "--message", "first")
    assert (code, err) == (0, "")
    repository = hub.repositories["me/small"]
    assert repository.private
    oid = repository.branches["main"]
    listed, _, pushed = out.rpartition("pushed: ")
    assert pushed == f"hf://me/small@{oid}\n"
    assert "to be pushed:\n  README.md: " in listed
    assert f"  data_path: {sudoku_data.name}\n" in listed
    files = repository.commits[oid]
    step = {f"step_12/{name}" for name in ("MANIFEST.json", "state.json", "model.safetensors")}
    assert files.keys() == {"README.md", *step}
    card = files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: recursive-reasoning\nlicense: apache-2.0\n")
    assert "checkpoint=hf://me/small" in card
    # Paths of this machine are not published.
    assert str(own_run.parent) not in card + files["step_12/state.json"].decode()

    # Another branch has its own files.
    code, _, err = push(own_run, "me/small", "--revision", "next", "--license", "mit")
    assert (code, err) == (0, "")
    second = repository.branches["next"]
    assert "license: mit" in repository.commits[second]["README.md"].decode()
    assert repository.branches["main"] == oid
    found = run_python("-c", FIND, "hf://me/small@next", env=environment)
    assert found.out == f"found hf://me/small@{second} step_12\n"

    results = []
    data = f"data_path={sudoku_data}"
    for checkpoint in (str(own_run), "hf://me/small"):
        output = tmp_path / f"{len(results)}.json"
        settings = (f"checkpoint={checkpoint}", data, "device=cpu", f"output={output}")
        finished = run_python("evaluate.py", *settings, env=environment)
        assert finished.code == 0, finished.err
        results.append(json.loads(output.read_text()))
    assert results[0]["sets"] == results[1]["sets"]
    assert results[1]["checkpoint"] == f"hf://me/small@{oid}"
    # Without a network it comes from the cache.
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    finished = run_python("-c", FIND, "hf://me/small", env=offline)
    assert finished.out == f"found hf://me/small@{oid} step_12\n"


def test_executable_files_are_never_fetched(
    hub: Hub,
    environment: dict[str, str],
    own_run: Path,
    run_python: Callable[..., Any],
    tmp_path: Path,
) -> None:
    harmful = b"raise SystemExit('executed')"
    names = ("model.py", "step_12/__init__.py", "pytorch_model.bin", "step_12.pkl", "conftest.py")
    outside = ("../../../../outside.json", "step_12/../../../../MANIFEST.json")
    hub.repositories["me/bad"] = Repository()
    hub.repositories["me/bad"].commit(
        files_of(own_run) | dict.fromkeys((*names, *outside), harmful)
    )
    finished = run_python("-c", FIND, "hf://me/bad", env=environment)
    assert finished.out.startswith("found hf://me/bad@"), finished.out + finished.err
    fetched = {path.name for path in (tmp_path / "hf").rglob("*") if not path.is_dir()}
    assert not fetched & {Path(name).name for name in (*names, "outside.json")}
    assert not list(tmp_path.glob("*.json"))
    asked = [path for path in hub.asked if "/resolve/" in path]
    assert {path.split("/step_12/")[-1] for path in asked} <= {
        *("MANIFEST.json", "state.json", "model.safetensors")
    }


@pytest.mark.slow
def test_published_checkpoints_on_the_hub_work_the_same_way(
    hub: Hub, environment: dict[str, str], run_python: Callable[..., Any], tmp_path: Path
) -> None:
    hub.repositories["authors/hrm"] = Repository()
    files = files_of(PUBLISHED / "checkpoint")
    hub.repositories["authors/hrm"].commit(files | {"README.md": b"", "model.py": b"1/0"})
    results = []
    for checkpoint in (str(PUBLISHED / "checkpoint" / "step_7"), "hf://authors/hrm"):
        output = tmp_path / f"{len(results)}.json"
        settings = (f"checkpoint={checkpoint}", f"data_path={PUBLISHED / 'data'}", "device=cpu")
        finished = run_python("evaluate.py", *settings, f"output={output}", env=environment)
        assert finished.code == 0, finished.err
        results.append(json.loads(output.read_text())["sets"])
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("hf://me/nothing", "no such repository, or it is private: log in"),
        ("hf://me/private", "no such repository, or it is private: log in"),
        ("hf://me/gated", "is gated: ask for access on its page"),
        ("hf://me/open@gone", "no such revision"),
        ("hf://me/open", "there is no checkpoint in this repository"),
        ("hf://me/../x", "accepted: hf://OWNER/NAME"),
        ("down", "the Hub cannot be reached, and the files are not in its cache"),
    ],
)
def test_an_unavailable_checkpoint_is_refused_in_one_line(
    hub: Hub,
    environment: dict[str, str],
    own_run: Path,
    run_python: Callable[..., Any],
    address: str,
    told: str,
) -> None:
    for name, options in (("private", {"private": True}), ("gated", {"gated": True}), ("open", {})):
        hub.repositories[f"me/{name}"] = Repository(**options)
        files = files_of(own_run) if name != "open" else {"README.md": b""}
        hub.repositories[f"me/{name}"].commit(files)
    stranger = environment | {"HF_TOKEN": "hf_of_a_stranger"}
    if address == "down":
        address, stranger["HF_ENDPOINT"] = "hf://me/small", "http://127.0.0.1:9"
    finished = run_python("-c", FIND, address, env=stranger, timeout=90)
    assert finished.out.startswith("error: "), finished.out + finished.err
    assert told in finished.out
    assert len(finished.out.splitlines()) == 1


@pytest.mark.slow
def test_a_refused_push_says_how_to_log_in(
    hub: Hub, push: Callable[..., Any], own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["me/public"] = Repository()
    code, _, err = push(own_run, "me/public", "--private")
    assert "it exists already and is public; --private cannot change that" in err
    assert (code, hub.repositories["me/public"].commits) == (2, {})
    for repo in ("small", "me/x@y", "me/x/y", "../x"):
        code, _, err = push(own_run, repo)
        assert code in (2, 4)
        assert "OWNER/NAME" in err
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_stranger")
    code, _, err = push(own_run, "me/small")
    told = "me/small: 401 Client Error (hf auth login, or HF_TOKEN)"
    assert (code, err) == (2, f"error: {told}\n")


@pytest.mark.slow
def test_a_dry_run_needs_no_network(
    own_run: Path, run_python: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "card"
    nobody = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = ("scripts/push_to_hub.py", own_run, "me/small", "--dry-run", folder)
    finished = run_python(*command, env=nobody)
    assert finished.code == 0, finished.err
    assert (folder / "README.md").read_text().startswith("---\n")
    shutil.rmtree(own_run)
    assert run_python(*command, env=nobody).code == 4
