"""The demo's network of namespaces, and the programs on its hosts.

    client 192.0.2.2 ----- router ----- 198.51.100.2 exit
      2001:db8:1::2          |          2001:db8:2::2
                             |
                        internet host 203.0.113.2, 2001:db8:3::2

The client also reaches the internet host directly, as on the real internet. So traffic outside the tunnel is visible.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

CLIENT = ("192.0.2.2", "2001:db8:1::2")
EXIT = ("198.51.100.2", "2001:db8:2::2")
INTERNET = ("203.0.113.2", "2001:db8:3::2")


class NetError(Exception):
    """An error, described in a sentence."""


class Host:
    """A network namespace with its own resolver configuration."""

    def __init__(self, role):
        self.name = f"warren-demo-{os.getpid()}-{role}"
        self.etc = Path("/etc/netns", self.name)

    def make(self):
        self.etc.mkdir(parents=True)
        (self.etc / "resolv.conf").write_text(f"nameserver {INTERNET[0]}\n")
        run(["ip", "netns", "add", self.name])
        self.run("sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0")
        self.run("ip link set lo up")

    def command(self, arguments):
        return ["ip", "netns", "exec", self.name, *map(str, arguments)]

    def run(self, line, **options):
        """Runs a shell line to its end and returns its output."""
        return run(self.command(["sh", "-c", line]), **options)

    def start(self, arguments, output):
        """Starts a program whose output goes to the file `output`."""
        with open(output, "wb") as file:
            return subprocess.Popen(
                self.command(arguments), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )

    def remove(self):
        """Ends the programs on this host and removes it. Parts that are gone already are no error."""
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        for pid in map(int, listed.stdout.split()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True, check=False)
        shutil.rmtree(self.etc, ignore_errors=True)


class Net:
    """The hosts. `make` makes them; `remove` removes them, even if only some of them exist."""

    def __init__(self):
        self.hosts = {}

    def __getattr__(self, role):
        try:
            return self.hosts[role]
        except KeyError:
            raise AttributeError(role) from None

    def make(self):
        for role in ("router", "client", "exit", "internet"):
            self.hosts[role] = Host(role)
            self.hosts[role].make()
        self.router.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
        for role, addresses in (("client", CLIENT), ("exit", EXIT), ("internet", INTERNET)):
            self._connect(role, addresses)

    def _connect(self, role, addresses):
        host = self.hosts[role]
        self.router.run(f"ip link add to-{role} type veth peer name eth0 netns {host.name}")
        for address, length in zip(addresses, (24, 64)):
            gateway = address[:-1] + "1"
            self.router.run(f"ip address add {gateway}/{length} dev to-{role}")
            host.run(f"ip address add {address}/{length} dev eth0")
        self.router.run(f"ip link set to-{role} up")
        host.run("ip link set eth0 up")
        for address in addresses:
            host.run(f"ip route add default via {address[:-1]}1")

    def remove(self):
        for host in self.hosts.values():
            host.remove()


def run(command, timeout=60, **options):
    """Runs a command to its end and returns its output. Raises NetError with the last line of its message."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False, **options
        )
    except subprocess.TimeoutExpired as error:
        raise NetError(f"still running after {timeout} s: {' '.join(map(str, command))}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NetError(f"{' '.join(map(str, command))}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout.strip()


def wait_until(condition, what, seconds=15):
    """Waits until `condition` returns something true, and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise NetError(f"gave up after {seconds} s of waiting until {what}")
        time.sleep(0.05)
