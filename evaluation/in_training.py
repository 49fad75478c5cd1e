"""Evaluations in the course of a training run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.evaluators.base import Evaluator
from evaluation.measure import evaluate
from evaluation.outputs import open_outputs, write_json_files
from evaluation.report import flatten
from evaluation.think import Forward
from models.act import ACTLossHead
from puzzle_dataset import EvalBatches
from runtime.ranks import Ranks


@dataclass(frozen=True)
class InTrainingEvaluation:
    """Measures the model at a step; what it writes goes to `eval_step_N/` in the run's folder."""

    batches: EvalBatches | None  # Of this rank; None measures nothing.
    evaluators: Mapping[str, Evaluator]
    save_outputs: Sequence[str]
    forward: Forward
    ranks: Ranks
    run_dir: Path

    def __call__(
        self, model: ACTLossHead, step: int, before_batch: Callable[[], None]
    ) -> dict[str, float]:
        """Return the figures by name, the same on all ranks; `before_batch` as for `evaluate`.

        Raises:
            OutputError: a file cannot be written; names it.
        """
        if self.batches is None:
            return {}
        folder = self.run_dir / f"eval_step_{step}"
        with open_outputs(self.save_outputs, folder, self.batches, self.ranks) as save:
            evaluation = evaluate(
                self.forward,
                model,
                self.batches,
                self.ranks,
                save=save,
                evaluators=self.evaluators,
                before_batch=before_batch,
            )
        write_json_files(folder, evaluation.files, self.ranks)
        return flatten(evaluation)
