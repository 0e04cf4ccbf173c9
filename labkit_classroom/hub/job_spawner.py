"""Starts students' servers as jobs of Slurm, by batchspawner.

All jobs are of the user who started the hub: batchspawner (1.3.0) lets a hub believe more of what
students' servers tell it than one should that has more rights than they (docs/upstream.md). Where the hub's user is the
students' too, that gives nobody more than they have. It counts for any hub that imports batchspawner: so this module is
imported where jobs are asked for, and nowhere else.
"""

import asyncio
import math
import os
import shlex
from typing import Any

from batchspawner import MultiSlurmSpawner
from traitlets import Unicode, default

from labkit_classroom.hub import accounts, jobs, settings

MIB = 1 << 20
# All that sbatch is given is what the hub sets for a student's server. A socket's path has 107 characters at most, and
# is of the node. SIGTERM is for all processes of the job: the shell lives on to remove the folder.
SCRIPT = """#!/bin/bash
#SBATCH --job-name={{name}}
#SBATCH --output="{{log}}"
#SBATCH --open-mode=append
#SBATCH --chdir="{{homedir}}"
#SBATCH --export=ALL
#SBATCH --no-requeue
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={{nprocs}}
#SBATCH --time={{runtime}}
{% if memory %}#SBATCH --mem={{memory}}{% endif %}

trap : TERM
export JUPYTER_RUNTIME_DIR=$(mktemp -d /tmp/lab-hub-XXXXXXXX)
{{cmd}}
rm -rf "$JUPYTER_RUNTIME_DIR"
"""


class JobSpawner(MultiSlurmSpawner):  # type: ignore[misc]  # batchspawner has no types
    """Each server is a job."""

    req_name = Unicode()
    req_log = Unicode()

    @default("req_name")
    def _name(self) -> str:
        return settings.own().account(self.user.name)

    @default("req_log")
    def _log(self) -> str:
        return str(settings.own().folder / f"{self.user.name}.log")

    @default("req_homedir")
    def _homedir(self) -> str:
        return str(settings.own().request.home(self.user.name))

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables as they are: seats are no accounts."""
        return env

    def cmd_formatted_for_batch(self) -> str:
        """Return the server's command for the job's script."""
        return shlex.join([*self.cmd, *self.get_args()])

    async def run_command(self, cmd: str, input: str | None = None, env: dict[str, str] | None = None) -> str:
        """Run one of Slurm's commands, which finds the hub's Slurm by its variables."""
        hub = settings.own()
        if jobs.is_gone(hub):
            raise RuntimeError("the small Slurm is down")
        printed: str = await super().run_command(cmd, input, env or os.environ | hub.variables)
        return printed

    def state_gethost(self) -> str:
        """Return where the job's server is reached."""
        return jobs.reached_at(settings.own(), super().state_gethost())

    async def stop(self, now: bool = False) -> None:
        """Cancel the job; of the small Slurm, end what has left the job too: it has no control groups."""
        await super().stop(now)
        await asyncio.to_thread(accounts.end_rest, settings.own(), self.user.name)


def configure(c: Any, hub: settings.State) -> None:
    """Set a hub's spawner."""
    c.JupyterHub.spawner_class = JobSpawner
    c.JobSpawner.env_keep = ["PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL"]  # none of a module's libraries
    c.BatchSpawnerBase.exec_prefix = ""
    c.BatchSpawnerBase.batch_script = SCRIPT
    c.BatchSpawnerBase.req_nprocs = f"{hub.request.cores:.0f}"
    c.BatchSpawnerBase.req_memory = f"{hub.request.memory // MIB}M" if hub.request.memory else ""
    c.BatchSpawnerBase.req_runtime = str(math.ceil(hub.request.hours * 60))
    c.MultiSlurmSpawner.daemon_resolver = jobs.addresses(hub.variables)
