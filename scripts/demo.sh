#!/bin/sh
# Build a Sudoku set, train on it, evaluate on unseen puzzles, and show solutions of some.
# Usage: sh scripts/demo.sh PYTHON EXPERIMENT
set -eu
python="$1"
experiment="$2"
. scripts/demo_common.sh

build_and_train
echo "3. Solving two unseen puzzles, with 16 ACT steps"
"$python" scripts/solve.py "checkpoint=$run" "data_path=$data" count=2 steps=16
echo
echo "The data are in $data; the run's metrics.jsonl and checkpoints are in $run"
echo
echo "4. Evaluating on all unseen puzzles, with 16 ACT steps"
"$python" evaluate.py "checkpoint=$run" "data_path=$data" arch_overrides.halt_max_steps=16 global_batch_size=100 \
    save_records=true
echo
echo "5. Thinking longer: up to 64 ACT steps, on 200 of these puzzles"
"$python" evaluate.py "checkpoint=$run" "data_path=$data" 'steps=[4,16,64]' max_examples=200 global_batch_size=100
echo
echo "6. Writing a report of the run, to open in a browser"
"$python" scripts/report.py "$run"
