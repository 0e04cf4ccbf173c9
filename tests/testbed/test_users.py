"""Users without root can make testbeds, in a user namespace."""

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from labkit.system.processes import wait_until

pytestmark = [
    pytest.mark.slow,  # its child processes start ranks
    pytest.mark.usefixtures("wires_can_be_made", "two_users_can_be_made"),
]

ANOTHER_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")  # the user `nobody`
USE = """
    import os, time
    from labkit.mpi import run_ranks
    from labkit.testbed import Testbed
    assert os.geteuid() == 65534
    with Testbed(2, "200 Mbit/s") as wires:
        assert wires._shell.rootless
        run = run_ranks(4, "hello.py", network=wires, cwd={folder!r}, show=False, timeout=60)
        print(*(line for lines in run.lines for line in lines))
        print(wires._shell.pid, *(node.pid for node in wires.nodes), flush=True)
        time.sleep(60)
"""
HELLO = """
    import os
    from mpi4py import MPI
    print(os.uname().nodename, os.geteuid(), MPI.COMM_WORLD.allreduce(1))
"""


@pytest.fixture(scope="module", autouse=True)
def users_may_make_namespaces(two_users_can_be_made):
    command = [*ANOTHER_USER, "unshare", "--map-current-user", "--net", "true"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no network: another user may not make namespaces here: {done.stderr.strip()}")


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="labkit-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        (Path(name) / "hello.py").write_text(textwrap.dedent(HELLO))
        yield name


def test_another_user_can_make_the_same_wires_which_end_with_the_process(folder):
    text = textwrap.dedent(USE.format(folder=folder))
    with subprocess.Popen(
        [*ANOTHER_USER, sys.executable, "-c", text], cwd="/", stdout=subprocess.PIPE, text=True
    ) as process:
        output = process.stdout.readline().split()
        pids = process.stdout.readline().split()
        process.kill()
    assert output == [*("node1", "65534", "4") * 2, *("node2", "65534", "4") * 2]
    assert wait_until(lambda: not any(Path(f"/proc/{pid}/ns/net").exists() for pid in pids), 10)
