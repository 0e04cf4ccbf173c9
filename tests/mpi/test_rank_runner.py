"""Ranks start without the launcher's dependencies, and write complete lines."""

import socket
import subprocess
import sys


def test_ranks_import_very_little_of_the_kit():
    text = "import sys, labkit.mpi.rank_runner; print(*(name for name in sys.modules if name.startswith('labkit')))"
    loaded = subprocess.run([sys.executable, "-c", f"{text}; print('psutil' in sys.modules)"], capture_output=True)
    assert loaded.stdout.decode().split() == [
        "labkit",
        "labkit.mpi",
        "labkit.system",
        "labkit.system.imports",
        "labkit.system.lifetime",
        "labkit.mpi.rank_runner",
        "False",
    ]


def test_a_line_is_written_at_once(tmp_path):
    """Lines written in parts would mix in a terminal that ranks share."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nprint('rank', 0, 'of', 2)\nprint('an', 'error', file=sys.stderr)\nprint('end', end='')"
    )
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps separate writes apart
    with reader, writer:
        command = [sys.executable, "-u", "-m", "labkit.mpi.rank_runner", script]
        subprocess.run(command, stdout=writer, stderr=writer, check=True, timeout=60)
        assert [reader.recv(100) for _ in range(3)] == [b"rank 0 of 2\n", b"an error\n", b"end"]
