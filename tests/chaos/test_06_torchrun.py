"""Row 6: a rank that dies under torchrun is started anew, on one machine and on two nodes, and the
run ends in the bits of one that nobody disturbed.
"""

import socket
import subprocess
from collections.abc import Callable, Sequence

import pytest
from harness import mutants
from harness.dying import meet_at
from harness.lab import Lab
from harness.processes import Fault, ForkServer

Torchrun = Callable[..., subprocess.Popen[str]]
SECONDS = 180.0


@pytest.fixture
def lab(lab: Lab) -> Lab:
    """As a launcher that restarts demands it."""
    return lab.plus("resume=auto")


def start_dying(
    lab: Lab, torchrun: Torchrun, options: Sequence[str], deaths: Sequence[str]
) -> subprocess.Popen[str]:
    """Start ranks under torchrun that kill themselves as `deaths` says."""
    restarts, killers = f"--max-restarts={len(deaths) + 2}", ",".join(deaths)
    command = (*options, restarts, "--module", "harness.dying", str(lab.folder), killers)
    return torchrun(*command, *lab.settings("killed"))


def require_same_end(lab: Lab) -> None:
    """Train without deaths on as many ranks, and require the same bits."""
    lab.train_ranks(2, "whole")
    assert lab.digest("killed") == lab.digest("whole")
    assert lab.files("killed").leftovers() == []


@pytest.mark.row(6)
def test_ranks_that_die_are_started_anew(lab: Lab, torchrun: Torchrun) -> None:
    # No two at one step, where one death may forestall the other.
    deaths = ["1:8", "0:17", "1:20", "0:21", "0:27", "1:32"][: lab.cases(quick=2, long=6)]
    process = start_dying(lab, torchrun, ["--standalone", "--nproc-per-node=2"], deaths)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert all((lab.folder / death).exists() for death in deaths)
    assert out.count("resumed exactly from") == len(deaths)
    assert "Traceback" not in err
    require_same_end(lab)
    lab.tally(
        f"{len(deaths)} deaths under torchrun, {len(deaths)} correct restarts, the same bits",
        deaths=len(deaths),
    )


@pytest.mark.row(6)
def test_ranks_on_two_nodes_are_started_anew(lab: Lab, torchrun: Torchrun) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-id=chaos",
    ]
    deaths = ["1:8", "0:17", "1:20", "0:21"][: lab.cases(quick=1, long=4)]
    nodes = [start_dying(lab, torchrun, options, deaths) for _ in range(2)]
    said = [node.communicate(timeout=SECONDS) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert sum(out.count("resumed exactly from") for out, _ in said) == len(deaths)
    require_same_end(lab)
    lab.tally(
        f"{len(deaths)} on two nodes, {len(deaths)} correct restarts, the same bits",
        deaths=len(deaths),
    )


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
def test_a_rank_never_meets_the_dead(lab: Lab) -> None:
    attempts = require_fresh_meetings(lab.server)
    lab.tally(f"{attempts} attempts in one store, no rank met a dead one", meetings_with_the_dead=0)


@pytest.mark.parametrize(
    "mutant", mutants.params(6, mutants.share_a_prefix, mutants.share_a_question)
)
def test_a_meeting_with_the_dead_is_noticed(lab: Lab, mutant: Fault) -> None:
    with pytest.raises(AssertionError, match="met the dead"):
        require_fresh_meetings(lab.server, mutant)
