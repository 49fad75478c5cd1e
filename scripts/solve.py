"""Let a trained model solve puzzles: python scripts/solve.py checkpoint=PATH puzzle=53..7....6..

PATH is a run's folder (its newest good checkpoint), a checkpoint in it, or a published `step_N`
file. Instead of puzzle=: file=FILE, index=198 (or [3,198]) for puzzles of the run's test
set by number, count=N for its first ones (data_path=FOLDER, split=, set=: of another set), or
puzzles on standard input. FILE has Sudokus, on a line each or in rows, or mazes in rows; or is an
ARC task (.json).

The answer is the most likely token of each cell after the last step.

depth=64 breadth=8 thinks longer, as evaluate.py does: so many ACT steps, and so many chains, one of
which answers.

Shows the answer, whether it is right as far as that can be told, how sure the model is, and how the
answer changed from ACT step to ACT step. animate=out.gif shows the steps as pictures.
"""

from apps.reports.solving import main
from evaluation.config import SolveConfig
from training.config.entry_point import run_entry_point

if __name__ == "__main__":
    run_entry_point(SolveConfig, "cfg_solve", main, str(__doc__))
