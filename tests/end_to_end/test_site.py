"""`make docs` builds a complete site that needs no other server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Attributes and rules that load a file, unlike the href of a link.
LOADS = [
    r"<(?:script|img|iframe|source|audio|video|input|embed)\b[^>]*\bsrc=[\"']?([^\"' >]+)",
    r"<link\b(?![^>]*\brel=[\"']?canonical)[^>]*\bhref=[\"']?([^\"' >]+)",
    r"url\(\s*[\"']?([^\"')]+)",
    r"@import\s+[\"']([^\"']+)",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site without models. Strict mode fails on any dead link."""
    pytest.importorskip(
        "material", reason="mkdocs-material is not installed (pip install '.[docs]')"
    )
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-f", "apps/site/mkdocs.yml"]
    nothing = {"MODELS_FOLDER": str(folder / "none"), "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        [*command, "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | nothing,
        text=True,
        capture_output=True,
    )
    assert built.returncode == 0, built.stderr
    assert 'the page "Try it" is left out: ' in built.stderr
    return folder


def test_every_page_is_there_and_can_be_found(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.parent.name for path in site.glob("*/index.html")} >= {*pages, "try"}
    assert "This page was left out: " in (site / "try" / "index.html").read_text()
    assert "Ready in a minute" in (site / "index.html").read_text()
    assert "ACTLossHead" in (site / "api" / "models.act" / "index.html").read_text()
    assert "pretrain.py" in (site / "search" / "search_index.json").read_text()


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    loaded = {
        (str(path.relative_to(site)), address)
        for path in files
        for pattern in LOADS
        for address in re.findall(pattern, path.read_text())
    }
    assert len(loaded) > 100
    assert [one for one in loaded if re.match(r"(https?:)?//", one[1])] == []
    # Pictures that pages name are there.
    for name, address in loaded:
        if address.endswith((".png", ".gif")) and name != "404.html":
            assert ((site / name).parent / address).exists(), (name, address)
