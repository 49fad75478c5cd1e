"""Checkpoints on the Hugging Face Hub, against a stand-in of its API on this machine.

The stand-in answers what the Hub's client asks when it creates a repository, uploads by git and by
LFS, lists a revision and downloads, with the Hub's headers and error codes.
"""

import base64
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
from typing import Any

import pytest

pytest.importorskip("huggingface_hub", reason="huggingface-hub is not installed (the extra `hub`)")

PUBLISHED = Path(__file__).resolve().parents[1] / "parity" / "published_format"
TOKEN = "hf_of_the_owner"


@dataclass
class Repository:
    """Commits of a repository by oid: files by path; and branches by name."""

    name: str
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add a commit with these files alone; return its oid."""
        said = repr((len(self.commits), sorted(files.items()))).encode()
        oid = hashlib.sha1(said).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        return oid

    def resolve(self, revision: str) -> str | None:
        """Return the oid of a branch or a commit."""
        oid = self.branches.get(revision, revision)
        return oid if oid in self.commits else None


class Hub:
    """The stand-in: repositories, uploaded LFS objects, and the paths that were asked for."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                hub.respond(self, self.rfile.read(length))

            do_GET = do_HEAD = do_POST = do_PUT = answer

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def respond(self, request: Any, body: bytes) -> None:
        path = request.path.split("?")[0]
        self.asked.append(f"{request.command} {path}")
        status, headers, content = self._answer(request, path, body)
        request.send_response(status)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)

    def _answer(self, request: Any, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if path == "/api/repos/create":
            return self._create(request, json.loads(body))
        if path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        if found := re.fullmatch(r"/lfs/([0-9a-f]{64})", path):
            assert hashlib.sha256(body).hexdigest() == found[1]
            self.objects[found[1]] = body
            return 200, {}, b""
        found = re.fullmatch(r"(?:/api/models)?/([^/]+/[^/.]+)(?:\.git)?/(\w+)/(.*)", path)
        if found is None:
            return 404, {}, b""
        name, action, rest = found.groups()
        repository = self.repositories.get(name)
        is_owner = request.headers.get("authorization") == f"Bearer {TOKEN}"
        if repository is None or (repository.private and not is_owner):
            return 401, {"x-error-code": "RepoNotFound"}, b""
        if repository.gated and not is_owner and action == "resolve":
            return 403, {"x-error-code": "GatedRepo"}, b""
        if action in ("preupload", "info", "commit", "branch") and not is_owner:
            return 403, {}, b""
        handle: Any = getattr(self, f"_{action}", None)
        return handle(repository, rest, body) if handle else (404, {}, b"")

    def _create(self, request: Any, asked: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {}, b'{"error": "Invalid credentials"}'
        name = f"{asked['organization']}/{asked['name']}"
        url = f"{self.endpoint}/{name}"
        if name in self.repositories:
            there = {"error": "You already created this model repo", "url": url}
            return 409, {}, json.dumps(there).encode()
        private = asked.get("private") or asked.get("visibility") == "private"
        self.repositories[name] = Repository(name, private=bool(private))
        self.repositories[name].commit({".gitattributes": b""})
        return _json({"url": url})

    def _branch(self, repository: Repository, name: str, body: bytes) -> Any:
        repository.branches.setdefault(name, repository.branches["main"])
        return _json({})

    def _preupload(self, repository: Repository, revision: str, body: bytes) -> Any:
        files = [
            {
                "path": each["path"],
                "uploadMode": "regular" if re.search(r"\.(json|md)$", each["path"]) else "lfs",
                "shouldIgnore": False,
            }
            for each in json.loads(body)["files"]
        ]
        return _json({"files": files})

    def _info(self, repository: Repository, rest: str, body: bytes) -> Any:
        assert rest == "lfs/objects/batch"
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.endpoint}/lfs/{each['oid']}"}}}
            for each in json.loads(body)["objects"]
        ]
        return _json({"transfer": "basic", "objects": objects})

    def _commit(self, repository: Repository, revision: str, body: bytes) -> Any:
        files = dict(repository.commits[repository.branches[revision]])
        for line in map(json.loads, body.decode().splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        oid = repository.commit(files, revision)
        url = f"{self.endpoint}/{repository.name}/commit/{oid}"
        return _json({"success": True, "commitOid": oid, "commitUrl": url})

    def _revision(self, repository: Repository, revision: str, body: bytes) -> Any:
        oid = repository.resolve(revision)
        if oid is None:
            return 404, {"x-error-code": "RevisionNotFound"}, b""
        names = [{"rfilename": name} for name in repository.commits[oid]]
        return _json({"id": "x", "sha": oid, "siblings": names, "private": repository.private})

    def _tree(self, repository: Repository, rest: str, body: bytes) -> Any:
        oid = repository.resolve(rest.split("/")[0])
        if oid is None:
            return 404, {"x-error-code": "RevisionNotFound"}, b""
        entries = []
        for name, content in repository.commits[oid].items():
            lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
            entry = {"type": "file", "path": name, "size": len(content)}
            entry["oid"] = hashlib.sha1(content).hexdigest()
            entries.append(entry | ({"lfs": lfs | {"pointerSize": 100}} if "safe" in name else {}))
        return _json(entries)

    def _resolve(self, repository: Repository, rest: str, body: bytes) -> Any:
        revision, _, name = rest.partition("/")
        oid = repository.resolve(revision)
        if oid is None:
            return 404, {"x-error-code": "RevisionNotFound"}, b""
        content = repository.commits[oid].get(name)
        if content is None:
            return 404, {"x-error-code": "EntryNotFound", "x-repo-commit": oid}, b""
        etag = hashlib.sha256(content).hexdigest()
        headers = {"etag": f'"{etag}"', "x-repo-commit": oid, "accept-ranges": "bytes"}
        headers |= {"x-linked-etag": f'"{etag}"', "x-linked-size": str(len(content))}
        return 200, headers, content


def _json(content: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {"content-type": "application/json"}, json.dumps(content).encode()


@pytest.fixture
def hub() -> Iterator[Hub]:
    stand_in = Hub()
    yield stand_in
    stand_in.server.shutdown()
    stand_in.server.server_close()


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """Of a process that asks the stand-in, which speaks no Xet, and has a cache of its own."""
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
    environment: dict[str, str],
    own_run: Path,
    sudoku_data: Path,
    run_python: Callable[..., Any],
    tmp_path: Path,
) -> None:
    (own_run / "eval_step_12.json").write_text('{"sets": {"all": {"metrics": 7}}}')
    push = ("scripts/push_to_hub.py", own_run, "me/small", "--private", "--message", "first")
    finished = run_python(*push, env=environment)
    assert finished.code == 0, finished.err
    repository = hub.repositories["me/small"]
    assert repository.private
    oid = repository.branches["main"]
    listed, _, pushed = finished.out.rpartition("pushed: ")
    assert pushed == f"hf://me/small@{oid}\n"
    assert "to be pushed:\n  README.md: " in listed
    assert f"  data_path: {sudoku_data.name}\n" in listed
    assert finished.err == ""  # No bars where there is no terminal.
    names = set(repository.commits[oid])
    step = {f"step_12/{name}" for name in ("MANIFEST.json", "state.json", "model.safetensors")}
    assert names == {".gitattributes", "README.md", "thinking.gif", *step}
    card = repository.commits[oid]["README.md"].decode()
    assert card.startswith("---\nlibrary_name: recursive-reasoning\nlicense: apache-2.0\n")
    assert "checkpoint=hf://me/small" in card
    # Where things lie on this machine is nobody's business.
    assert str(own_run.parent) not in card
    assert str(own_run.parent) not in repository.commits[oid]["step_12/state.json"].decode()

    results = []
    data = f"data_path={sudoku_data}"
    for checkpoint in (str(own_run), "hf://me/small", f"hf://me/small@{oid}"):
        output = tmp_path / f"{len(results)}.json"
        settings = (f"checkpoint={checkpoint}", data, "device=cpu", f"output={output}")
        finished = run_python("evaluate.py", *settings, env=environment)
        assert finished.code == 0, finished.err
        results.append(json.loads(output.read_text()))
    assert results[0]["sets"] == results[1]["sets"] == results[2]["sets"]
    assert results[1]["checkpoint"] == f"hf://me/small@{oid}"
    # Without a network from the cache.
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    finished = run_python("-c", FIND, "hf://me/small", env=offline)
    assert finished.out == f"found hf://me/small@{oid} step_12\n"


@pytest.mark.slow
def test_a_branch_and_a_second_push(
    hub: Hub, environment: dict[str, str], own_run: Path, run_python: Callable[..., Any]
) -> None:
    command = ("scripts/push_to_hub.py", own_run, "me/small")
    assert run_python(*command, env=environment).code == 0
    finished = run_python(*command, "--revision", "next", "--license", "mit", env=environment)
    assert finished.code == 0, finished.err
    repository = hub.repositories["me/small"]
    first, second = repository.branches["main"], repository.branches["next"]
    assert "license: mit" in repository.commits[second]["README.md"].decode()
    assert "license: apache-2.0" in repository.commits[first]["README.md"].decode()
    found = run_python("-c", FIND, "hf://me/small@next", env=environment)
    assert found.out == f"found hf://me/small@{second} step_12\n"


def test_a_changed_byte_is_found_and_named(
    hub: Hub, environment: dict[str, str], own_run: Path, run_python: Callable[..., Any]
) -> None:
    files = files_of(own_run)
    name = "step_12/model.safetensors"
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    hub.repositories["me/changed"] = Repository("me/changed")
    hub.repositories["me/changed"].commit(files)
    out = run_python("-c", FIND, "hf://me/changed", env=environment).out
    assert "error:" in out
    assert "model.safetensors" in out


def test_what_could_be_executed_is_never_fetched(
    hub: Hub,
    environment: dict[str, str],
    own_run: Path,
    run_python: Callable[..., Any],
    tmp_path: Path,
) -> None:
    harmful = b"raise SystemExit('executed')"
    names = ("model.py", "step_12/__init__.py", "pytorch_model.bin", "step_12.pkl", "conftest.py")
    outside = ("../../../../outside.json", "step_12/../../../../MANIFEST.json")
    hub.repositories["me/bad"] = Repository("me/bad")
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
    hub.repositories["authors/hrm"] = Repository("authors/hrm")
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
        ("hf://me", "accepted: hf://OWNER/NAME or hf://OWNER/NAME@REVISION"),
        ("hf://me/../x", "accepted: hf://OWNER/NAME"),
        ("hf://me/x@a/../b", "accepted: hf://OWNER/NAME"),
    ],
)
def test_what_is_not_to_be_had_is_said_in_a_line(
    hub: Hub,
    environment: dict[str, str],
    own_run: Path,
    run_python: Callable[..., Any],
    address: str,
    told: str,
) -> None:
    for name, options in (("private", {"private": True}), ("gated", {"gated": True}), ("open", {})):
        hub.repositories[f"me/{name}"] = Repository(f"me/{name}", **options)
        files = files_of(own_run) if name != "open" else {"README.md": b""}
        hub.repositories[f"me/{name}"].commit(files)
    stranger = environment | {"HF_TOKEN": "hf_of_a_stranger"}
    finished = run_python("-c", FIND, address, env=stranger)
    assert finished.out.startswith("error: "), finished.out + finished.err
    assert told in finished.out
    assert len(finished.out.splitlines()) == 1


