"""JupyterHub's configuration for `./lab hub up`, which writes the settings read here."""

import os
import resource
import sys
from pathlib import Path

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from systemdspawner import SystemdSpawner

from labkit.exercises import catalogue
from labkit.system.addresses import in_url
from labkit_classroom.hub import codes, settings
from labkit_classroom.hub.authenticator import SeatAuthenticator

c = get_config()  # type: ignore[name-defined]  # noqa: F821  # defined by traitlets
folder = Path(os.environ[settings.VARIABLE])
hub = settings.load(folder)
assert hub
token = (folder / settings.TOKEN).read_text(encoding="utf-8")

START_TIMEOUT_S = 300
MAX_TASKS = max(2048, 64 * (os.cpu_count() or 1))  # per student: TensorFlow starts threads per CPU in every rank
MAX_OPEN_FILES = 1 << 16

# Limits of JupyterHub and its proxy, inherited by local servers: open files for all browsers' connections, and the CPUs
# that aren't for measuring.
hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(MAX_OPEN_FILES, hard_limit), hard_limit))
if hub.cpus:
    os.sched_setaffinity(0, hub.cpus)

# JupyterHub listens on loopback, Traefik on the address that students open.
c.JupyterHub.bind_url = f"http{'s' if hub.cert else ''}://{in_url(hub.address)}:{hub.port}"
c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = hub.cert, hub.key
c.JupyterHub.hub_bind_url = hub.hub_url
c.JupyterHub.proxy_class = "traefik_file"
c.TraefikProxy.traefik_api_url = f"http://127.0.0.1:{hub.api_port}"
c.TraefikProxy.traefik_api_password = token
c.TraefikProxy.extra_static_config = {"global": {"checkNewVersion": False, "sendAnonymousUsage": False}}

# Seats log in with the codes on their cards.
c.JupyterHub.authenticator_class = SeatAuthenticator
c.SeatAuthenticator.codes_file = str(hub.files / codes.FILE)
c.SeatAuthenticator.open_file = str(folder / settings.OPEN)
c.Authenticator.allowed_users = set(hub.all_seats)
c.Authenticator.allow_existing_users = False
c.JupyterHub.template_vars = {"announcement_login": "Your card has your username and password."}

# The kit's own commands use the REST API.
c.JupyterHub.services = [{"name": "lab", "api_token": token}]
c.JupyterHub.load_roles = [
    {"name": "lab", "scopes": ["admin:users", "admin:servers", "access:servers"], "services": ["lab"]}
]
c.JupyterHub.api_page_default_limit = c.JupyterHub.api_page_max_limit = 1000  # more than the maximum number of seats

# Students' servers.
spawners = {
    settings.SYSTEMD: SystemdSpawner,
    settings.ACCOUNTS: LocalProcessSpawner,
    settings.TRIAL: SimpleLocalProcessSpawner,
}
c.JupyterHub.spawner_class = spawners[hub.mode]
c.JupyterHub.concurrent_spawn_limit = 0  # with a limit, students beyond it would be turned away
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 1}  # after which a page shows the progress
c.Spawner.start_timeout = c.Spawner.http_timeout = START_TIMEOUT_S
c.Spawner.cmd = [sys.executable, "-m", "labkit_classroom.hub.student_server"]
c.Spawner.notebook_dir = f"{hub.files}/{{username}}"
c.Spawner.default_url = f"/lab/tree/{catalogue.find(hub.labs[0]).notebook.name}"
c.Spawner.environment = {
    **hub.variables,
    settings.LABS_VARIABLE: ",".join(hub.labs),
    "HOME": lambda spawner: str(hub.home(spawner.user.name)),
    "LAB_FOLDER": lambda spawner: str(hub.home(spawner.user.name)),
    "LAB_SEAT": lambda spawner: spawner.user.name,
    "JUPYTER_RUNTIME_DIR": lambda spawner: str(hub.runtime / spawner.user.name),
}
c.SimpleLocalProcessSpawner.home_dir_template = f"{hub.files}/{{username}}"

# Limits where systemd runs: systemd.exec(5), systemd.resource-control(5).
c.SystemdSpawner.mem_limit = hub.memory or None
c.SystemdSpawner.user_workingdir = f"{hub.files}/{{USERNAME}}"
c.SystemdSpawner.disable_user_sudo = c.SystemdSpawner.isolate_tmp = c.SystemdSpawner.isolate_devices = True
c.SystemdSpawner.readwrite_paths = [f'"{hub.files}/{{USERNAME}}"', f"{hub.runtime}/{{USERNAME}}"]  # " for blanks
c.SystemdSpawner.unit_extra_properties = {
    "TasksMax": str(MAX_TASKS),
    "LimitNPROC": str(MAX_TASKS),
    "MemorySwapMax": "0",
    "CPUWeight": "100",
    "ProtectSystem": "strict",
    "ProtectProc": "invisible",
    "ProtectKernelTunables": "yes",
    "ProtectControlGroups": "yes",
    "RestrictSUIDSGID": "yes",
    "RemoveIPC": "yes",
    "TemporaryFileSystem": "/dev/shm:mode=1777",  # counts towards the unit's memory
}
if hub.cpus:  # not AllowedCPUs: a measurement moves to its slot's CPUs
    c.SystemdSpawner.unit_extra_properties["CPUAffinity"] = ",".join(map(str, hub.cpus))
