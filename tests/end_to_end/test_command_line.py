"""Hydra's command line in a real shell."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hydra
import pytest

ROOT = Path(__file__).resolve().parents[2]

COMPLETE = """
cd "$1"
eval "$(python pretrain.py --shell-completion install=bash)"
complete_line() {
    COMP_LINE=$1 COMP_POINT=${#1} words=($1) COMP_CWORD=$((${#words[@]} - 1))
    "$(complete -p python | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
    echo "${COMPREPLY[@]}"
}
complete_line 'python pretrain.py -m arch=t'
complete_line 'python evaluate.py arch_overrides.halt'
python pretrain.py --help | head -n 1 | cut -c 1-14
python pretrain.py --info | head -n 1
echo "${PIPESTATUS[@]}"
"""


@pytest.mark.slow
def test_bash_completes_words_and_cuts_answers_short(
    start_command: Callable[..., Any], clean_environment: Mapping[str, str]
) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean_environment['PATH']}"
    process = start_command("bash", "-c", COMPLETE, "bash", ROOT, env={"PATH": path})
    out, err = process.communicate(timeout=120)
    assert err == ""
    assert out.splitlines() == [
        "arch=transformer arch=trm arch=trm_singlez",
        "arch_overrides.halt_max_steps=",
        "Train a model:",
        f"Hydra {hydra.__version__}",
        "0 0",
    ]
