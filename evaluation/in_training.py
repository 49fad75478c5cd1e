"""Evaluations in the course of a training run."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from evaluation.evaluators import Evaluator, finish
from evaluation.outputs import OutputError, OutputFiles, write_json_files
from evaluation.report import flatten, flatten_findings
from evaluation.runner import Forward, evaluate
from models.config import EvaluatorName
from models.losses import ACTLossHead
from puzzle_dataset import EvalBatches, PuzzleDataset
from training.config import TrainConfig
from training.distributed import Ranks
from training.errors import ConfigError


class InTrainingEvaluation:
    """Measures the model at a step; what it writes goes to `eval_step_N/` in the run's folder.

    Args:
        test_set: None measures nothing.
        evaluators: for that set, by name.
        forward: the model or its compiled form.
        run_dir: the run's folder.
    """

    def __init__(
        self,
        config: TrainConfig,
        test_set: PuzzleDataset | None,
        evaluators: Mapping[EvaluatorName, Evaluator],
        forward: Forward,
        ranks: Ranks,
        run_dir: Path,
    ) -> None:
        self.evaluators, self.forward, self.ranks = evaluators, forward, ranks
        self.fields, self.run_dir = config.eval_save_outputs, run_dir
        self.batches = test_set and EvalBatches(
            test_set,
            global_batch_size=config.eval_batch_size or config.global_batch_size,
            rank=ranks.rank,
            world_size=ranks.world_size,
            max_examples=config.eval_max_examples,
        )

    def __call__(self, model: ACTLossHead, step: int) -> dict[str, float]:
        """Return the figures by name, the same on all ranks.

        Raises:
            ConfigError: outputs cannot be written; names the file.
        """
        if self.batches is None:
            return {}
        folder = self.run_dir / f"eval_step_{step}"
        saving = contextlib.nullcontext()
        try:
            if self.fields:
                saving = OutputFiles(folder, self.fields, self.batches, self.ranks)
            with saving as save:
                results = evaluate(
                    self.forward,
                    model,
                    self.batches,
                    self.ranks,
                    save=save,
                    evaluators=self.evaluators.values(),
                )
            findings = finish(self.evaluators, self.ranks.gather_objects)
            for found in findings.values():
                write_json_files(folder, found.files, self.ranks)
        except OutputError as error:
            raise ConfigError(f"an evaluation's files cannot be written: {error}") from None
        return flatten(results) | flatten_findings(findings)
