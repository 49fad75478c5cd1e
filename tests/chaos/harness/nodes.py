"""Two hosts on one machine, each with its own name, network and processes.

A test can cut the link between them, or make it lossy or slow. The hosts are Linux namespaces: they
need root, or a kernel that grants user namespaces to everybody. They reach no other network, and
end when this process closes the pipe to their first process.
"""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, check_output

_ADDRESSES = {"node-a": "10.0.0.1", "node-b": "10.0.0.2"}
_APART = ("unshare", "--net", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child")
_SPACES = {"net": "net", "uts": "uts", "mount": "mnt", "pid": "pid_for_children"}
_FIRST = """mount --bind "$2" /etc/hosts && hostname "$1" &&
ip link set lo up && echo up && exec cat"""
# Bytecode for the kernel's filter: drop a packet if a random 32-bit number is below the limit.
_DROP = "4,32 0 0 4294963256,53 1 0 {},6 0 0 2,6 0 0 4294967295"


class Node:
    """One of the hosts; the second one starts `beside` the first. `log`: its processes' output."""

    def __init__(self, name: str, folder: Path, beside: "Node | None" = None) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        hosts = folder / "hosts"
        lines = ("127.0.0.1 localhost", *(f"{ip} {host}" for host, ip in _ADDRESSES.items()))
        hosts.write_text("\n".join(lines) + "\n")
        apart = (*_APART, "sh", "-c", _FIRST, "sh", name, hosts)
        if os.geteuid() and beside is None:
            apart = ("unshare", "--user", "--map-root-user", *apart)
        command = (*beside._enter, *apart) if beside else apart
        self._first = Popen(command, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
        self.pid = self._first.pid
        own = ("nsenter", f"--user=/proc/{self.pid}/ns/user", "--preserve-credentials")
        self._enter = beside._enter if beside else own if os.geteuid() else ("nsenter",)
        self._started = list[Popen[bytes]]()
        assert self._first.stdout is not None
        if (said := self._first.stdout.readline()) != b"up\n":
            self.end()
            raise OSError(said.decode().strip())

    @property
    def said(self) -> str:
        """The output of its processes."""
        return self.log.read_text(errors="replace")

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> Popen[bytes]:
        """Start a command on this host.

        It has its own process group, so that the kernel wakes it when this process is killed.
        """
        spaces = (f"--{kind}=/proc/{self.pid}/ns/{file}" for kind, file in _SPACES.items())
        given = {"env": env, "stdin": DEVNULL, "stderr": STDOUT, "process_group": 0}
        with self.log.open("ab") as log:
            self._started.append(Popen((*self._enter, *spaces, *command), stdout=log, **given))
        return self._started[-1]

    def signal(self, name: str, pid: int = -1) -> None:
        """Send a signal to a process, by its number on this host; -1 sends it to all at once."""
        assert self.start("sh", "-c", f"kill -{name} {pid}").wait() == 0
        if name == "CONT":
            self._wake()

    def _wake(self) -> None:
        # nsenter stops when its own child is stopped.
        for process in self._started:
            process.send_signal(signal.SIGCONT)

    def net(self, command: str, *more: str) -> str:
        """Run a command in this host's network, and return its output."""
        enter = (*self._enter, f"--net=/proc/{self.pid}/ns/net")
        return check_output((*enter, *command.split(), *more), text=True)

    def link(self, state: str) -> None:
        """Set the link `up` or `down`."""
        self.net(f"ip link set eth0 {state}")

    def lose(self, share: float) -> None:
        """Lose this share of the arriving packets (a sender would notice a loss on its side)."""
        drop = ("bytecode", _DROP.format(min(int(share * 2**32), 2**32 - 1)))
        self.net("tc filter replace dev eth0 ingress pref 1 handle 1 bpf da", *drop)

    def slow(self, rate: str) -> None:
        """Limit the rate at which it sends."""
        self.net(f"tc qdisc replace dev eth0 root tbf rate {rate} burst 4kb latency 400ms")

    def counted(self, what: str) -> int:
        """Return the number of packets lost on purpose (drops) or delayed (overlimits)."""
        return sum(queue[what] for queue in json.loads(self.net("tc -s -j qdisc show dev eth0")))

    def end(self) -> None:
        """End all processes of this host, and wait for their ends."""
        self._wake()  # A stopped nsenter would not wait for its child.
        self._first.communicate()  # Closes the pipe.
        for process in self._started:
            process.wait()


@contextmanager
def two_nodes(folder: Path) -> Iterator[list[Node]]:
    """Yield two hosts with a link between them.

    Raises:
        OSError, CalledProcessError: this machine does not allow it.
    """
    nodes = list[Node]()
    with ExitStack() as stack:
        for name in _ADDRESSES:
            nodes.append(Node(name, folder, *nodes))
            stack.callback(nodes[-1].end)
        peer = f"peer name eth0 netns {nodes[1].pid}"
        nodes[0].net(f"ip link add name eth0 type veth {peer}")
        for node in nodes:
            node.net(f"ip addr add {_ADDRESSES[node.name]}/24 dev eth0")
            node.net("tc qdisc add dev eth0 clsact")
            node.lose(0.0)
            node.link("up")
        yield nodes
