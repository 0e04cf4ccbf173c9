"""A student's server: update the copies of the labs, then become JupyterLab.

It runs under the student's account, as the folder may contain links created by the student.
"""

import json
import os
import sys
from pathlib import Path

from labkit.exercises import working_copies
from labkit.system import kernels
from labkit.system.errors import LabError
from labkit_classroom.hub.settings import CHECK_SEAT, LABS_VARIABLE

LOGOUT_S = 15  # until a server notices that its student has logged out


def main() -> None:
    """Update the copies of the labs, then become the server."""
    os.umask(0o077)
    folder = Path(os.environ["LAB_FOLDER"])
    try:
        runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        labs = os.environ.get(LABS_VARIABLE)  # not set by the examples in env/hub
        working_copies.update(folder, labs.split(",") if labs else None)
        if os.environ.get("LAB_SEAT") == CHECK_SEAT:
            from labkit_classroom.hub import verify

            (folder / verify.FILE).write_text(json.dumps(verify.probe(folder)), encoding="utf-8")
        kernels.settle_environment(os.environ)  # in a Slurm job, say, the user's own variables may be set
        os.environ.update(kernels.JUPYTER_VARIABLES, SHELL="/bin/bash", JUPYTER_RUNTIME_DIR=str(runtime))
        os.chdir(folder)
    except (LabError, OSError) as error:  # such as a full disk
        raise SystemExit(f"lab: {error}") from error
    options = [f"--KernelManager.transport={kernels.TRANSPORT}", f"--HubOAuth.cache_max_age={LOGOUT_S}"]
    server = [sys.executable, "-m", "jupyterhub.singleuser", *options]
    os.execv(sys.executable, [*server, *(["--allow-root"] if os.geteuid() == 0 else []), *sys.argv[1:]])


if __name__ == "__main__":
    main()
