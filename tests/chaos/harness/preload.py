"""Slow imports, made once by the fork server and shared by its children."""

import coolname
import torch._dynamo  # The first optimizer imports it, in more than a second.
import torch.distributed

import evaluate
import evaluation.measure
import pretrain
import training.trainer
from harness import builds

__all__ = ["coolname", "evaluate", "evaluation", "pretrain", "torch", "training"]

builds.warm_up()
