"""No other user can use the small Slurm, which runs jobs as its owner: two users, real attacks.

The stranger has Slurm's programs, a copy of the configuration with any changes that may help, and a munged with its own
key.
"""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from labkit.slurm import supervisor
from labkit.system import processes
from labkit.system.processes import wait_until

pytestmark = pytest.mark.slow  # creates users, each of whom starts a Slurm
SECRET = "what-only-the-owner-may-read"
ENVIRON = {"PATH": processes.search_path(), "LC_ALL": "C"}


class Users(NamedTuple):
    owner: str
    stranger: str


def run_as(user: str, *, everywhere: bool = False) -> list[str]:
    """Return the prefix that runs a command as a user, optionally with the right to read all files."""
    account = pwd.getpwnam(user)
    capabilities = "+dac_read_search" if everywhere else "-all"
    return [
        *("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"),
        *(f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"),
    ]


@pytest.fixture(scope="module")
def users(slurm_is_installed, two_users_can_be_made):
    """Yield two users; remove them after the tests."""
    names = Users(f"lab-owner-{os.getpid()}", f"lab-other-{os.getpid()}")
    try:
        for name in names:
            subprocess.run(["useradd", "--no-create-home", "--shell=/bin/sh", name], check=True, capture_output=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["userdel", name], capture_output=True)


class Machine:
    """A user's small Slurm with a running job, and a stranger with a folder and the configuration."""

    def __init__(self, folder: Path, owner: str, stranger: str) -> None:
        self.owner, self.stranger = owner, stranger
        self.link, self.loot = folder / "owner" / "cluster", folder / "stranger"
        self.secret = folder / "owner" / "secret"
        for path, user in ((folder / "owner", owner), (self.loot, stranger)):
            path.mkdir(mode=0o755)
            shutil.chown(path, user)
        self.secret.touch(mode=0o600)
        self.secret.write_text(SECRET)
        shutil.chown(self.secret, owner)

    def python(self, text: str) -> str:
        """Run Python as the owner, who might not be allowed to enter this Python's folder."""
        command = [sys.executable, "-c", textwrap.dedent(text)]
        if self.owner != "root":
            command = run_as(self.owner, everywhere=True) + command
        done = subprocess.run(command, cwd="/", env=os.environ | ENVIRON, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self) -> None:
        self.python(f"""
            from pathlib import Path
            from labkit.slurm.cluster import Cluster
            Cluster(Path({str(self.link)!r})).up(1, until={os.getpid()})
        """)
        self.folder = self.link.readlink()
        self.conf = (self.folder / "slurm.conf").read_text()
        self.job = self.by_owner("sbatch --parsable --output=/dev/null --wrap 'sleep 600'").strip()
        assert wait_until(self.runs, 20.0)

    def end(self) -> None:
        self.python(f"""
            from pathlib import Path
            from labkit.slurm.cluster import Cluster
            Cluster(Path({str(self.link)!r})).down()
        """)

    def by_owner(self, line: str) -> str:
        environ = ENVIRON | supervisor.variables(self.folder)
        command = [*run_as(self.owner), "sh", "-c", line]
        done = subprocess.run(
            command, cwd=self.link.parent, env=environ, capture_output=True, text=True, timeout=40, check=True
        )
        return done.stdout

    def by_stranger(self, line: str, **environ: str) -> subprocess.CompletedProcess:
        command = [*run_as(self.stranger), "timeout", "20", "sh", "-c", line]
        return subprocess.run(command, cwd=self.loot, env=ENVIRON | environ, capture_output=True, text=True, timeout=60)

    def runs(self) -> bool:
        return self.by_owner(f"squeue -h -o %T -j {self.job}").strip() == "RUNNING"

    def try_all(self, conf: str, more: str = "") -> None:
        """Have the stranger list, submit, cancel and reconfigure with this configuration: without effect."""
        for name, text in (("slurm.conf", conf), ("cgroup.conf", (self.folder / "cgroup.conf").read_text())):
            (self.loot / name).write_text(text)
            (self.loot / name).chmod(0o644)
        steal = f"cat {self.secret}; touch {self.loot}/ran"
        changes = (
            f"srun {more} sh -c {shlex.quote(steal)}",
            f"sbatch --parsable --output={self.loot}/out --wrap {shlex.quote(steal)}",
            f"scancel -v {self.job}",
            # Not `scancel --ctld`: Slurm 24.11.5 refuses it as well, but its controller then answers no one.
            f"scontrol requeue {self.job}",
            f"scontrol update PartitionName={supervisor.PARTITION} RootOnly=NO",
            "scontrol shutdown",
        )
        looks = ("sinfo -h", "squeue -h", f"scontrol show job {self.job}", f"sattach {self.job}.batch")
        environ = {"SLURM_CONF": str(self.loot / "slurm.conf")}
        with ThreadPoolExecutor(len(changes + looks)) as pool:
            done = pool.map(lambda line: self.by_stranger(line, **environ), changes + looks)
            outcomes = dict(zip(changes + looks, done, strict=True))
        print(*(f"{line}: {done.returncode} {done.stdout} {done.stderr}" for line, done in outcomes.items()), sep="\n")
        assert not [line for line, done in outcomes.items() if done.stdout.strip()]
        assert not [line for line in changes if "scancel" not in line and outcomes[line].returncode == 0]
        assert self.is_untouched()

    def refusals(self, daemon: str) -> int:
        """Return the number of requests that a daemon has refused for their credentials, from its log."""
        return (self.folder / "log" / f"{daemon}.log").read_text(errors="replace").lower().count("invalid credential")

    def is_untouched(self) -> bool:
        """Return whether the owner's job is running, and no other job ran."""
        wait_until((self.loot / "ran").exists, 3.0)
        stolen = any(SECRET in path.read_text(errors="replace") for path in self.loot.iterdir() if path.is_file())
        alone = self.by_owner("squeue -h -t all -o %i").split() == [self.job]
        return alone and self.runs() and not (self.loot / "ran").exists() and not stolen


@pytest.fixture(scope="module", params=["root", "an ordinary user"])
def machine(request, users):
    owner = "root" if request.param == "root" else users.owner
    with tempfile.TemporaryDirectory(prefix="labkit-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        target = Machine(Path(name), owner, users.stranger)
        try:
            target.start()
            yield target
        finally:
            target.end()
    assert not target.folder.exists()


@pytest.fixture(scope="module")
def munged(machine):
    """Yield the socket of a munged that the stranger has started with the stranger's own key."""
    key, socket = machine.loot / "key", machine.loot / "socket"
    machine.by_stranger(f"head -c 128 /dev/urandom >{key}; chmod 600 {key}")
    files = (f"--{name}={machine.loot}/{name}" for name in ("pid-file", "seed-file", "log-file"))
    command = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}", *files]
    with subprocess.Popen([*run_as(machine.stranger), *command], env=ENVIRON, stderr=subprocess.DEVNULL) as process:
        try:
            assert wait_until(socket.exists, 20.0)
            yield socket
        finally:
            process.terminate()


def test_the_owner_can_do_everything_that_the_stranger_tries(machine):
    """Otherwise it would prove nothing that a stranger can't."""
    assert machine.by_owner(f"srun --overlap --jobid={machine.job} cat {machine.secret}") == SECRET
    assert machine.by_owner("sinfo -h")
    assert machine.runs()


def test_a_stranger_can_read_none_of_its_files(machine):
    folder = machine.folder
    for line in (f"ls {folder}", f"cat {folder}/munge.key", f"cat {folder}/slurm.conf", f"ls {folder}/spool/n1"):
        assert machine.by_stranger(line).returncode != 0
    assert (folder.stat().st_mode & 0o777, (folder / "munge.socket").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_stranger_gets_nothing_through_the_owners_munged(machine):
    machine.try_all(machine.conf)


def test_a_stranger_gets_nothing_without_credentials(machine):
    machine.try_all(machine.conf.replace("AuthType=auth/munge", "AuthType=auth/none"))


def test_a_stranger_gets_nothing_from_a_node_by_bypassing_the_controller(machine, munged):
    """As SlurmUser of their own configuration, strangers can send a node jobs that no controller knows."""
    conf = machine.conf.replace(f"{machine.folder}/munge.socket", str(munged))
    conf = conf.replace(f"User={machine.owner}\n", f"User={machine.stranger}\n")
    machine.try_all(conf, more="--no-allocate --nodelist=n1")


@pytest.mark.parametrize(
    ("daemon", "line"), [("slurmctld", "squeue"), ("n1", "timeout 20 srun --no-allocate --nodelist=n1 true")]
)
def test_a_credential_from_another_key_is_refused_for_every_user(machine, munged, daemon, line):
    conf = machine.loot / f"for-{daemon}.conf"
    conf.write_text(machine.conf.replace(f"{machine.folder}/munge.socket", str(munged)))
    conf.chmod(0o644)
    (machine.loot / "cgroup.conf").write_text((machine.folder / "cgroup.conf").read_text())
    (machine.loot / "cgroup.conf").chmod(0o644)
    before = machine.refusals(daemon)
    assert machine.by_owner(f"SLURM_CONF={conf} {line} && echo done || true").strip() == ""
    assert machine.refusals(daemon) > before
    assert machine.is_untouched()


def test_a_stranger_with_a_credential_finds_no_partition_and_sees_nothing(machine):
    """Even if the folder were open, Slurm itself would refuse everyone but the owner and root."""
    socket = machine.folder / "munge.socket"
    machine.folder.chmod(0o711)
    socket.chmod(0o666)
    try:
        machine.try_all(machine.conf)
    finally:
        socket.chmod(0o600)
        machine.folder.chmod(0o700)


def test_a_stranger_sees_the_owners_name_and_cannot_take_it_down(machine):
    """The checkout may be shared: everyone can read its link."""
    text = "from pathlib import Path; from labkit.slurm.cluster import Cluster; "
    text += f"Cluster(Path({str(machine.link)!r})).down()"
    command = [*run_as(machine.stranger, everywhere=True), sys.executable, "-c", text]
    done = subprocess.run(command, cwd="/", env=os.environ | ENVIRON, capture_output=True, text=True, timeout=60)
    assert "LabError" in done.stderr
    assert machine.is_untouched()
