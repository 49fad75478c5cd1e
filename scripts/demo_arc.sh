#!/bin/sh
# Build ten ARC tasks, train on their demonstration pairs, and score the votes over all augmentations: on the
# demonstration pairs (is it learnt?) and on the test pairs (does it carry over?).
# Usage: sh scripts/demo_arc.sh PYTHON
set -eu
python="$1"
experiment=trm_arc_demo
. scripts/demo_common.sh

echo "1. Building $data, and beside it the same tasks with their demonstration pairs as the test"
build "data.path=$data"
build "data.path=$data-demonstrations" "data.builder.flags='$(setting data.builder.flags) --test-pairs demonstration'"
echo
echo "2. Training on the demonstration pairs (a run that was stopped goes on where it stood)"
"$python" pretrain.py experiment=$experiment
echo
echo "3. Scoring the demonstration pairs"
"$python" evaluate.py "checkpoint=$run" "data_path=$data-demonstrations" evaluators=[arc] "output=$run/demonstrations/eval.json"
echo
echo "4. Scoring the test pairs, never seen in training"
"$python" evaluate.py "checkpoint=$run" "data_path=$data" evaluators=[arc] "output=$run/test/eval.json" save_records=true
echo
echo "5. What the votes solve"
"$python" - "$run" <<'PYTHON'
import json, sys
for name in ("demonstrations", "test"):
    with open(f"{sys.argv[1]}/{name}/eval.json") as file:
        found = json.load(file)["evaluators"]["arc"]["metrics"]
    print(f"{name.removesuffix('s') + ' pairs:':21} pass@1: {found['pass@1']:.3f}  pass@2: {found['pass@2']:.3f}")
PYTHON
echo "submission: $run/test/submission.json"
echo
echo "6. A page about all of this, to open in a browser"
"$python" scripts/report.py "$run"
