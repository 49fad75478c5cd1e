"""Row 6: torchrun restarts dead ranks, on one or two nodes, and the run ends in the same bits."""

import subprocess
from collections.abc import Callable

import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Fault, ForkServer, free_port, require_success
from harness.stops import meet_at

Torchrun = Callable[..., subprocess.Popen[str]]
SECONDS = 180.0


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_that_die_are_started_anew(lab: Lab, torchrun: Torchrun, nodes: int) -> None:
    endpoint = f"--rdzv-backend=c10d --rdzv-endpoint=localhost:{free_port()} --rdzv-id=chaos"
    place = endpoint if nodes == 2 else "--standalone"
    # No two at the same step: one death could prevent the other.
    deaths = ["1:8", "0:17", "1:20", "0:21", "0:27", "1:32"]
    deaths = deaths[: lab.cases(quick=3 - nodes, long=8 - 2 * nodes)]
    options = (f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}", *place.split())
    stops = ("--module", "harness.stops", str(lab.folder), "die", ",".join(deaths), "")
    # A launcher that restarts needs resume=auto.
    settings = lab.settings("killed", "resume=auto")
    command = (*options, f"--max-restarts={len(deaths) + 2}", *stops, *settings)
    processes = [torchrun(*command) for _ in range(nodes)]
    said = [process.communicate(timeout=SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0] * nodes, said
    assert all((lab.folder / death).exists() for death in deaths)
    assert sum(out.count("resumed exactly from") for out, _ in said) == len(deaths)
    assert nodes == 2 or "Traceback" not in said[0][1]
    lab.train_ranks(2, "whole")
    lab.require_same_end("killed")
    number, where = len(deaths), "on two nodes" if nodes == 2 else "under torchrun"
    lab.tally(f"{number} deaths {where}, {number} correct restarts, the same bits", deaths=number)


def require_fresh_meetings(server: ForkServer, *faults: Fault) -> int:
    """Require that no rank meets a dead one in a store that outlives them, as torchrun's does.

    Two ranks meet, then each comes alone, and all that again. Return the number of attempts.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def attempt(*ranks: int, timeout: float) -> list[str]:
        places = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in ranks]
        order = (meet_at, store.port, timeout)
        children = [server.start(*order, faults=faults, environment=each) for each in places]
        return [child.out for child in require_success(*children)]

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


def test_a_rank_never_meets_the_dead(lab: Lab) -> None:
    attempts = require_fresh_meetings(lab.server)
    lab.tally(f"{attempts} attempts in one store, no rank met a dead one", dead_ranks_met=0)


@pytest.mark.parametrize("mutant", mutants.params("share_a_prefix", "share_a_question"))
def test_a_meeting_with_the_dead_is_noticed(lab: Lab, mutant: Fault) -> None:
    with pytest.raises(AssertionError, match="met the dead"):
        require_fresh_meetings(lab.server, mutant)
