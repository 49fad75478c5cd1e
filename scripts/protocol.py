"""Measure a score (docs/protocol.md): python scripts/protocol.py experiment=NAME [KEY=VALUE ...].

Trains with seeds 0, 1 and 2, selects a checkpoint of each run on puzzles outside the training and
test sets, evaluates it once on the test set, and prints a row for a table. After a kill, the same
command resumes. Takes all settings of `pretrain.py -m` (seed=0,1,2,3 or hydra/launcher=pool), and

    selection=held_out   select the best checkpoint on the selection puzzles, the earliest of equals
    selection=last       select the last checkpoint, for data without selection puzzles (ARC)
    folder=FOLDER        write everything here; default: protocol/EXPERIMENT_SELECTION
"""

from apps.bench.protocol import ProtocolSettings, main
from training.config.entry_point import run_entry_point
from training.config.schema import TrainConfig

if __name__ == "__main__":
    own = ProtocolSettings.model_fields
    run_entry_point(TrainConfig, "cfg_pretrain", main, str(__doc__), own_settings=own)
