"""What a hub was asked for, kept in its folder, where all its processes read it."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import quote

from labkit.system import addresses, files, paths
from labkit.system.errors import LabError

FOLDER = paths.STATE / "hub"
VARIABLE = "LAB_HUB"  # the hub's folder, in the environment of all its processes
SECRET = "cookie-secret"  # the file in the hub's folder by which its cookies are signed and sealed
CHECK_SEAT = "seat-00"  # nobody's: it has no code
SYSTEMD, ACCOUNTS, SLURM, NONE = "systemd", "accounts", "slurm", "none"  # what keeps students apart


@dataclass(frozen=True)
class Settings:
    """What a hub was asked for.

    Attributes
    ----------
    folder, runtime, files : Path
        Where it keeps its state; its sockets; and a folder for each student.
    students : int
        How many seats.
    labs : tuple of str
        The numbers of the labs that are taught; the first is opened at login.
    isolation : str
        What keeps students apart: "systemd" (accounts, and limits by systemd), "accounts" (and limits by cgroups),
        "slurm" (a job for each, all of one account), or "none".
    memory, tasks : int
        Bytes, and processes and threads, that a student can have.
    cores : float
        CPU time that a student can have, in CPUs.
    address, port : str, int
        Where students reach it.
    hub_port : int
        Where servers in Slurm's jobs reach the hub, 0 for none: others reach it at a Unix socket.
    board_port, instructor : int, str
        Where the room's board is, 0 for none; and the address of its page for the instructor.
    cert, key : str
        The files for https; empty for http.
    cpus : tuple of int
        The CPUs that servers start on; empty for all. Whoever measures moves to others for that time.
    variables : dict of str to str
        Set in every student's server.
    hub_address : str
        Where servers reach the hub.
    hours : float
        After which Slurm ends a student's job.
    """

    folder: Path
    runtime: Path
    files: Path
    students: int
    labs: tuple[str, ...]
    isolation: str
    memory: int
    cores: float
    tasks: int
    address: str
    port: int
    hub_port: int
    board_port: int = 0
    instructor: str = ""
    cert: str = ""
    key: str = ""
    cpus: tuple[int, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    hub_address: str = addresses.LOOPBACK
    hours: float = 0

    @property
    def has_accounts(self) -> bool:
        """Whether each seat has an account of its own."""
        return self.isolation in (SYSTEMD, ACCOUNTS)

    @property
    def seats(self) -> tuple[str, ...]:
        """The names of the seats."""
        return tuple(f"seat-{number:02d}" for number in range(1, self.students + 1))

    @property
    def url(self) -> str:
        """Where students reach it."""
        return addresses.url(self.address, self.port, bool(self.cert))

    @property
    def slots(self) -> Path:
        """Where the cores that are lent for measuring are shared out."""
        return self.runtime / "slots"

    @property
    def hub_url(self) -> str:
        """Where servers and the kit's commands reach the hub: nobody else can take the name of its Unix socket."""
        return addresses.url(self.hub_address, self.hub_port, False) if self.hub_port else unix_url(self.hub_socket)

    @property
    def hub_socket(self) -> Path:
        """The hub's Unix socket."""
        return self.runtime / "hub.sock"

    @property
    def proxy_api(self) -> Path:
        """The Unix socket by which the hub tells its proxy what leads where."""
        return self.runtime / "proxy.sock"

    def home(self, seat: str) -> Path:
        """Return a student's own folder."""
        return self.files / seat

    def sockets(self, seat: str) -> Path:
        """Return where a student's server has its sockets."""
        return self.runtime / seat

    def server_socket(self, seat: str) -> Path:
        """Return the Unix socket at which a student's server listens."""
        return self.sockets(seat) / "server.sock"

    def account(self, seat: str) -> str:
        """Return the name of a student's account, and of its systemd unit or cgroup: no other hub here has it."""
        return f"{self.runtime.name}-{seat}"

    def save(self) -> None:
        """Keep them in the hub's folder."""
        kept = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        files.write(self.folder / "settings.json", json.dumps(kept, indent=1))


def unix_url(socket: Path) -> str:
    """Return a Unix socket's address; JupyterHub reads it in small letters."""
    return f"http+unix://{quote(str(socket), safe='')}".lower()


def load(folder: Path) -> Settings | None:
    """Return what the hub of a folder was asked for; None when there is none."""
    try:
        kept = json.loads((folder / "settings.json").read_text())
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise LabError(f"the hub in {paths.shown(folder)} is another user's: do this as whoever started it.") from error
    where = {name: Path(kept[name]) for name in ("folder", "runtime", "files")}
    return Settings(**{**kept, **where, "labs": tuple(kept["labs"]), "cpus": tuple(kept["cpus"])})


def own() -> Settings:
    """Return the settings of the hub that this process belongs to."""
    found = load(Path(os.environ[VARIABLE]))
    assert found
    return found
