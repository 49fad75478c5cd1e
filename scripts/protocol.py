"""Take a score, see docs/protocol.md: python scripts/protocol.py experiment=NAME [KEY=VALUE ...].

Trains seeds 0, 1 and 2, chooses a checkpoint of each on puzzles that are in neither training nor
test, measures it once on the test set, and prints a row for a table. The same command goes on after
a kill. Settings are those of `pretrain.py -m`, as seed=0,1,2,3 or hydra/launcher=pool, and

    selection=held_out   the best checkpoint on the selection puzzles, the earliest of equals
    selection=last       the last checkpoint, for data without such puzzles (ARC)
    folder=FOLDER        where everything is written; default: protocol/EXPERIMENT_SELECTION
"""

from apps.bench.protocol import ProtocolSettings, main
from training.config.entry_point import run_entry_point
from training.config.schema import TrainConfig

if __name__ == "__main__":
    own = ProtocolSettings.model_fields
    run_entry_point(TrainConfig, "cfg_pretrain", main, str(__doc__), own_settings=own)
