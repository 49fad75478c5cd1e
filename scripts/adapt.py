"""Adapt a trained model to ARC tasks that it has not seen, and answer them:

python scripts/adapt.py checkpoint=RUN tasks=FOLDER|FILE.json|challenges.json output=submission.json

For each task its demonstrations, in many augmentations, are trained on from the checkpoint's
weights; then all views of its test inputs are answered and vote. Malformed tasks are named and left
out. Beside the output, NAME_runs/ keeps each task's data and run, so that a killed adaptation goes
on; NAME_steps.json tells the steps and votes of each. Test outputs are never read.

    adapt.what=rows|heads|all  train the puzzle embedding's new rows, the heads too, or all weights
                       (default)
    adapt.rows=mean|zero|nearest  what the new rows start at: the mean of the known ones (default),
                       0, or that of the known task that answers the demonstrations best
    adapt.steps=N      steps at most for each task (300; without checkpoint= 1000); or
                       FILE_steps.json, to repeat its steps
    adapt.max_time=1h  for all tasks, shared out between those that are left
    adapt.num_aug=N    augmentations of each task (200)
    adapt.together=N   adapt to N tasks at once (1)
    adapt.models=N     models at most that learn a task in turn, and vote (1; without checkpoint=
                       2): by turns one that keeps its rows as they start, and one that learns them
    adapt.cells=N      cells in a batch at most: fewer rows on larger canvases (100,000; where the
                       task has its own canvas 2,500, but at least 4 rows)

A model ends once all the task's augmented demonstrations were right in a row. A model of arch=grid
learns each task in its eight views, on the smallest canvas that holds it. Without checkpoint= it
is a new one. Takes all settings of pretrain.py, too: lr= (that of the checkpoint's run),
puzzle_emb_lr=, ...
"""

from functools import partial

import evaluate
import pretrain
from apps.adapt.adapting import OWN_KEYS, main
from training.config.entry_point import run_entry_point
from training.config.schema import TrainConfig

if __name__ == "__main__":
    adapt = partial(main, pretrain.run, evaluate.run)
    run_entry_point(TrainConfig, "cfg_pretrain", adapt, str(__doc__), own_settings=OWN_KEYS)
