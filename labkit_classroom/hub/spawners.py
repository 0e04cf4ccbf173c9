"""How a student's server is started and ended, by what keeps students apart."""

import asyncio
import contextlib
import os
import pwd
import resource
import subprocess
from collections.abc import Callable
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from systemdspawner import SystemdSpawner

from labkit.system import processes
from labkit.system.lifetime import refuse_privileges
from labkit_classroom.hub import accounts, cgroups, hub_log, settings, streams

AT_A_TIME = 4  # servers that start; the others wait: all at once, none would be up for minutes
POLL_S = 0.2
JOURNAL_LINES, JOURNAL_TIMEOUT_S = 5, 10.0
_starting = asyncio.Semaphore(AT_A_TIME)


class _InTurn:
    """Starts a few servers at a time, each until it listens: at a Unix socket, whose name no other account can take."""

    def get_args(self) -> list[str]:
        """Return the server's arguments."""
        arguments, seat = super().get_args(), self.user.name  # type: ignore[misc, attr-defined]
        return [*arguments, f"--ServerApp.sock={settings.own().server_socket(seat)}"]

    def get_env(self) -> dict[str, str]:
        """Return the server's variables; with an address that has a port it would refuse the socket."""
        env: dict[str, str] = super().get_env()  # type: ignore[misc]
        return env | {"JUPYTERHUB_SERVICE_URL": "http+unix://"}

    async def start(self) -> str:
        """Start the server when it is its turn; return its address."""
        hub, seat = settings.own(), self.user.name  # type: ignore[attr-defined]
        address = settings.unix_url(hub.server_socket(seat))
        async with _starting:
            await super().start()  # type: ignore[misc]
            while await self.poll() is None:  # type: ignore[attr-defined]
                with contextlib.suppress(OSError):
                    async with streams.to_server(address, hub, seat):
                        return address
                await asyncio.sleep(POLL_S)
            raise RuntimeError("it has ended before it listened")  # or JupyterHub would wait for minutes


class UnitSpawner(_InTurn, SystemdSpawner):  # type: ignore[misc]  # spawners have no types
    """Each server is a unit of systemd's, with limits, under an account of its own."""

    async def start(self) -> str:
        """Start the server; when it does not, the hub's log has what its unit said to systemd's journal."""
        try:
            return await super().start()
        except RuntimeError:
            hub_log.note(self.user.name, [await asyncio.to_thread(_last_words, self.unit_name)])
            raise


