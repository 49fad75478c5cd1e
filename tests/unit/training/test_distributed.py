"""Ranks find each other whatever an earlier attempt has left in their store."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from training.distributed import meet
from training.errors import RankError

WORLD_SIZE = 3


def meet_all(store: dist.Store) -> set[str]:
    with ThreadPoolExecutor(WORLD_SIZE) as pool:
        return set(pool.map(lambda rank: meet(store, rank, WORLD_SIZE, 30.0), range(WORLD_SIZE)))


def test_all_ranks_agree_on_a_prefix_that_no_other_attempt_had() -> None:
    store = dist.HashStore()
    prefixes = [meet_all(store) for _ in range(3)]
    assert [len(prefix) for prefix in prefixes] == [1, 1, 1]
    assert len(set.union(*prefixes)) == 3


def test_the_question_of_a_rank_that_has_died_is_no_ranks_answer() -> None:
    store = dist.HashStore()
    for rank in (1, 2):
        store.set(f"question/{rank}", "asked by the dead")
    (prefix,) = meet_all(store)
    # Nobody is taken to be there who is not.
    assert store.check([f"{prefix}/there/1", f"{prefix}/there/2"])


@pytest.mark.parametrize(
    ("rank", "missing"), [(0, "rank 1, 2 does not answer"), (1, "rank 0 does not answer")]
)
def test_ranks_that_do_not_come_are_named(rank: int, missing: str) -> None:
    with pytest.raises(RankError, match=f"{missing}, at the start: not within 0.2 s"):
        meet(dist.HashStore(), rank, WORLD_SIZE, 0.2)
