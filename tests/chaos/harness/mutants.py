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


def add_by_rank() -> None:
    """gradients added up on each rank before they are added over the ranks"""
    from training import optim
    from training.distributed import env_world_size

    add = optim.sum_in_order

    def add_ranks(shards: Any) -> Any:
        by_rank = shards.unflatten(0, (env_world_size(), -1))
        return add(add(by_rank.transpose(0, 1)))

    optim.sum_in_order = add_ranks


def draw_by_rank() -> None:
    """dropout drawn by rank instead of by shard"""
    from training import trainer
    from training.distributed import env_rank

    keyed = trainer.torch_seed
    trainer.torch_seed = lambda seed, step, part: keyed(seed, step, env_rank())
