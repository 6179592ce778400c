"""A network of a run's own: a namespace for each node, a bridge between them, and nodes that are cut off from it.

A node that is cut off still runs, and clients still reach it through haproxy, which connects inside of the namespace;
no packet passes between it and the other nodes, and neither side is told. Root only.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PREFIX = "sqlqueue-soak"
NETWORK = "10.77.0"


class Network:
    """The namespaces of so many nodes. Closing it ends none of the processes inside."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._prefix = f"{PREFIX}-{os.getpid()}"
        self.addresses = {node: f"{NETWORK}.{number}" for number, node in enumerate(nodes, 1)}

    def namespace(self, node: str) -> str:
        """Return the name of a node's namespace, for haproxy and `ip netns exec`."""
        return f"{self._prefix}-{node}"

    def start(self) -> None:
        """Make all of it. Raise RuntimeError where that cannot be."""
        if reason := impossible():
            raise RuntimeError(reason)
        remove_leftovers()
        hub = self.namespace("hub")
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", hub, "link", "set", "bridge", "up")
        for node, address in self.addresses.items():
            own = self.namespace(node)
            ip("netns", "add", own)
            ip("-n", own, "link", "set", "lo", "up")
            ip("-n", hub, "link", "add", f"port-{node}", "type", "veth", "peer", "name", "eth0", "netns", own)
            ip("-n", hub, "link", "set", f"port-{node}", "up")
            ip("-n", own, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", own, "link", "set", "eth0", "up")
            self.join(node)

    def cut_off(self, node: str) -> None:
        """Let no packet pass between a node and the others."""
        ip("-n", self.namespace("hub"), "link", "set", f"port-{node}", "nomaster")

    def join(self, node: str) -> None:
        """Let its packets pass again."""
        ip("-n", self.namespace("hub"), "link", "set", f"port-{node}", "master", "bridge")

    def close(self) -> None:
        """Remove it."""
        for node in (*self.addresses, "hub"):
            ip("netns", "delete", self.namespace(node), check=False)


def impossible() -> str:
    """Say why there can be no network of a run's own here; "" if there can."""
    if os.geteuid():
        return "only root may make network namespaces"
    return "" if shutil.which("ip") else "there is no ip command (on Debian: apt-get install iproute2)"


def remove_leftovers() -> None:
    """Remove the namespaces of runs whose process is gone: those that were killed."""
    for file in Path("/run/netns").glob(f"{PREFIX}-*"):
        pid = file.name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if not Path("/proc", pid).exists():
            ip("netns", "delete", file.name, check=False)


def ip(*words: str, check: bool = True) -> None:
    """Run the command; raise RuntimeError with what it says if it fails."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
