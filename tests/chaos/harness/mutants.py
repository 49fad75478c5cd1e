"""The project with one of its protections taken out; the first line says which. Called in a child
before its entry point.
"""

from typing import Any


def omit_carry() -> None:
    """the carry left out of checkpoints"""
    from training import trainer

    trainer.gather_carry = lambda carry, ranks: {}


def omit_optimizer() -> None:
    """the optimizer's state left out of checkpoints"""
    from training import trainer

    trainer.optimizer_tensors = lambda optimizer, groups: {}


def omit_random_state() -> None:
    """torch's random state left out of checkpoints"""
    from training import trainer

    def leave(tensors: Any, ranks: Any) -> None:
        return None

    trainer.restore_rng = leave


def omit_sparse_check() -> None:
    """the gradient of the puzzle embedding not looked at before its sign is taken"""
    import torch

    from training.sparse_sign_sgd import SparseSignSGD

    SparseSignSGD.finite = lambda self: torch.tensor(True)


def omit_lock() -> None:
    """the lock on the run's folder left out"""
    import contextlib

    import pretrain

    pretrain.run_lock = lambda run_dir: contextlib.nullcontext()


def omit_owner() -> None:
    """the owner of a held lock taken for alive, whatever became of it"""
    from training.run_lock import Owner

    Owner.is_gone = property(lambda self: False)  # type: ignore[assignment]


def omit_guard() -> None:
    """errors of W&B let into the run"""
    from training.tracking import WandbLog

    WandbLog._guard = lambda self, call: call()  # type: ignore[method-assign]
