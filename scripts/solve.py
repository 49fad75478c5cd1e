"""Solve puzzles with a trained model: python scripts/solve.py checkpoint=PATH puzzle=53..7....6..

PATH is a run's folder (its newest good checkpoint), a checkpoint in it, a published `step_N` file,
or zoo:NAME; without it, the zoo's model for the puzzles answers. Instead of puzzle=, set file=FILE
(Sudokus, one per line or in rows; mazes and graphs in rows; an ARC task, .json), index=198 or
[3,198] (puzzles of the test set by number) or count=N (its first ones), or give puzzles on standard
input. data_path=FOLDER, split= and set= choose another set.

The answer is the most likely token of each cell after the last step. steps=64 chains=8 thinks
longer, as in evaluate.py: 64 ACT steps in each of 8 chains, one of which gives the answer.

adapt=true file=TASK.json first adapts the model to an ARC task that it has not seen, as
scripts/adapt.py does, and shows both guesses.

Shows the answer, whether it is right (if known), the model's confidence, and the changes of the
answer from step to step. animate=out.gif draws the steps.
"""

from functools import partial

from apps.reports.solving import main
from evaluation.config import SolveConfig
from training.config.entry_point import run_entry_point


def adapt(arguments: list[str]) -> None:
    """Run scripts/adapt.py; the imports would be slow for other puzzles."""
    import evaluate
    import pretrain
    from apps.adapt.adapting import main

    main(pretrain.run, evaluate.run, arguments)


if __name__ == "__main__":
    run_entry_point(SolveConfig, "cfg_solve", partial(main, adapt=adapt), str(__doc__))
