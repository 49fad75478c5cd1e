"""Plan a run before it starts: python scripts/plan.py experiment=NAME gpu=h100 gpus=8 [KEY=VALUE].

Prints memory, time and disk of the run, and how the time falls with more GPUs. It needs no GPU, and
no data if data=NAME is one of ours. It takes all settings of pretrain.py, and

    gpu=NAME gpus=N  a100-40 | a100-80 | h100 | h100-nvl | h100-pcie | h200 | b200 | l4 | l40s |
                     rtx3090 | rtx4090 | rtx5090 | mi300x; any other name with peak= and memory=
    peak= memory= bandwidth= link= network=
                     TFLOP/s of dense bfloat16 products, GB, GB/s of the memory, GB/s of a GPU to
                     others in its machine, and to other machines (default 50)
    seq_len= vocab_size= total_groups= num_puzzle_identifiers= mean_puzzle_examples= test_examples=
                     of data that are not here, as in dataset.json
"""

from apps.bench.plan import PlanSettings, main
from training.config.entry_point import run_entry_point
from training.config.schema import TrainConfig

if __name__ == "__main__":
    own = PlanSettings.model_fields
    run_entry_point(TrainConfig, "cfg_pretrain", main, str(__doc__), own_settings=own)
