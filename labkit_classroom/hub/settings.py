"""A hub's settings, stored in its folder `.lab/hub`, which only its owner can enter."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from labkit.system import addresses, files, paths
from labkit.system.errors import LabError

FOLDER = paths.STATE / "hub"
VARIABLE = "LAB_HUB"  # the hub's folder, in the environment of JupyterHub and its proxy
LABS_VARIABLE = "LAB_LABS"  # the labs that are taught, in the environment of a student's server
FILE, TOKEN, OPEN = "settings.json", "api-token", "open"  # files in the folder; `OPEN`: students may log in
LOG = "hub.log"
CHECK_SEAT = "seat-00"  # has no code: its server is used to verify students' servers
SYSTEMD, ACCOUNTS, TRIAL = "systemd", "accounts", "trial"  # modes


@dataclass(frozen=True)
class Settings:
    """The instructor's request, which decides equality, and the values chosen for it."""

    files: Path  # parent of the students' folders
    students: int  # the number of seats
    labs: tuple[str, ...]  # numbers of the labs that are taught; the first one opens after login
    mode: str  # SYSTEMD: an account and a unit with limits per seat; ACCOUNTS: an account; TRIAL: neither
    memory: int  # limit per student in bytes; 0 for none
    address: str  # where students connect to the hub
    port: int
    cert: str = ""  # files for https; empty for http
    key: str = ""
    runtime: Path = field(default=Path(), compare=False)  # parent of kernels' sockets, whose paths must be short
    hub_port: int = field(default=0, compare=False)  # loopback ports of JupyterHub, and of its proxy's API
    api_port: int = field(default=0, compare=False)
    cpus: tuple[int, ...] = field(default=(), compare=False)  # that students' servers start on; empty for all
    variables: dict[str, str] = field(default_factory=dict, compare=False)  # in the environment of students' servers

    @property
    def has_accounts(self) -> bool:
        """Whether each seat has its own account."""
        return self.mode != TRIAL

    @property
    def seats(self) -> tuple[str, ...]:
        """The seats' names, which are also the names of users and accounts."""
        return tuple(f"seat-{number:02d}" for number in range(1, self.students + 1))

    @property
    def all_seats(self) -> tuple[str, ...]:
        """The seats' names and `CHECK_SEAT`."""
        return (CHECK_SEAT, *self.seats)

    @property
    def url(self) -> str:
        """The address that students open."""
        return addresses.url(self.address, self.port, bool(self.cert))

    @property
    def hub_url(self) -> str:
        """JupyterHub's own address."""
        return f"http://{addresses.LOOPBACK}:{self.hub_port}"

    def home(self, seat: str) -> Path:
        """Return a student's folder."""
        return self.files / seat

    def unit(self, seat: str) -> str:
        """Return SystemdSpawner's name for a seat's unit."""
        return f"jupyter-{seat}-singleuser"

    def save(self, folder: Path) -> None:
        """Write the settings to the hub's folder."""
        files.write(folder / FILE, json.dumps(asdict(self), indent=1, default=str))


def load(folder: Path) -> Settings | None:
    """Return the settings of the hub in a folder; None if there is none.

    Raises
    ------
    LabError
        If the hub belongs to another user.
    """
    try:
        entry = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise LabError(f"the hub in {paths.shown(folder)} belongs to another user; run this as that user.") from error
    entry |= {name: Path(entry[name]) for name in ("files", "runtime")}
    return Settings(**entry | {name: tuple(entry[name]) for name in ("labs", "cpus")})
