"""Workflows, hooks and the container do only what the Makefile and pyproject.toml can do."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
# What make cannot do: publish.
PUBLISHING = "gh release create "
RULES = dict(re.findall(r"^([a-z][a-z-]*):(?!=) *([^#\n]*)", (ROOT / "Makefile").read_text(), re.M))


def read(path: str | Path) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_make_targets_with_few_rights(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "group" in workflow["concurrency"]
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"], name
        for step in job["steps"]:
            command = step.get("run", "")
            if command and not command.startswith(PUBLISHING):
                targets = re.fullmatch(r"(?:sudo )?make ([a-z -]+)", command)
                assert targets, command
                assert set(targets[1].split()) <= set(RULES), command
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/x@v1")), step
            if "checkout" in step.get("uses", ""):
                assert step["with"] == {"persist-credentials": False}


def test_only_the_steps_that_publish_may_write() -> None:
    jobs = [job for path in WORKFLOWS for job in read(path)["jobs"].values()]
    writers = [job for job in jobs if "write" in job.get("permissions", {}).values()]
    assert len(writers) == 2
    for job in writers:
        assert job["needs"] == "build"
        assert not any("make" in step.get("run", "") for step in job["steps"])
        assert not any("checkout" in step.get("uses", "") for step in job["steps"])


def test_an_old_python_is_refused_before_an_environment_is_made(tmp_path: Path) -> None:
    """A script in place of Python pretends to be old, and makes a folder for `-m venv`."""
    program = "import sys; sys.version_info = (3, 10); exec(sys.argv[1])"
    fake = tmp_path / "python3"
    fake.write_text(
        f"#!/bin/sh\n[ $1 = -c ] || mkdir .venv\nexec '{sys.executable}' -c '{program}' \"$2\"\n"
    )
    fake.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "setup", "PYTHON=./python3"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 2
    told = "./python3 is older than Python 3.11: make setup PYTHON=python3.12\n"
    assert finished.stderr.startswith(told)
    assert not (tmp_path / ".venv").exists()


def test_the_hooks_of_a_commit_are_the_parts_of_check() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"] for hook in repository["hooks"]]
    assert entries == [f"make --silent {part}" for part in RULES["check"].split()]


def test_the_container_is_built_in_an_order_that_keeps_its_dependencies() -> None:
    text = re.sub(r"\\\n", "", (ROOT / "Dockerfile").read_text())
    steps = [tuple(line.split(maxsplit=1)) for line in re.findall(r"^[A-Z]+ .*", text, re.M)]
    order = [rest.split() for step, rest in steps if step == "COPY"]
    assert [files[1:-1] for files in order] == [["pyproject.toml", "constraints.txt"], ["."]]
    install, code = text.index("pip install -c"), text.index(". .\n")
    assert text.index("pyproject.toml constraints.txt ./") < install < code
    (user,) = (rest for step, rest in steps if step == "USER")
    assert user != "root"
    extras = re.search(r"^ARG EXTRAS=(.*)", text, re.M)
    assert extras
    assert set(extras[1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_the_container_can_have_extras_of_extras() -> None:
    text = re.sub(r"\\\n", "", (ROOT / "Dockerfile").read_text())
    code = re.search(r'python -c "([^"]*)"', text)
    assert code
    own = {"cwd": ROOT, "env": os.environ | {"EXTRAS": "docs,dev"}, "text": True}
    listed = subprocess.check_output([sys.executable, "-c", code[1]], **own).splitlines()
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {one for packages in extras.values() for one in packages}
    named = {one for one in wanted if one.startswith(PROJECT["project"]["name"])}
    assert len(named) == 2
    assert wanted - named <= set(listed)
    assert not named & set(listed)


def test_the_extra_for_mlflow_has_what_its_database_imports() -> None:
    packages = PROJECT["project"]["optional-dependencies"]["mlflow"]
    assert {"alembic", "sqlalchemy"} <= {re.split(r"\W", one)[0] for one in packages}


def test_the_container_has_all_that_is_installed() -> None:
    left_out = (ROOT / ".dockerignore").read_text().split()
    setup = PROJECT["tool"]["setuptools"]
    needed = {name.split(".")[0] for name in setup["packages"]}
    needed |= {f"{name}.py" for name in setup["py-modules"]}
    needed |= {"README.md", "LICENSE", "pyproject.toml", "constraints.txt", "zoo"}
    assert not needed & {pattern.strip("/") for pattern in left_out}
    tops = {pattern.strip("/") for pattern in left_out if pattern.startswith("/")}
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()}
    assert {"data", "checkpoints", "outputs", "multirun", "wandb", "gpu", "build"} <= tops & ignored
    assert {".*", "**/__pycache__", "**/node_modules"} <= set(left_out)


def test_the_citation_is_of_this_version() -> None:
    citation = read("CITATION.cff")
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]
