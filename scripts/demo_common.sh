# shellcheck shell=sh disable=SC2034,SC2154
# Common part of the demos. The variables $python and $experiment must be set.

# Print the experiment's setting with a path like data.name.
setting() { "$python" pretrain.py --cfg job "experiment=$experiment" | "$python" -c "
import sys, yaml
value = yaml.safe_load(sys.stdin)
for part in '$1'.split('.'):
    value = value[part]
print(value)"; }

data="$(setting data.path)"
run="$(setting checkpoint_path)"
name="$(setting data.name)"

# Build the experiment's data set, with changed settings as arguments.
build() { "$python" scripts/build_dataset.py "data=$name" "$@"; }

# Build the data set and train on it: parts 1 and 2 of a demo.
build_and_train() {
    echo "1. Building $data"
    build "data.path=$data"
    echo
    echo "2. Training (a stopped run resumes)"
    "$python" pretrain.py "experiment=$experiment"
    echo
}
