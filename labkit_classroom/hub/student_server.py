"""What runs as a student: brings the copies of the labs up to date, then becomes the student's JupyterLab.

It runs under the student's account, as it writes into a folder in which the student can have put any link.
"""

import os
import sys
from pathlib import Path

from labkit.exercises import copies
from labkit.system import kernels
from labkit.system.errors import LabError
from labkit_classroom.hub.settings import LABS_VARIABLE


def main() -> None:
    """Update the copies of the labs, and become the server."""
    os.umask(0o077)
    folder = Path(os.environ["LAB_FOLDER"])
    try:
        Path(os.environ["JUPYTER_RUNTIME_DIR"]).mkdir(mode=0o700, exist_ok=True)
        labs = os.environ.get(LABS_VARIABLE)  # of another spawner, such as on Kubernetes, there is none
        copies.update(folder, labs.split(",") if labs else None)
        os.environ.update(kernels.settings_paths(os.environ))
        os.chdir(folder)
    except (LabError, OSError) as error:  # such as a full disk
        raise SystemExit(f"lab: {error}") from error
    program = ["jupyterhub.singleuser"]
    if "SLURM_JOB_ID" in os.environ:  # it takes a port of its node, and tells the hub which
        from labkit_classroom.hub import jobs  # of no use elsewhere

        os.environ.update(jobs.listen_on_node(os.environ))
        program = ["batchspawner.singleuser", str(Path(sys.executable).with_name("jupyterhub-singleuser"))]
    server = [sys.executable, "-m", *program, f"--KernelManager.transport={kernels.TRANSPORT}"]
    os.execv(sys.executable, [*server, *(["--allow-root"] if os.geteuid() == 0 else []), *sys.argv[1:]])


if __name__ == "__main__":
    main()
