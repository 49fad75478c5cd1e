#!/bin/sh
# Make mazes of 15 x 15, train a cellular automaton on them, evaluate on unseen ones, and draw its waves.
# Usage: sh scripts/demo_maze.sh PYTHON
set -eu
python="$1"
experiment=nca_maze_small
. scripts/demo_common.sh

build_and_train
echo "3. Evaluating on 300 unseen mazes"
"$python" evaluate.py "checkpoint=$run" "data_path=$data"
echo
echo "4. Drawing the two waves: from the goal, in yellow, and from the start along the path"
"$python" scripts/solve.py "checkpoint=$run" "data_path=$data" count=1 "animate=$run/waves.gif"
