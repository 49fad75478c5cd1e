"""The hooks of `make docs`: pages for files outside docs/, and links to them."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install '.[docs]')")

import onnx
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from apps.site import hooks


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """The configuration of a site without models and pages; its files are not written."""
    found: Any = MkDocsConfig()
    folders = {"docs_dir": str(hooks.ROOT / "docs"), "site_dir": str(tmp_path)}
    values = {"site_name": "x", "plugins": [], "extra": {"models": str(tmp_path)}, **folders}
    found.load_dict({**values, "nav": [{"API": ["api/models.act.md"]}]})
    found.validate()
    found.plugins._current_plugin = "hooks"  # As mkdocs does when it calls a hook.
    return found


def led(text: str, uri: str, *files: str, repository: str = "") -> str:
    page, known = SimpleNamespace(file=SimpleNamespace(src_uri=uri)), Files([])
    for name in files:
        known.append(File(name, "docs", "site", use_directory_urls=True))
    return hooks.on_page_markdown(text, page, SimpleNamespace(repo_url=repository), known)


@pytest.mark.parametrize(
    ("uri", "link", "expected"),
    [
        ("index.md", "docs/setup.md#a", "setup.md#a"),
        ("index.md", "docs/pictures/thinking.gif", "pictures/thinking.gif"),
        ("index.md", "CITATION.cff", "repository/CITATION.cff.md"),
        ("index.md", "examples/quickstart.ipynb", "repository/examples/quickstart.ipynb"),
        ("index.md", "#train", "#train"),
        ("index.md", "https://arxiv.org/abs/1", "https://arxiv.org/abs/1"),
        ("setup.md", "../README.md", "index.md"),
        ("setup.md", "log/heads.md", "log/heads.md"),
        ("log/heads.md", "../setup.md", "../setup.md"),
        ("log/heads.md", "../../config/README.md", "../repository/config/README.md"),
        ("repository/config/README.md", "../docs/search.md", "../../search.md"),
        ("setup.md", "../examples/browser/README.md", "try/index.md"),
    ],
)
def test_links_lead_to_pages_of_the_site(uri: str, link: str, expected: str) -> None:
    assert led(f"a [b]({link}) c", uri) == f"a [b]({expected}) c"


def test_a_linked_picture_keeps_both_addresses() -> None:
    text = "[![a](docs/pictures/x.gif)](examples/browser/README.md)"
    assert led(text, "index.md", "try/index.html") == "[![a](pictures/x.gif)](try/index.html)"


def test_with_a_public_repository_links_lead_there() -> None:
    led_there = led("[x](../config/a.yaml)", "setup.md", repository="https://host/us/")
    assert led_there == "[x](https://host/us/blob/main/config/a.yaml)"


def test_pages_are_added_for_the_readme_modules_and_linked_files(config: Any) -> None:
    page = File("setup.md", str(hooks.ROOT / "docs"), config.site_dir, use_directory_urls=True)
    files = hooks.on_files(Files([page]), config)
    text = {file.src_uri: file.content_string for file in files.documentation_pages()}
    assert text["index.md"] == (hooks.ROOT / "README.md").read_text()
    assert text["api/models.act.md"].endswith("::: models.act\n")
    notebook = files.get_file_from_path("repository/examples/quickstart.ipynb")
    assert notebook is not None
    assert not notebook.is_documentation_page()
    assert notebook.content_string == (hooks.ROOT / "examples/quickstart.ipynb").read_text()
    for name, language in {"CITATION.cff": "yaml", "LICENSE": "text"}.items():
        page = text[f"repository/{name}.md"]
        assert page.startswith("---\nsearch:\n  exclude: true\n---\n")
        assert f"\n~~~~ {language}\n{(hooks.ROOT / name).read_text()}\n~~~~" in page
    # setup.md is in docs/, so it is no page in repository/.
    expected = {"setup.md", "index.md", "api/models.act.md", "try/index.md"}
    assert {uri for uri in text if not uri.startswith("repository/")} == expected
    assert "This page was left out: " in text["try/index.md"]


def test_the_models_of_the_browser_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "PACKAGE", tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="onnxruntime-web is missing; install npm"):
        hooks.try_it(tmp_path)
    monkeypatch.setattr(hooks, "PACKAGE", tmp_path)
    for name in hooks._RUNTIME:
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match="there is no model; `make docs MODELS="):
        hooks.try_it(tmp_path)
    for name, cells in {"small": 16, "a": 81, "b": 81}.items():
        graph = onnx.helper.make_graph([], name, [], [])
        model = onnx.helper.make_model(graph)
        facts = {"seq_len": f"{cells}", "guess": "stuck", "guess_temperature": "1.5"}
        onnx.helper.set_model_props(model, facts)
        onnx.save(model, tmp_path / f"{name}.onnx")
    files = hooks.try_it(tmp_path)
    models = json.loads(files["try/models.json"])
    assert [one["file"] for one in models] == ["b.onnx", "a.onnx", "small.onnx"]
    facts = {"seq_len": 16, "guess": "stuck", "guess_temperature": 1.5}
    assert models[2] == {"name": "small", "file": "small.onnx", **facts}
    assert files["try/a.onnx"] == (tmp_path / "a.onnx").read_bytes()
    assert files["try/index.html"] == (hooks.BROWSER / "index.html").read_bytes()


def test_the_folder_of_models_holds_exactly_those_named(tmp_path: Path) -> None:
    """A script in place of Python writes the name of each model that it is told to export."""
    program = (
        '#!/bin/sh\n[ "$2" != scripts.export ] || { echo "$3" >>exported && echo "$3" >"$4"; }\n'
    )
    for name in ("python", "npm"):
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    shutil.copy(hooks.ROOT / "Makefile", tmp_path)
    manifest = tmp_path / "zoo" / "a" / "MANIFEST.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def made(models: str) -> tuple[dict[str, str], list[str]]:
        """Return the models in the folder, and those exported now."""
        (tmp_path / "exported").write_text("")
        command = ["make", "--old-file=.venv/.ready", "docs", "PY=./python", f"MODELS={models}"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        there = {path.name: path.read_text().strip() for path in tmp_path.glob("build/models/*")}
        return there, (tmp_path / "exported").read_text().split()

    both = {"a.onnx": "zoo:a", "b.onnx": "checkpoints/b"}
    assert made("zoo:a checkpoints/b") == (both, ["zoo:a", "checkpoints/b"])
    assert made("zoo:a checkpoints/b") == (both, ["checkpoints/b"])
    assert made("checkpoints/a") == ({"a.onnx": "checkpoints/a"}, ["checkpoints/a"])
    assert made("zoo:a") == ({"a.onnx": "zoo:a"}, [])
    changed = (tmp_path / "build" / "zoo" / "a.onnx").stat().st_mtime + 1
    os.utime(manifest, (changed, changed))
    assert made("zoo:a") == ({"a.onnx": "zoo:a"}, ["zoo:a"])
