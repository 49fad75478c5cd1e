"""examples/quickstart.ipynb runs, and is stored with its outputs."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def code_of(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebook_is_stored_with_its_outputs() -> None:
    assert NOTEBOOK.stat().st_size <= 500_000
    cells = code_of(nbformat.read(NOTEBOOK, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output for cell in cells for output in cell.outputs]
    assert all(output.output_type != "error" for output in shown)
    pictures = [output.data.get("text/html", "") for output in shown if "data" in output]
    assert sum("data:image/gif;base64," in picture for picture in pictures) >= 3
    assert str(ROOT) not in NOTEBOOK.read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    found = {}
    for cell in code_of(notebook):
        for output in cell.outputs:
            found[cell.source] = output.get("data", {}).get("text/plain", "")
    exact = [float(text) for source, text in found.items() if source.endswith('["exact_accuracy"]')]
    assert len(exact) == 2
    assert min(exact) >= 0.9
    assert "'confidence_accuracy'" in list(found.values())[-1]
