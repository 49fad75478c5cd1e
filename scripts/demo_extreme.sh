#!/bin/sh
# Make hard Sudokus, train on 1,000 of them to strike candidates, and search for the answers of 200 others: with the
# trained model, and as a control with an untrained one.
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
print("backtracks of our solver on a test puzzle: from", shares[0], "to", shares[-1])
print("quartiles:", shares[1], shares[2], shares[3])
PYTHON
echo
echo "2. Training (a stopped run resumes)"
"$python" pretrain.py "experiment=$experiment"
echo
echo "3. Deductions of one chain from an unseen puzzle"
"$python" scripts/solve.py "checkpoint=$run" "data_path=$data" count=1
echo
echo "4. Searching for the answers of all 200 test puzzles"
"$python" evaluate.py "checkpoint=$run" "data_path=$data" search.chains=8 search.rounds=100 search.control=20 save_records=true
echo
echo "5. Writing a report of the run, to open in a browser"
"$python" scripts/report.py "$run"
