"""Imported once by the fork server, so that its children need not."""

import coolname
import torch._dynamo  # By the first optimizer: more than a second.
import torch.distributed

import evaluate
import evaluation.measure
import pretrain
import training.trainer
from harness import builds

__all__ = ["coolname", "evaluate", "evaluation", "pretrain", "torch", "training"]

builds.warm_up()
