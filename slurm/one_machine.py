"""A real Slurm of four nodes on one machine, private to a directory, for developing and testing.

    python slurm/one_machine.py install      # the Debian packages (root); does nothing where they are there
    python slurm/one_machine.py up [DIR]     # DIR: .slurm in this repository; --no-accounting: without a database
    python slurm/one_machine.py check [DIR]
    python slurm/one_machine.py down [DIR]

Nothing is written but DIR and one directory under /tmp, ports are open on loopback only, and clusters in several
directories do not see each other. Each node has a host name of its own, n1 to n4, in its own namespace; where those are
forbidden, `up` says so: the nodes then share the machine's name and listen on all its addresses, behind munge.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pwd
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGES = {"slurmctld": "slurm-wlm", "munged": "munge", "slurmdbd": "slurmdbd", "mariadbd": "mariadb-server"}
NODES = ("n1", "n2", "n3", "n4")
SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")
FOLDERS = ("gpu", "hosts", "munge", "mysql", "run", "spool", "state")

CONFIGURATION = {
    "slurm.conf": """\
ClusterName=one_machine
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
# Slurm lets a requeued job wait until the credential of its last start has expired, by default two minutes.
AuthInfo=socket={link}/munge/socket,cred_expire=5
StateSaveLocation={link}/state
SlurmdSpoolDir={link}/spool/%n
SlurmctldPidFile={link}/state/slurmctld.pid
SlurmdPidFile={link}/spool/%n.pid
# Where there are no cgroups to track processes and bind tasks with.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Otherwise a job that asks for no memory takes all of a node.
DefMemPerCPU=1000
# Believe the CPUs and memory of the node line, not the machine.
SlurmdParameters=config_overrides
# A node that was down is used again as soon as it registers.
ReturnToService=2
JobRequeue=1
# Jobs start within a second, not at the next of rounds that are half a minute apart.
SchedulerParameters=sched_interval=1,sched_min_interval=100000,batch_sched_delay=0,bf_interval=1
# A dead node is noticed after 10 to 20 seconds, and a client of a dead controller gives up after 5.
SlurmdTimeout=8
MessageTimeout=5
# The controller looks at time limits every 30 s: a job ends up to 30 s late, and the signal of --signal=USR2@N comes up
# to 30 s early. With --time=1, USR2@20 comes 10 to 40 s after the start, USR2@50 after 0 to 30 s, which may be before
# Python has a handler, and the end comes after 60 to 90 s.
OverTimeLimit=0
KillWait=5
# Finished jobs stay in squeue for this long.
MinJobAge=300
# Small, so that an array has to be cut into pieces.
MaxArraySize=10
# A job of `main` that a job of `urgent` preempts gets CONT and TERM in its steps, or, with
# SlurmctldParameters=preempt_send_user_signal, the signal of its --signal; it is killed and requeued after GraceTime.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# `sacct -c` answers without a database.
JobCompType=jobcomp/filetxt
JobCompLoc={link}/log/jobcomp.txt
{accounting}
GresTypes=gpu
NodeName=n[1-4] NodeHostname={node_host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=4000 Gres=gpu:h100:8
PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 PriorityTier=1 GraceTime=15
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=ALL MaxTime=5 PriorityTier=1 GraceTime=15
""",
    # Only daemons listen at the address of their host name alone, 127.0.0.1 in their namespace; srun must not.
    "daemons.conf": "Include {link}/slurm.conf\n{listen}\n",
    "slurmdbd.conf": """\
AuthInfo=socket={link}/munge/socket
DbdHost=localhost
DbdPort={dbd_port}
SlurmUser={user}
PidFile={link}/state/slurmdbd.pid
{listen}
StorageType=accounting_storage/mysql
StorageUser=root
StorageLoc=slurm
""",
    # slurmd does not start without a cgroup plugin, and looking for the right one fails where none is mounted.
    "cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
    # With a count instead of files the nodes are refused.
    "gres.conf": "NodeName=n[1-4] Name=gpu Type=h100 File={link}/gpu/[0-7]\n",
}
LISTEN = "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"
# For the database AccountingStoragePass, not AuthInfo, names the socket of munge.
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStoragePass={link}/munge/socket
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}"""
# MariaDB with little to write at its first start.
SMALL = ("log-file-size=4M", "buffer-pool-size=16M", "flush-log-at-trx-commit=0", "flush-method=nosync")


class Problem(Exception):
    """What went wrong, for the person who typed the command."""


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def cmdline(pid: int) -> str:
    """The command line of a process; empty when it is gone or a zombie that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def free_ports(count: int) -> int:
    """The first of so many free ports in a row, below those that the kernel gives to outgoing connections."""
    while True:
        first = random.randrange(15000, 32000)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def answers(address: str | int) -> bool:
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as probe:
        return probe.connect_ex(address if isinstance(address, str) else ("127.0.0.1", address)) == 0


def signal_processes(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def which(program: str) -> str:
    found = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))
    if found is None:
        raise Problem(f"{program} is not installed: python slurm/one_machine.py install")
    return found


def may_unshare() -> list[str]:
    """The command under which a daemon has a host name and an /etc/hosts of its own; empty where that is forbidden."""
    unshare = ["unshare", "--uts", "--mount", "--propagation=slave"]
    for command in (unshare, [*unshare, "--user", "--map-current-user", "--keep-caps"]):  # root; other users
        attempt = [*command, "sh", "-c", "hostname n1 && mount --bind /etc/hosts /etc/hosts"]
        if subprocess.run(attempt, capture_output=True, check=False).returncode == 0:
            return command
    return []


@dataclass
class Cluster:
    """A cluster that is up, or was."""

    directory: Path
    link: str  # short and without spaces, to the directory: a socket's path may have 107 bytes, slurm.conf no quotes
    accounting: bool
    unshare: list[str]  # the command that gives each daemon of Slurm its own host name and /etc/hosts, if any
    port: int  # of the controller; the database's and the nodes' follow

    # -- what a caller uses

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.directory / "slurm.conf")}

    def pids(self) -> dict[str, int]:
        """The daemons that live."""
        return {name: pid for name in self.names() if (pid := self._pid(name))}

    def names(self) -> list[str]:
        return ["munged", *(["mariadbd", "slurmdbd"] if self.accounting else []), "slurmctld", *NODES]

    def run(self, *command: str, timeout: float = 30) -> str:
        env = {**os.environ, **self.environment}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=timeout).stdout

    def set_parameter(self, key: str, value: str | None) -> None:
        """Change, add or (None) remove a line of slurm.conf while the cluster runs."""
        conf = self.directory / "slurm.conf"
        lines = [line for line in conf.read_text().splitlines() if not line.startswith(f"{key}=")]
        new = conf.with_suffix(".new")
        new.write_text("\n".join([*lines, *([f"{key}={value}"] if value is not None else []), ""]))
        new.replace(conf)  # a command that reads it now sees the old or the new one, whole
        self.run("scontrol", "reconfigure")

    def stop_controller(self) -> None:
        self._stop(["slurmctld"])

    def start_controller(self) -> None:
        self._start("slurmctld")
        self._await("slurmctld", lambda: "UP" in self._try("scontrol", "ping"))

    def kill_node(self, node: str) -> None:
        """All processes of the node are gone at once, as when the machine dies.

        The controller sees it 10 to 20 seconds later; if the node is back by then, half a minute later or more.
        """

        def gone() -> bool:
            pids = list(self._processes(node))
            signal_processes(pids, signal.SIGKILL)
            return not pids

        if not wait_until(gone, 15):
            raise Problem(f"could not end {node}")

    def start_node(self, node: str) -> None:
        self._start(node)
        self._await(node, lambda: answers(self.node_port(node)))
        if self._node_state(node).startswith(("down", "drain")):
            self._try("scontrol", "update", f"nodename={node}", "state=resume")
        self._await(node, lambda: self._node_state(node) in ("idle", "mixed", "allocated", "completing"))

    def down(self) -> None:
        """End the daemons and whatever runs on the nodes, and remove what they wrote."""
        for node in NODES:
            self.kill_node(node)
        self._stop(["slurmctld", "slurmdbd"])
        self._stop(["mariadbd", "munged"])
        shutil.rmtree(Path(self.link).parent, ignore_errors=True)
        for name in FOLDERS:
            shutil.rmtree(self.directory / name, ignore_errors=True)
        for name in ("slurmdbd", *CONFIGURATION, "cluster.json"):
            (self.directory / name).unlink(missing_ok=True)

    # -- daemons

    def node_port(self, node: str) -> int:
        return self.port + 2 + NODES.index(node)

    def _command(self, name: str) -> list[str]:
        link = self.link
        if name == "munged":  # --force, because it dislikes a socket that other users cannot reach
            keys = ("socket", "key-file", "pid-file", "log-file", "seed-file")
            paths = [f"--{key}={link}/munge/{key}" for key in keys]
            return [which(name), "--foreground", "--force", "--num-threads=10", *paths]
        if name == "mariadbd":
            paths = [f"--socket={link}/mysql.socket", f"--pid-file={link}/state/mariadbd.pid"]
            return [which(name), *self._database_options(), "--skip-networking", *paths]
        if name == "slurmdbd":
            return [f"{link}/slurmdbd", "-D"]  # through a link of ours, since no argument says whose it is
        slurm = ["-D", "-f", f"{link}/daemons.conf"]
        return [which("slurmctld"), *slurm] if name == "slurmctld" else [which("slurmd"), *slurm, "-N", name]

    def _database_options(self) -> list[str]:
        user = f"--user={pwd.getpwuid(os.getuid()).pw_name}"
        return ["--no-defaults", f"--datadir={self.link}/mysql", user, *(f"--innodb-{option}" for option in SMALL)]

    def _pid(self, name: str) -> int:
        """The process id of a daemon of this cluster; 0 when it does not run, whatever its pid file says."""
        try:
            pid = int((self.directory / "run" / name).read_text())
        except (OSError, ValueError):
            return 0
        command = cmdline(pid)
        return pid if self.link in command and (f"-N {name}" if name in NODES else name) in command else 0

    def _processes(self, node: str) -> Iterator[int]:
        """What runs on a node: what sees its hosts file, or has its variables, which titles of processes overwrite."""
        mount = f"{self._id}.{node} /etc/hosts "
        variables = {f"SLURM_CONF={self.link}/daemons.conf", f"SLURMD_NODENAME={node}"}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                found = mount in (entry / "mountinfo").read_text(errors="replace")
                found = found or variables <= set((entry / "environ").read_text(errors="replace").split("\0"))
                if found and cmdline(int(entry.name)):
                    yield int(entry.name)

    @property
    def _id(self) -> str:
        return Path(self.link).parent.name

    def _start(self, name: str) -> None:
        if self._pid(name):
            return
        command = self._command(name)
        if self.unshare and name not in ("munged", "mariadbd"):
            hosts = self.directory / "hosts" / f"{self._id}.{name}"
            hosts.write_text(f"127.0.0.1 {name} {' '.join(NODES)}\n{Path('/etc/hosts').read_text()}")
            inside = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
            command = [*self.unshare, "sh", "-c", inside, name, f"{self.link}/hosts/{hosts.name}", *command]
        # Signals that this process ignores must not be ignored by the daemon and its jobs.
        detached = ["env", "--default-signal", "setsid", "--fork", "sh", "-c", 'echo $$ >"$0" && exec "$@"']
        pid_file = self.directory / "run" / name
        pid_file.unlink(missing_ok=True)
        env = {"PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *SBIN]), "LANG": "C.UTF-8"}
        env |= {"SLURM_CONF": f"{self.link}/daemons.conf", "MYSQL_UNIX_PORT": f"{self.link}/mysql.socket"}
        env |= {"SLURMD_NODENAME": name} if name in NODES else {}
        with (self.directory / "log" / f"{name}.log").open("ab") as log:
            whole = [*detached, str(pid_file), *command]
            subprocess.run(whole, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
        wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), 60)

    def _await(self, name: str, ready: Callable[[], bool], seconds: float = 60) -> None:
        def gone() -> bool:  # for a while: a process has no command line in the moment in which it becomes another
            return not wait_until(lambda: bool(self._pid(name)), 1)

        if not wait_until(lambda: ready() or gone(), seconds) or gone():
            raise self._did_not_start(name)

    def _did_not_start(self, name: str) -> Problem:
        lines = (self.directory / "log" / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
        return Problem("\n    ".join([f"{name} did not start; the end of its log:", *lines]))

    def _stop(self, names: list[str]) -> None:
        pids = {name: pid for name in names if (pid := self._pid(name))}
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal_processes((pid for name in pids if (pid := self._pid(name))), number)
            if wait_until(lambda: not any(self._pid(name) for name in pids), 15):
                return
        raise Problem(f"could not end {', '.join(pids)}")

    def _try(self, *command: str) -> str:
        try:
            return self.run(*command)
        except (subprocess.SubprocessError, OSError):
            return ""

    def _node_state(self, node: str) -> str:
        return self._try("sinfo", "-h", "-N", "-p", "main", "-n", node, "-o", "%T").strip()

    # -- starting

    def write(self) -> None:
        """The files that the daemons read."""
        for name in ("log", *FOLDERS):
            (self.directory / name).mkdir(exist_ok=True)
        for number in range(8):
            (self.directory / "gpu" / str(number)).touch()
        (self.directory / "munge" / "key-file").touch(0o600)
        (self.directory / "munge" / "key-file").write_bytes(os.urandom(128))
        if self.accounting:
            (self.directory / "slurmdbd").symlink_to(which("slurmdbd"))
        host = socket.gethostname().split(".")[0]
        values = {
            "link": self.link,
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "host": "slurmctld" if self.unshare else host,
            "node_host": "n[1-4]" if self.unshare else host,
            "listen": LISTEN if self.unshare else "",
            "port": self.port,
            "dbd_port": self.port + 1,
            "first": self.node_port(NODES[0]),
            "last": self.node_port(NODES[-1]),
        }
        values["accounting"] = ACCOUNTING.format_map(values) if self.accounting else ""
        (self.directory / "slurmdbd.conf").touch(0o600)  # Slurm insists
        for name, text in CONFIGURATION.items():
            (self.directory / name).write_text(text.format_map(values))
        (self.directory / ".gitignore").write_text("*\n")

    def start(self) -> None:
        """Start what does not run, and wait until all of it answers."""
        running = self.pids()
        self._start("munged")
        if self.accounting and "mariadbd" not in running:
            if not os.listdir(self.directory / "mysql"):
                command = [which("mariadb-install-db"), *self._database_options(), "--skip-test-db"]
                command += ["--auth-root-authentication-method=normal", "--skip-name-resolve"]
                with (self.directory / "log" / "mariadbd.log").open("ab") as log:
                    if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
                        raise self._did_not_start("mariadbd")
            self._start("mariadbd")
        self._await("munged", lambda: answers(f"{self.link}/munge/socket"))
        if self.accounting:
            self._await("mariadbd", lambda: answers(f"{self.link}/mysql.socket"))
            self._start("slurmdbd")
            self._await("slurmdbd", lambda: answers(self.port + 1))
        self.start_controller()
        for node in NODES:
            self._start(node)
        for node in NODES:
            self.start_node(node)


def find(directory: Path) -> Cluster | None:
    """The cluster of a directory, as `up` recorded it."""
    record = directory / "cluster.json"
    try:
        return Cluster(directory, **json.loads(record.read_text())) if record.exists() else None
    except (ValueError, TypeError) as error:
        raise Problem(f"{record} was not written by this version of one_machine.py: {error}") from error


def up(directory: str | Path, accounting: bool = True) -> Cluster:
    """The cluster of a directory, started if it is not up; a part that died is started again."""
    directory = Path(directory).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = find(directory)
        if cluster and cluster.pids():
            if cluster.accounting != accounting:
                kind = "with" if cluster.accounting else "without"
                raise Problem(f"the cluster in {directory} is up {kind} accounting: `down` first")
            cluster.start()
            return cluster
        if cluster:
            cluster.down()  # what a power cut left
        cluster = create(directory, accounting)
        try:
            cluster.write()
            cluster.start()
        except BaseException:
            cluster.down()
            raise
        return cluster
    finally:
        os.close(lock)


def create(directory: Path, accounting: bool) -> Cluster:
    if set(os.listdir(directory)) - {".gitignore", "log"}:
        raise Problem(f"{directory} is not empty and holds no cluster: give a directory of its own")
    link = Path(tempfile.mkdtemp(prefix="rlsweep-slurm-", dir="/tmp")) / "d"
    link.symlink_to(directory)
    cluster = Cluster(directory, str(link), accounting, may_unshare(), free_ports(2 + len(NODES)))
    record = {key: value for key, value in asdict(cluster).items() if key != "directory"}
    (directory / "cluster.json").write_text(json.dumps(record))
    return cluster


def install() -> None:
    missing = []
    for program, package in PACKAGES.items():
        try:
            which(program)
        except Problem:
            missing.append(package)
    if not missing:
        return print("all there")
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if not shutil.which("apt-get"):
        raise Problem(f"this machine has no apt-get; install what your system calls {', '.join(missing)}")
    if os.getuid() != 0:
        raise Problem(f"only root may install: sudo apt-get update && sudo {' '.join(command)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for each in (["apt-get", "update"], command):
        if subprocess.run(each, env=env, check=False).returncode:
            raise Problem(f"failed: {' '.join(each)}")


def check(directory: Path) -> bool:
    cluster = find(directory)
    if cluster is None:
        print(f"no cluster in {directory}")
        return False
    pids = cluster.pids()
    for name in cluster.names():
        state = cluster._node_state(name) if name in NODES else ""
        print(f"{name:10} {'pid ' + str(pids[name]) if name in pids else 'not running':12} {state}")
    names = sorted(cluster._try("srun", "-N4", "--immediate=20", "hostname").split())
    print(f"srun -N4 hostname: {' '.join(names) or 'no answer in 30 seconds'}")
    return len(pids) == len(cluster.names()) and len(names) == len(NODES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["install", "up", "check", "down"])
    parser.add_argument("directory", nargs="?", type=Path, default=Path(__file__).parents[1] / ".slurm")
    parser.add_argument("--no-accounting", action="store_true", help="no slurmdbd and MariaDB; starts sooner")
    options = parser.parse_args()
    directory = options.directory.resolve()
    try:
        if options.action == "install":
            install()
        elif options.action == "up":
            already = (cluster := find(directory)) is not None and len(cluster.pids()) == len(cluster.names())
            cluster = up(directory, not options.no_accounting)
            print("is up already" if already else "is up")
            if not cluster.unshare:
                print(
                    "namespaces are forbidden here: the nodes share this machine's name and listen on all its addresses"
                )
            print(f"export SLURM_CONF={shlex.quote(cluster.environment['SLURM_CONF'])}")
        elif options.action == "check":
            sys.exit(0 if check(directory) else 1)
        elif cluster := find(directory):
            cluster.down()
    except Problem as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
