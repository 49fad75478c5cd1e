"""A callback: at each evaluation, a GIF of the model's steps on the same four test puzzles."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from runtime.errors import ConfigError
from runtime.files import replacing, require_no_link
from training.callbacks.base import Callback, Run


class SamplePictures(Callback):
    """Writes `pictures/step_N.gif` in the run's folder. Needs Pillow."""

    def evaluated(self, run: Run, metrics: Mapping[str, float]) -> None:
        from apps.reports.frames import frames_of_steps, gif
        from evaluation.puzzles import kind_of_data, puzzles_of
        from evaluation.solve import reason
        from puzzle_dataset import PuzzleDataset

        config, folder = run.config, run.folder / "pictures"
        if not metrics:
            raise ConfigError("there are no test puzzles to draw: nothing is evaluated")
        opened = partial(PuzzleDataset, check_values=False, numbered_as=config.train_paths)
        data = opened(config.test_paths, str(config.eval_split))
        last = sum(arrays.num_examples for arrays in data.sets.values()) - 1
        rows = np.unique(np.linspace(0, last, 4).astype(int)).tolist()
        puzzles = list(puzzles_of(data, kind_of_data(data), rows))
        with run.model() as model:
            device = next(model.parameters()).device
            frames = [frames_of_steps(one) for one in reason(model, puzzles, device)]
        require_no_link(folder)
        folder.mkdir(exist_ok=True)
        with replacing(folder / f"step_{run.step}.gif") as file:
            file.write(gif(*frames))
        run.show(folder / f"step_{run.step}.gif")
