"""What a hub is asked for, and what becomes of it: kept in its folder, where all its processes read it."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import quote

from labkit.system import addresses, files, paths
from labkit.system.errors import LabError

FOLDER = paths.STATE / "hub"
VARIABLE = "LAB_HUB"  # the hub's folder, in the environment of all its processes
LABS_VARIABLE = "LAB_LABS"  # the labs that are taught, in a student's server
FILE = "state.json"  # in the hub's folder
SECRET = "cookie-secret"  # the file in the hub's folder by which its cookies are signed and sealed
CHECK_SEAT = "seat-00"  # a seat of nobody's, without a code, whose server is looked at
SYSTEMD, ACCOUNTS, SLURM, NONE = "systemd", "accounts", "slurm", "none"  # isolations: what keeps students apart


@dataclass(frozen=True)
class Request:
    """A request for a hub: one that was killed goes on for an equal request alone.

    Attributes
    ----------
    files : Path
        Where each student has a folder.
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
    board_port : int
        Where the room's board is, 0 for none.
    cert, key : str
        The files for https; empty for http.
    cpus : tuple of int
        The CPUs that servers start on; empty for all. Whoever measures moves to others for that time.
    hours : float
        After which Slurm ends a student's job.
    name : str
        The workshop's, on the login page.
    timetable : tuple of str
        The options of `lab room open` that give the board its timetable; none for a board without.
    """

    files: Path
    students: int
    labs: tuple[str, ...]
    isolation: str
    memory: int
    cores: float
    tasks: int
    address: str
    port: int
    board_port: int = 0
    cert: str = ""
    key: str = ""
    cpus: tuple[int, ...] = ()
    hours: float = 0
    name: str = ""
    timetable: tuple[str, ...] = ()

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
        """The address at which students reach the hub."""
        return addresses.url(self.address, self.port, bool(self.cert))

    def home(self, seat: str) -> Path:
        """Return a student's own folder."""
        return self.files / seat


@dataclass(frozen=True)
class State:
    """A hub as it was made: its request, its places on this machine, its variables.

    Attributes
    ----------
    request : Request
        What the hub was asked for.
    folder, runtime : Path
        Where it keeps what it needs to go on, and its sockets.
    hub_address, hub_port : str, int
        Where servers in Slurm's jobs reach the hub; port 0 for none: others reach it at a Unix socket.
    variables : dict of str to str
        Set in every student's server.
    instructor : str
        The address of the board's page for the instructor; empty without a board.
    first_day : str
        The date on which the hub was made: the first day of a timetable without one.
    """

    request: Request
    folder: Path
    runtime: Path
    hub_address: str = addresses.LOOPBACK
    hub_port: int = 0
    variables: dict[str, str] = field(default_factory=dict)
    instructor: str = ""
    first_day: str = ""

    @property
    def slots(self) -> Path:
        """The folder in which the cores that are lent for measuring are shared out."""
        return self.runtime / "slots"

    @property
    def hub_url(self) -> str:
        """The hub's address for servers and the kit's commands: nobody else can take the name of its Unix socket."""
        return addresses.url(self.hub_address, self.hub_port, False) if self.hub_port else unix_url(self.hub_socket)

    @property
    def hub_socket(self) -> Path:
        """The hub's Unix socket."""
        return self.runtime / "hub.sock"

    @property
    def proxy_api(self) -> Path:
        """The Unix socket by which the hub tells its proxy what leads where."""
        return self.runtime / "proxy.sock"

    def sockets(self, seat: str) -> Path:
        """Return the folder of a student's server's sockets."""
        return self.runtime / seat

    def server_socket(self, seat: str) -> Path:
        """Return the Unix socket at which a student's server listens."""
        return self.sockets(seat) / "server.sock"

    def account(self, seat: str) -> str:
        """Return the name of a student's account, and of its systemd unit or cgroup: no other hub here has it."""
        return f"{self.runtime.name}-{seat}"

    def save(self) -> None:
        """Write the state to the hub's folder."""
        files.write(self.folder / FILE, json.dumps(asdict(self), indent=1, default=str))


def unix_url(socket: Path) -> str:
    """Return a Unix socket's address; JupyterHub reads it in small letters."""
    return f"http+unix://{quote(str(socket), safe='')}".lower()


def load(folder: Path) -> State | None:
    """Return the state of the hub of a folder; None when there is none."""
    try:
        state = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise LabError(f"the hub in {paths.shown(folder)} is another user's: do this as whoever started it.") from error
    request = state["request"]
    request |= {"files": Path(request["files"])}
    request |= {name: tuple(request.get(name, ())) for name in ("labs", "cpus", "timetable")}
    state |= {"request": Request(**request), "folder": Path(state["folder"]), "runtime": Path(state["runtime"])}
    return State(**state)


def own() -> State:
    """Return the state of the hub that this process belongs to."""
    state = load(Path(os.environ[VARIABLE]))
    assert state
    return state
