"""JupyterHub's configuration, from what the hub was asked for."""

import sys
from pathlib import Path
from typing import Any

from labkit.exercises import copies, sources
from labkit.system.addresses import in_url
from labkit_classroom.hub import hub_log, spawners
from labkit_classroom.hub.authenticator import SeatAuthenticator
from labkit_classroom.hub.settings import CHECK_SEAT, LABS_VARIABLE, SECRET, VARIABLE, State, unix_url

TOKEN = "api-token"  # the file in the hub's folder by which the kit's own commands ask the hub
START_TIMEOUT_S, START_TIMEOUT_SEAT_S = 300, 15  # seconds at least, and for each seat, as they wait for each other
HTTP_TIMEOUT_S = 120
TEMPLATES = Path(__file__).with_name("templates")  # pages of JupyterHub's that are other ones here
SLOW_SPAWN_S = 1  # seconds after which a page with a progress bar is shown
SCOPES = ["admin:users", "admin:servers", "access:servers"]


def apply(c: Any, hub: State) -> None:
    """Set JupyterHub's configuration for a hub."""
    hub_log.set_records_apart()
    c.JupyterHub.bind_url = f"http{'s' if hub.request.cert else ''}://{in_url(hub.request.address)}:{hub.request.port}"
    c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = hub.request.cert, hub.request.key
    c.JupyterHub.hub_bind_url = c.JupyterHub.hub_connect_url = hub.hub_url
    c.JupyterHub.hub_socket_mode = 0o666 if hub.request.has_accounts else 0o600
    c.JupyterHub.db_url = f"sqlite:///{hub.folder}/jupyterhub.sqlite"
    c.JupyterHub.cookie_secret_file = f"{hub.folder}/{SECRET}"
    c.JupyterHub.concurrent_spawn_limit = 0  # it would turn students away; the spawners have them wait instead
    c.JupyterHub.cleanup_servers = c.JupyterHub.cleanup_proxy = True
    c.JupyterHub.template_paths = [str(TEMPLATES)]
    c.JupyterHub.template_vars = {"workshop": hub.request.name}
    c.JupyterHub.tornado_settings = {"slow_spawn_timeout": SLOW_SPAWN_S}
    c.ConfigurableHTTPProxy.command = [sys.executable, "-m", "labkit_classroom.hub.proxy"]
    c.ConfigurableHTTPProxy.api_url = unix_url(hub.proxy_api)
    c.ConfigurableHTTPProxy.pid_file = f"{hub.folder}/proxy.pid"

    c.JupyterHub.authenticator_class = SeatAuthenticator
    c.Authenticator.allowed_users = {CHECK_SEAT, *hub.request.seats}
    c.Authenticator.allow_existing_users = False

    c.JupyterHub.services = [{"name": "kit", "api_token": (hub.folder / TOKEN).read_text()}, *_board(hub)]
    c.JupyterHub.load_roles = [{"name": "kit", "scopes": SCOPES, "services": ["kit"]}]

    c.Spawner.cmd = [sys.executable, "-m", "labkit_classroom.hub.student_server"]
    c.Spawner.notebook_dir = f"{hub.request.files}/{{username}}"
    c.Spawner.default_url = f"/lab/tree/{copies.copy_path(sources.find(hub.request.labs[0]), Path()).name}"
    c.Spawner.start_timeout = start_timeout(hub)
    c.Spawner.http_timeout = HTTP_TIMEOUT_S
    c.Spawner.environment = {
        **hub.variables,
        VARIABLE: str(hub.folder),
        LABS_VARIABLE: ",".join(hub.request.labs),
        "HOME": lambda spawner: str(hub.request.home(spawner.user.name)),
        "LAB_FOLDER": lambda spawner: str(hub.request.home(spawner.user.name)),
        "LAB_SEAT": lambda spawner: spawner.user.name,
        "JUPYTER_RUNTIME_DIR": lambda spawner: str(hub.sockets(spawner.user.name)),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "SHELL": "/bin/bash",
    }
    spawners.configure(c, hub)


def start_timeout(hub: State) -> int:
    """Return the seconds in which a server must be up, when all are started at once."""
    return max(START_TIMEOUT_S, START_TIMEOUT_SEAT_S * hub.request.students)


def _board(hub: State) -> list[dict[str, Any]]:
    """Return the room's board, as a service that the hub starts, starts again and ends, at a port of its own."""
    if not hub.request.board_port:
        return []
    command = [sys.executable, "-m", "labkit.cli", "room", "open"]
    address = ["--address", hub.request.address, "--port", str(hub.request.board_port)]
    tls = ["--cert", hub.request.cert, "--key", hub.request.key] if hub.request.cert else []
    command = [*command, *address, *tls, "--on-hub", "--people", str(hub.request.students), *_timetable(hub)]
    return [{"name": "board", "command": command, "environment": {VARIABLE: str(hub.folder)}}]


def _timetable(hub: State) -> list[str]:
    """Return the board's options for its timetable, whose first day stays the same when the board is started again."""
    asked = hub.request.timetable
    return [*asked, *(["--date", hub.first_day] if asked and "--date" not in asked else [])]
