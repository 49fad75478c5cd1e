"""Row 6: a rank that dies under torchrun is started anew, on one machine and on two nodes, and the
run ends in the bits of one that nobody disturbed.
"""

import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import mutants
from harness.dying import meet_at
from harness.processes import Fault, ForkServer, pretrain

Torchrun = Callable[..., subprocess.Popen[str]]
SECONDS = 180.0


@pytest.fixture
def settings(full_settings: list[str], tmp_path: Path) -> Callable[[str], list[str]]:
    """The overrides of a run in a folder of this name."""
    return lambda name: [*full_settings, f"checkpoint_path={tmp_path / name}", "resume=auto"]


@pytest.fixture
def dying(torchrun: Torchrun, tmp_path: Path) -> Torchrun:
    """Start ranks under torchrun that kill themselves as `deaths` says."""

    def start(options: Sequence[str], deaths: Sequence[str], settings: list[str]) -> Any:
        return torchrun(
            *options,
            f"--max-restarts={len(deaths) + 2}",
            "--module",
            "harness.dying",
            str(tmp_path),
            ",".join(deaths),
            *settings,
        )

    return start


def require_same_end(server: ForkServer, settings: list[str], killed: Any, whole: Any) -> None:
    """Train without deaths on as many ranks, and require the same bits."""
    for child in server.start_ranks(2, pretrain, *settings):
        assert child.wait() == 0, child.err
    assert killed.digest() == whole.digest()
    assert killed.leftovers() == []


@pytest.mark.row(6)
def test_ranks_that_die_are_started_anew(
    dying: Torchrun,
    fork_server: ForkServer,
    start_child: object,
    settings: Callable[[str], list[str]],
    files_of: Any,
    tmp_path: Path,
    cases: Callable[..., int],
    tally: Callable[..., None],
) -> None:
    # No two at one step, where one death may forestall the other.
    deaths = ["1:8", "0:17", "1:20", "0:21", "0:27", "1:32"][: cases(quick=2, long=6)]
    process = dying(["--standalone", "--nproc-per-node=2"], deaths, settings("killed"))
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert all((tmp_path / death).exists() for death in deaths)
    assert out.count("resumed exactly from") == len(deaths)
    assert "Traceback" not in err
    require_same_end(
        fork_server, settings("whole"), files_of(tmp_path / "killed"), files_of(tmp_path / "whole")
    )
    tally(f"{len(deaths)} deaths under torchrun, {len(deaths)} healthy restarts, the same bits")


@pytest.mark.row(6)
def test_ranks_on_two_nodes_are_started_anew(
    dying: Torchrun,
    fork_server: ForkServer,
    start_child: object,
    settings: Callable[[str], list[str]],
    files_of: Any,
    tmp_path: Path,
    cases: Callable[..., int],
    tally: Callable[..., None],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-id=chaos",
    ]
    deaths = ["1:8", "0:17", "1:20", "0:21"][: cases(quick=1, long=4)]
    nodes = [dying(options, deaths, settings("killed")) for _ in range(2)]
    said = [node.communicate(timeout=SECONDS) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert sum(out.count("resumed exactly from") for out, _ in said) == len(deaths)
    require_same_end(
        fork_server, settings("whole"), files_of(tmp_path / "killed"), files_of(tmp_path / "whole")
    )
    tally(f"{len(deaths)} on two nodes, {len(deaths)} healthy restarts, the same bits")


def require_fresh_meetings(server: ForkServer, *faults: Fault) -> int:
    """Let two ranks meet in a store that outlives them, as torchrun's does, and then each come
    alone, and all that again; require nobody to meet the dead. Returns the number of attempts.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def attempt(*ranks: int, timeout: float) -> list[str]:
        children = [
            server.start(
                meet_at,
                store.port,
                timeout,
                faults=faults,
                environment={"RANK": str(rank), "WORLD_SIZE": "2"},
            )
            for rank in ranks
        ]
        assert [child.wait() for child in children] == [0] * len(ranks), children[0].err
        return [child.out for child in children]

    prefixes = list[str]()
    for _ in range(2):
        prefix, same = attempt(0, 1, timeout=30.0)
        assert prefix == same
        assert prefix not in prefixes, "met where the dead met"
        prefixes.append(prefix)
        for alone, other in ((0, 1), (1, 0)):
            (said,) = attempt(alone, timeout=0.5)
            assert said.startswith(f"rank {other} does not answer"), "met the dead"
    return 3 * len(prefixes)


@pytest.mark.row(6)
def test_a_rank_never_meets_the_dead(
    fork_server: ForkServer, start_child: object, tally: Callable[..., None]
) -> None:
    attempts = require_fresh_meetings(fork_server)
    tally(f"{attempts} attempts in one store, 0 met the dead")


@pytest.mark.parametrize(
    "mutant", mutants.params(6, mutants.share_a_prefix, mutants.share_a_question)
)
def test_a_meeting_with_the_dead_is_noticed(
    fork_server: ForkServer, start_child: object, mutant: Fault
) -> None:
    with pytest.raises(AssertionError, match="met the dead"):
        require_fresh_meetings(fork_server, mutant)