def test_a_hub_that_is_down_is_said_to_be(
    environment: dict[str, str], run_python: Callable[..., Any]
) -> None:
    nobody = environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    finished = run_python("-c", FIND, "hf://me/small", env=nobody, timeout=90)
    assert "the Hub cannot be reached, and the files are not in its cache" in finished.out


@pytest.mark.slow
def test_who_may_not_push_is_told_how(
    hub: Hub, environment: dict[str, str], own_run: Path, run_python: Callable[..., Any]
) -> None:
    stranger = environment | {"HF_TOKEN": "hf_of_a_stranger"}
    finished = run_python("scripts/push_to_hub.py", own_run, "me/small", env=stranger)
    assert (finished.code, len(finished.err_lines)) == (2, 1)
    assert "HF_TOKEN" in finished.err
    hub.repositories["me/public"] = Repository("me/public")
    hub.repositories["me/public"].commit({".gitattributes": b""})
    push = ("scripts/push_to_hub.py", own_run, "me/public", "--private")
    finished = run_python(*push, env=environment)
    assert "it is there already, and public: --private does not change that" in finished.err
    assert list(hub.repositories["me/public"].commits.values()) == [{".gitattributes": b""}]
    nobody = environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    finished = run_python("scripts/push_to_hub.py", own_run, "me/small", env=nobody)
    assert (finished.code, len(finished.err_lines)) == (2, 1)
    for repo in ("small", "me/x@y", "me/x/y", "../x"):
        finished = run_python("scripts/push_to_hub.py", own_run, repo, env=environment)
        assert finished.code in (2, 4)
        assert "OWNER/NAME" in finished.err


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
