"""Hooks of mkdocs: the pages that are not in docs/, and the links to them.

README.md becomes the home page, each module under "API" a page, and any other file that a page
links to a page in repository/; a notebook stays a file. The page "Try it" is examples/browser with
models.
"""

import json
import logging
import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

import onnx
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation

ROOT = Path(__file__).resolve().parents[2]
BROWSER = ROOT / "examples" / "browser"
PACKAGE = BROWSER / "node_modules" / "onnxruntime-web" / "dist"
_RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
_LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[#)])")
# Paths of the repository by page, and of pages by file, unless the rules of the functions hold.
_PATHS = {"index.md": "README.md", "try/index.md": "examples/browser/README.md"}
_URIS = {"README.md": "index.md", "examples/browser/README.md": "try/index.html"}


def on_files(files: Files, config: Any) -> Files:
    """Add all pages that are not in docs/."""
    added: dict[str, str | bytes] = {"index.md": (ROOT / "README.md").read_text()}
    for name in re.findall(r"(?<=api/)[\w.]+(?=\.md)", str(config.nav)):
        added[f"api/{name}.md"] = f"---\ntitle: {name}\n---\n::: {name}\n"
    added["site.css"] = Path(__file__).with_name("site.css").read_text()
    try:
        added |= try_it(ROOT / config.extra["models"])
    except FileNotFoundError as missing:
        added["try/index.md"] = f"# Try it\n\nThis page was left out: {missing}.\n"
        logging.getLogger("mkdocs.hooks").info(f'the page "Try it" is left out: {missing}')
    texts = {page.src_uri: page.content_string for page in files.documentation_pages()}
    texts |= {uri: text for uri, text in added.items() if isinstance(text, str)}
    queue = list(texts)
    for uri in queue:  # It grows: linked files have links, too.
        for path in (path_from(uri, link) for link in _LINK.findall(texts[uri])):
            linked, file = uri_of(path, config.repo_url), ROOT / path
            if linked.startswith("repository/") and linked not in texts and file.is_file():
                texts[linked] = added[linked] = page_of(path)
                queue += [linked] * path.endswith(".md")
    for uri, content in added.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Put the page "Try it" after the home page."""
    nav.items.insert(1, Link("Try it", "try/"))
    return nav


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links that leave docs/ to their pages."""
    uri = page.file.src_uri

    def lead(link: re.Match[str]) -> str:
        linked = uri_of(path_from(uri, link[0]), config.repo_url)
        if linked.startswith("try/") and not files.get_file_from_path(linked):
            linked = "try/index.md"
        return linked if ":" in linked else relpath(linked, dirname(uri) or ".")

    return _LINK.sub(lead, markdown)


def path_from(uri: str, link: str) -> str:
    """Return the path in the repository of a link on a page of the site."""
    path = _PATHS.get(uri) or (uri.removeprefix("repository/") if "y/" in uri else f"docs/{uri}")
    return normpath(f"{dirname(path)}/{link}").lstrip("/")


def uri_of(path: str, repository: str | None) -> str:
    """Return the name of a file of the repository on the site, or its public address."""
    if path in _URIS or path.startswith("docs/"):
        return _URIS.get(path, path.removeprefix("docs/"))
    if repository:
        return f"{repository.rstrip('/')}/blob/main/{path}"
    return f"repository/{path if path.endswith('.ipynb') else path.removesuffix('.md') + '.md'}"


def page_of(path: str) -> str:
    """Return a file of the repository as it is on the site: other text than Markdown and notebooks
    becomes a block of code, which the search does not find.
    """
    text = (ROOT / path).read_text()
    if path.endswith((".md", ".ipynb")):
        return text
    language = "yaml" if path.endswith((".yaml", ".yml", ".cff")) else "text"
    front = "---\nsearch:\n  exclude: true\n---\n"
    return f"{front}# {path}\n\n~~~~ {language}\n{text}\n~~~~\n"


def try_it(models: Path) -> dict[str, bytes]:
    """Return the files of the page "Try it" by name, for all models of Sudokus in a folder.

    Raises:
        FileNotFoundError: something is missing; says what, and what to do.
    """
    if not PACKAGE.is_dir():
        raise FileNotFoundError("onnxruntime-web is missing; install npm, then `make docs`")
    facts = []
    for path in models.glob("*.onnx"):
        read = {one.key: one.value for one in onnx.load(path).metadata_props}
        if read.get("puzzles", "sudoku") != "sudoku":
            logging.getLogger("mkdocs.hooks").info(f'the page "Try it" leaves out {path.stem}')
            continue
        numbers = {n: float(v) for n, v in read.items() if re.fullmatch(r"\d+(\.\d+)?", v)}
        facts.append({"name": path.stem, "file": path.name, **read, **numbers})
    if not facts:
        raise FileNotFoundError(
            "there is no model; `make docs MODELS=checkpoints/NAME` exports one"
        )
    facts.sort(key=lambda each: (each["seq_len"], each["name"]), reverse=True)
    pages = [path for path in BROWSER.iterdir() if path.suffix in {".html", ".js", ".css"}]
    shown = (models / one["file"] for one in facts)
    named = [*pages, *shown, *(PACKAGE / name for name in _RUNTIME)]
    return {f"try/{one.name}": one.read_bytes() for one in named} | {
        "try/models.json": json.dumps(facts).encode()
    }
