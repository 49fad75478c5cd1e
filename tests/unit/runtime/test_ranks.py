"""How ranks find each other; collectives of one rank; sums in a fixed order."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from runtime.errors import RankError
from runtime.ranks import Ranks, agree_on_prefix, sum_in_order

WORLD_SIZE = 3


def meet_all(store: dist.Store) -> set[str]:
    with ThreadPoolExecutor(WORLD_SIZE) as pool:
        return set(
            pool.map(lambda rank: agree_on_prefix(store, rank, WORLD_SIZE, 30.0), range(WORLD_SIZE))
        )


def test_all_ranks_agree_on_a_new_prefix_in_each_attempt() -> None:
    store = dist.HashStore()
    store.set("question/1", "asked by a rank that has died")
    prefixes = [meet_all(store) for _ in range(3)]
    assert [len(prefix) for prefix in prefixes] == [1, 1, 1]
    assert len(set.union(*prefixes)) == 3


@pytest.mark.parametrize(
    ("rank", "missing"), [(0, "rank 1, 2 does not answer"), (1, "rank 0 does not answer")]
)
def test_missing_ranks_are_named(rank: int, missing: str) -> None:
    with pytest.raises(RankError, match=f"{missing}: not started within 0.2 s"):
        agree_on_prefix(dist.HashStore(), rank, WORLD_SIZE, 0.2)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """The only rank of a launched run."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with Ranks("cpu") as ranks:
        assert ranks.active
        yield ranks


def test_without_a_launcher_the_gpu_is_the_one_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert Ranks("cuda").device == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1)]


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_rows_are_gathered_whatever_their_stride(
    launched: Ranks, num_rows: int, dtype: torch.dtype
) -> None:
    pairs = torch.arange(2 * num_rows).view(num_rows, 2).to(dtype)
    rows = launched.gather_rows(pairs[:, 0])
    assert rows is not None
    assert rows.dtype == dtype
    assert torch.equal(rows, pairs[:, 0])


def test_sums_are_taken_in_order_and_leave_the_shards_alone() -> None:
    shards = torch.tensor([[1e8, 1e8], [1.0, -1e8], [-1e8, 1.0], [2.0, 2.0]])
    before = shards.clone()
    # In float32 the 1 is lost beside 1e8.
    assert sum_in_order(shards).tolist() == [2.0, 3.0]
    assert torch.equal(shards, before)
