"""Row 23: two nodes under torchrun. A run survives a link that is down for a while, lossy or slow.

A node that is gone for longer is named, and the run resumes.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from harness.lab import Lab
from harness.nodes import Node, two_nodes
from harness.processes import IMPORTS, ROOT, until

from runtime.errors import EXIT_RANK

TIMEOUT = 4.0
SECONDS = 180.0
PLACE = r"in [a-z_ ]+, (step|saving step) \d+"


@dataclass
class Run:
    """A run on two nodes. Its ranks wait before some steps for a file in the folder."""

    folder: Path
    nodes: list[Node]
    launchers: list[subprocess.Popen[bytes]]

    @property
    def said(self) -> str:
        """The output of both nodes."""
        return "".join(node.said for node in self.nodes)

    @contextmanager
    def stop(self, step: int) -> Iterator[list[int]]:
        """Hold both ranks before a step during the context; yield their process numbers."""

        def waiting() -> list[str]:
            assert [each.poll() for each in self.launchers] == [None, None], self.said
            return sorted(path.name for path in self.folder.glob(f"{step} *"))

        until(lambda: len(waiting()) == 2, f"both ranks at step {step}", SECONDS)
        yield [int(name.split()[-1]) for name in waiting()]
        (self.folder / f"go {step}").touch()

    def lose(self, share: float) -> None:
        """Lose this share of the packets in both directions."""
        for node in self.nodes:
            node.lose(share)

    def counted(self, what: str) -> int:
        """Return the number of packets lost (drops) or delayed (overlimits) so far."""
        return sum(node.counted(what) for node in self.nodes)

    def require_named(self, rank: int) -> None:
        """Wait until the rank on the other node ends, and require that it names this rank."""
        line, other = re.compile(r"^pretrain\.py: .*\n", re.MULTILINE), self.nodes[1 - rank]
        until(lambda: line.search(other.said) is not None, "it ends", SECONDS)
        wanted = rf"rank {rank} on {self.nodes[rank].name}\b.*{PLACE}"
        assert re.search(wanted, line.findall(other.said)[0]), f"not named: {other.said}"

    def ends(self) -> list[int]:
        """Wait for the launchers' ends, and return their exit codes."""
        return [launcher.wait(SECONDS) for launcher in self.launchers]


Start = Callable[..., Run]


@pytest.fixture
def start(lab: Lab, clean_environment: Mapping[str, str]) -> Iterator[Start]:
    """Return a function that starts a run on two new nodes; its ranks wait before these steps."""
    environment = {**clean_environment, **IMPORTS, "GLOO_SOCKET_IFNAME": "eth0"}
    meet = "--rdzv-backend=c10d --rdzv-endpoint=node-a:29400 --rdzv-id=chaos"
    patient = f"{meet} --rdzv-conf=read_timeout=1800"
    launch = f"{sys.executable} {ROOT}/scripts/launch.py --nnodes=2 --nproc-per-node=1 {patient}"
    with ExitStack() as stack:

        def begin(
            name: str, steps: Iterable[int], *settings: str, restarts: int = 0, mutant: str = ""
        ) -> Run:
            folder = lab.folder / f"nodes of {name}"
            folder.mkdir()
            try:
                nodes = stack.enter_context(two_nodes(folder))
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no two nodes with a link here: {error}")
            stops = ("harness.stops", str(folder), "wait", ",".join(map(str, steps)), mutant)
            options = (f"--max-restarts={restarts}", "--module", *stops)
            command = (*launch.split(), *options, *lab.settings(name), "resume=auto", *settings)
            return Run(folder, nodes, [node.start(*command, env=environment) for node in nodes])

        yield begin


def test_a_run_survives_faults_of_its_link(lab: Lab, start: Start) -> None:
    down, lost = ([1, 10, 60], [10, 60]) if lab.long else ([1], [10])
    steps = range(6, 6 + 3 * (4 + len(down + lost)), 3)
    run, step = start("run", steps, restarts=1), iter(steps)
    first, struck = run.nodes[0], int(lab.rng.integers(2))
    with run.stop(next(step)) as pids:
        run.nodes[struck].signal("KILL", pids[struck])
    run.require_named(struck)
    for seconds in down:
        with run.stop(next(step)):
            first.link("down")
        time.sleep(seconds)
        first.link("up")
    for seconds in lost:
        with run.stop(next(step)):
            run.lose(1.0)
        time.sleep(seconds)
        run.lose(0.0)
    with run.stop(next(step)):
        before = run.counted("drops")
        run.lose(0.05)
    with run.stop(next(step)):
        few = run.counted("drops") - before
        run.lose(0.0)
        first.slow("8mbit")
    with run.stop(next(step)):
        late = run.counted("overlimits")
    assert few > 0
    assert late > 0
    assert run.ends() == [0, 0], run.said
    assert run.said.count("resumed exactly from") == 1
    lab.train_ranks(2, "whole")
    lab.require_same_end("run")
    outages = f"down for {down} s, all lost for {lost} s".replace("[", "").replace("]", "")
    said = f"a rank killed, the link {outages}, {few} packets lost and {late} late: the same bits"
    lab.tally(said, named=1, outages=len(down + lost))


class Fault(NamedTuple):
    """A fault that lasts longer than a rank waits.

    Attributes:
        strike: brings it about. mend: ends it, so that the node's processes can end.
        code: the exit code of the node's launcher. both: whether the node's own rank waits too.
    """

    strike: Callable[[Node], None]
    mend: Callable[[Node], None]
    code: int = EXIT_RANK
    both: bool = False


FAULTS = {
    "the link down": Fault(lambda n: n.link("down"), lambda n: n.link("up"), both=True),
    "a node frozen": Fault(lambda n: n.signal("STOP"), lambda n: n.signal("CONT")),
    "a node killed": Fault(lambda n: n.signal("KILL"), lambda n: None, -signal.SIGKILL),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_lasting_fault_is_named_and_the_run_resumes(lab: Lab, start: Start, name: str) -> None:
    fault, seconds = FAULTS[name], 0.0
    sides = [0, 1] if lab.long else [int(lab.rng.integers(2))]
    lab.train_ranks(2, "whole")
    for struck in sides:
        run = start(f"run{struck}", [9], f"rank_timeout={TIMEOUT}")
        with run.stop(9):
            fault.strike(run.nodes[struck])
        began = time.monotonic()
        for blamed in (struck, 1 - struck) if fault.both else (struck,):
            run.require_named(blamed)
        seconds = max(seconds, time.monotonic() - began)
        fault.mend(run.nodes[struck])
        codes = run.ends()
        assert (codes[1 - struck], codes[struck]) == (EXIT_RANK, fault.code), run.said
        children = lab.train_ranks(2, f"run{struck}", "resume=auto")
        assert "resumed exactly from" in children[0].out
        lab.require_same_end(f"run{struck}")
    limit = f"named after {seconds:.1f} s (timeout {TIMEOUT:g} s), resumed in the same bits"
    lab.tally(f"{name}: {limit}", named=len(sides))


@pytest.mark.mutant("forget_hosts")
def test_a_host_that_is_not_named_is_noticed(start: Start) -> None:
    run = start("run", [9], mutant="forget_hosts")
    with run.stop(9) as pids:
        run.nodes[1].signal("KILL", pids[1])
    with pytest.raises(AssertionError, match="(?s)not named: .*rank 1 has died"):
        run.require_named(1)