class AccountSpawner(_InTurn, hub_log.Heard, LocalProcessSpawner):  # type: ignore[misc]
    """Each server runs under an account of its own, with limits by cgroups where this machine has them."""

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        """Return the function by which a process prepares to be the server."""
        hub = settings.own()
        groups = cgroups.make(hub.account(name), hub.request.memory, hub.request.cores)
        become = super().make_preexec_fn(hub.account(name))

        def prepare() -> None:
            cgroups.join(groups)
            if hub.request.cpus:
                os.sched_setaffinity(0, hub.request.cpus)
            resource.setrlimit(resource.RLIMIT_NPROC, (hub.request.tasks, hub.request.tasks))
            refuse_privileges()
            become()

        return prepare

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables with those of the account."""
        return env | {"USER": settings.own().account(self.user.name)}

    async def stop(self, now: bool = False) -> None:
        """End the server, and all else that its account runs."""
        await super().stop(now)
        name = settings.own().account(self.user.name)
        uid = pwd.getpwnam(name).pw_uid
        await asyncio.to_thread(processes.end_users, {uid})
        cgroups.remove(name)


class TrialSpawner(_InTurn, hub_log.Heard, SimpleLocalProcessSpawner):  # type: ignore[misc]
    """All servers run under the account of whoever started the hub: for trying."""

    async def stop(self, now: bool = False) -> None:
        """End the server, and all else that it started."""
        await super().stop(now)
        await asyncio.to_thread(accounts.end_rest, settings.own(), self.user.name)


def _last_words(unit: str) -> bytes:
    """Return what systemd's journal has of a unit, in a line: the kit's own word, else the last ones."""
    # `--unit` goes by the control group of whoever spoke, which journald no longer finds where a process could not even
    # start. What systemd says of a unit bears its name; so that no other student can say it, root or its account does.
    name, uid = f"{unit}.service", pwd.getpwnam(unit).pw_uid
    whose = [f"_SYSTEMD_UNIT={name}", "+", f"UNIT={name}", "_UID=0", f"_UID={uid}"]
    command = ["journalctl", f"--lines={JOURNAL_LINES}", "--output=cat", "--no-pager", *whose]
    try:
        done = subprocess.run(command, capture_output=True, timeout=JOURNAL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return f"lab: its journal cannot be read: {error}".encode()
    lines = done.stdout.splitlines() or [done.stderr.strip() or b"systemd's journal has nothing of it"]
    own = [line for line in lines if line.startswith(b"lab: ")]
    return own[-1] if own else b"lab: " + b" | ".join(lines)


def unit_properties(hub: settings.State) -> dict[str, str]:
    """Return the properties of a student's unit beside memory and cores (systemd.exec(5), systemd.resource-control(5)).

    All files are read-only but those of its own: the spawner's `readwrite_paths`.
    """
    # No cpuset, which would keep a student's measuring from the cores that are lent for it.
    affinity = {"CPUAffinity": ",".join(map(str, hub.request.cpus))} if hub.request.cpus else {}
    return affinity | {
        "TasksMax": str(hub.request.tasks),
        "LimitNPROC": str(hub.request.tasks),
        "MemorySwapMax": "0",
        "CPUWeight": "100",
        "UMask": "0077",
        "ProtectSystem": "strict",
        "ProtectProc": "invisible",
        "ProtectKernelTunables": "yes",
        "ProtectControlGroups": "yes",
        "RestrictSUIDSGID": "yes",
        "RemoveIPC": "yes",
        # Where the spawner has its variables, on the machine's own /run: a student could fill that.
        "InaccessiblePaths": f"/run/{hub.account('{USERNAME}')} -/run/lock",
        "TemporaryFileSystem": "/dev/shm:mode=1777",  # as all that is in memory, it counts to the unit's
    }


def configure(c: Any, hub: settings.State) -> None:
    """Set a hub's spawner."""
    if hub.request.isolation == settings.SLURM:
        from labkit_classroom.hub import job_spawner  # there alone: see its first lines

        job_spawner.configure(c, hub)
        return
    spawners = {settings.SYSTEMD: UnitSpawner, settings.ACCOUNTS: AccountSpawner, settings.NONE: TrialSpawner}
    c.JupyterHub.spawner_class = spawners[hub.request.isolation]
    c.SimpleLocalProcessSpawner.home_dir_template = f"{hub.request.files}/{{username}}"
    c.LocalProcessSpawner.interrupt_timeout = c.LocalProcessSpawner.term_timeout = 5
    c.SystemdSpawner.username_template = c.SystemdSpawner.unit_name_template = hub.account("{USERNAME}")
    c.SystemdSpawner.user_workingdir = f"{hub.request.files}/{{USERNAME}}"
    c.SystemdSpawner.mem_limit, c.SystemdSpawner.cpu_limit = hub.request.memory or None, hub.request.cores or None
    c.SystemdSpawner.disable_user_sudo = c.SystemdSpawner.isolate_tmp = c.SystemdSpawner.isolate_devices = True
    c.SystemdSpawner.env_keep = ["PATH", "LANG", "LC_ALL"]  # a unit has none; a terminal in it needs `mpirun`
    home = f'"{hub.request.files}/{{USERNAME}}"'  # " for blanks
    c.SystemdSpawner.readwrite_paths = [home, str(hub.sockets("{USERNAME}"))]
    if hub.request.cpus:
        c.SystemdSpawner.readwrite_paths.append(str(hub.slots))
    c.SystemdSpawner.unit_extra_properties = unit_properties(hub)
