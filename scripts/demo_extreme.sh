#!/bin/sh
# Make hard Sudokus, learn to strike candidates from 1,000 of them, and search for the answers of 200 others: with the
# model, and with the same model untrained.
# Usage: sh scripts/demo_extreme.sh PYTHON
set -eu
python="$1"
experiment=lattice_sudoku_hard
. scripts/demo_common.sh

echo "1. Building $data"
build "data.path=$data"
"$python" - "$data" <<'PYTHON'
import sys
from pathlib import Path
import numpy as np
ratings = np.load(Path(sys.argv[1]) / "test" / "all__ratings.npy")
shares = np.percentile(ratings, (0, 25, 50, 75, 100)).round().astype(int)
print("digits that our solver takes back for a test puzzle: from", shares[0], "to", shares[-1])
print("a quarter of the puzzles up to", shares[1], "- half up to", shares[2], "- three quarters up to", shares[3])
PYTHON
echo
echo "2. Training (a run that was stopped goes on where it stood)"
"$python" pretrain.py "experiment=$experiment"
echo
echo "3. What a chain deduces from a puzzle never seen"
"$python" scripts/solve.py "checkpoint=$run" "data_path=$data" count=1
echo
echo "4. Searching for the answers of all 200"
"$python" evaluate.py "checkpoint=$run" "data_path=$data" search.chains=8 search.rounds=100 search.control=20 save_records=true
echo
echo "5. A page about all of this, to open in a browser"
"$python" scripts/report.py "$run"
