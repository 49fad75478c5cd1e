"""Evaluations in the course of a training run."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from evaluation.evaluators import Evaluator, finish
from evaluation.outputs import OutputFiles, write_json_files
from evaluation.report import flatten, flatten_findings
from evaluation.runner import Forward, evaluate
from models.config import EvaluatorName
from models.losses import ACTLossHead
from puzzle_dataset import EvalBatches
from runtime.ranks import Ranks


class InTrainingEvaluation:
    """Measures the model at a step; what it writes goes to `eval_step_N/` in the run's folder.

    Args:
        batches: of this rank; None measures nothing.
        evaluators: for that set, by name.
        save_outputs: fields to write, see `evaluation.outputs`.
        forward: the model or its compiled form.
        run_dir: the run's folder.
    """

    def __init__(
        self,
        batches: EvalBatches | None,
        evaluators: Mapping[EvaluatorName, Evaluator],
        save_outputs: Sequence[str],
        forward: Forward,
        ranks: Ranks,
        run_dir: Path,
    ) -> None:
        self.batches, self.evaluators, self.fields = batches, evaluators, save_outputs
        self.forward, self.ranks, self.run_dir = forward, ranks, run_dir

    def __call__(
        self, model: ACTLossHead, step: int, before_batch: Callable[[], None]
    ) -> dict[str, float]:
        """Return the figures by name, the same on all ranks.

        Args:
            before_batch: see `evaluation.runner.evaluate`.
        Raises:
            OutputError: a file cannot be written; names it.
        """
        if self.batches is None:
            return {}
        folder = self.run_dir / f"eval_step_{step}"
        saving = contextlib.nullcontext()
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
                before_batch=before_batch,
            )
        findings = finish(self.evaluators, self.ranks.gather_objects)
        for found in findings.values():
            write_json_files(folder, found.files, self.ranks, own=True)
        return flatten(results) | flatten_findings(findings)
