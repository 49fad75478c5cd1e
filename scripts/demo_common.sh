# shellcheck shell=sh disable=SC2034,SC2154
# What the demos share; needs $python and $experiment.

# Print a setting of the experiment, by its path.
setting() { "$python" pretrain.py --cfg job "experiment=$experiment" | "$python" -c "
import sys, yaml
value = yaml.safe_load(sys.stdin)
for part in '$1'.split('.'):
    value = value[part]
print(value)"; }

data="$(setting data.path)"
run="$(setting checkpoint_path)"
name="$(setting data.name)"

# Build a data set of the experiment; takes its settings that differ.
build() { "$python" scripts/build_dataset.py "data=$name" "$@"; }
