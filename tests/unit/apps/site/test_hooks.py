"""The hooks of `make docs`: pages for files outside docs/, and links to them."""

import json
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
    assert "cff-version" in text["repository/CITATION.cff.md"]
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
