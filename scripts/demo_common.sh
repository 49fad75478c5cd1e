# What the demos share; needs $python and $experiment.

# Print a setting of the experiment, by its path.
setting() { "$python" pretrain.py --cfg "experiment=$experiment" | "$python" -c "
import sys, yaml
value = yaml.safe_load(sys.stdin)
for part in '$1'.split('.'):
    value = value[part]
print(value)"; }

data="$(setting data.path)"
run="$(setting checkpoint_path)"
build="$(setting data.build_command)"
build="${build#python }"
