"""UNTESTED EXAMPLE: JupyterHub configuration for a Slurm cluster, where each server is a job.

It needs the kit in a folder that all nodes see, `pip install batchspawner` in its environment, an account for each
student on all nodes, and your own addresses. Start it with `jupyterhub -f env/hub/slurm_config.py` on a login node.

Run it as a dedicated account that may run `sbatch`, `squeue` and `scancel` as the students (sudoers), never as root
(docs/contribute/upstream/batchspawner.md).
"""

import batchspawner  # noqa: F401 - registers the request handler for a job to report its port

KIT = "/shared/cpu-labs"

c = get_config()  # noqa: F821 - traitlets defines it
c.JupyterHub.bind_url = "https://hub.example.org:8443"
c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = "/etc/hub/cert.pem", "/etc/hub/key.pem"
c.JupyterHub.hub_bind_url = "http://10.0.0.1:8081"  # an address that the nodes can reach
c.JupyterHub.proxy_class = "traefik_file"
c.JupyterHub.authenticator_class = "pam"
c.Authenticator.allow_all = True

c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
c.Spawner.cmd = [f"{KIT}/labkit_classroom/hub/student_server.py"]
c.Spawner.default_url = "/lab/tree/00_welcome.ipynb"
c.Spawner.start_timeout = 600  # including the time in the queue: reserve the nodes for the day
c.Spawner.environment = {
    "LAB_FOLDER": lambda spawner: f"/home/{spawner.user.name}/my-labs",
    "JUPYTER_RUNTIME_DIR": lambda spawner: f"/tmp/jupyter-{spawner.user.name}",  # socket paths must be short
}
c.BatchSpawnerBase.batchspawner_singleuser_cmd = f"{KIT}/.venv/bin/batchspawner-singleuser"
c.BatchSpawnerBase.req_partition = "cpu"
c.BatchSpawnerBase.req_nprocs = "4"
c.BatchSpawnerBase.req_memory = "8G"
c.BatchSpawnerBase.req_runtime = "8:00:00"
