"""The core needs no app: its tests pass in a copy of the project without the apps."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("config", "dataset", "docs", "evaluation", "models", "runtime", "scripts", "tests")
# Runs when Python starts, because another installed checkout has apps too.
HIDES_APPS = """
import sys
from importlib.machinery import PathFinder
from pathlib import Path

sys.path[:] = [folder for folder in sys.path if not Path(folder, "apps").is_dir()]
sys.meta_path[:] = [f for f in sys.meta_path if f is PathFinder or not f.find_spec("apps", None)]
"""


@pytest.mark.slow
def test_the_cores_tests_pass_without_apps(tmp_path: Path) -> None:
    for name in (*FOLDERS, "examples", "training"):
        left_out = shutil.ignore_patterns("apps", "node_modules")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    for path in [*ROOT.glob("*.py"), ROOT / "pyproject.toml", ROOT / "Makefile"]:
        shutil.copy(path, tmp_path)
    (tmp_path / "sitecustomize.py").write_text(HIDES_APPS)
    own = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit"],
        cwd=tmp_path,
        env=own | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
