"""Solve puzzles with a trained model: python scripts/solve.py checkpoint=PATH puzzle=53..7....6..

PATH is a run's folder (its newest good checkpoint), a checkpoint in it, or a published `step_N`
file. Other sources of puzzles than puzzle=: file=FILE, index=198 (or [3,198]) or count=N (the first
N) of the run's test set, or standard input. data_path=FOLDER, split= and set= choose another set.
FILE has Sudokus, one a line or in rows, or mazes in rows; or it is an ARC task (.json).

The answer is the most likely token of each cell after the last step.

steps=64 chains=8 thinks longer, as in evaluate.py: 64 ACT steps in 8 chains; one of them answers.

It prints the answer, whether it is right (if that can be told), how sure the model is, and how the
answer changed from step to step. animate=out.gif shows the steps as a moving picture.
"""

from apps.reports.solving import main
from evaluation.config import SolveConfig
from training.config.entry_point import run_entry_point

if __name__ == "__main__":
    run_entry_point(SolveConfig, "cfg_solve", main, str(__doc__))
