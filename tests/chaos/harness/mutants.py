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
