"""`scripts/build_dataset.py` writes the same bytes as the builder's own command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from dataset import build_sudoku_dataset
from runtime.errors import ConfigError
from scripts.build_dataset import main

ROOT = Path(__file__).resolve().parents[3]
FLAGS = "--source generate --size 4 --subsample-size 8 --test-size 4 --num-aug 2 --min-clues 6"


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def test_the_bytes_are_the_same_as_the_builders(tmp_path: Path) -> None:
    named, own = tmp_path / "named", tmp_path / "own"
    main(["data=sudoku_generated", f"data.path={named}", f"data.builder.flags='{FLAGS}'"])
    assert build_sudoku_dataset.main([*FLAGS.split(), f"--output-dir={own}"]) == 0
    assert files(named) == files(own) != {}


def test_wrong_flags_end_with_the_builder_s_exit_code(tmp_path: Path) -> None:
    flags = "data.builder.flags='--sise 4'"
    with pytest.raises(SystemExit) as ended:
        main(["data=sudoku_generated", f"data.path={tmp_path}/x", flags])
    assert ended.value.code == 2


def test_flags_with_an_open_quote_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.builder\.flags: No closing quotation"):
        main(["data=sudoku_generated", 'data.builder.flags="it\'s"'])


@pytest.mark.parametrize(
    ("experiment", "data"), [("dec_sudoku_demo", "sudoku_demo"), ("trm_arc_demo", "arc_demo")]
)
def test_the_demos_find_their_settings(experiment: str, data: str) -> None:
    script = f"python={sys.executable} experiment={experiment}; . scripts/demo_common.sh; "
    script += 'echo "$data"; echo "$run"; setting data.name'
    shown = subprocess.run(["sh", "-euc", script], cwd=ROOT, capture_output=True, text=True)
    folder = data.replace("_", "-")
    assert (shown.stdout.split(), shown.stderr) == (
        [f"data/{folder}", f"checkpoints/{folder}", data],
        "",
    )


def test_a_set_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"set data=NAME"):
        main([])
