"""If no testbed can be made, one line explains why, and what an administrator can set; nothing is left behind."""

import subprocess
import sys

import pytest

from labkit.system.errors import LabError
from labkit.testbed import Testbed, namespaces, obstacle


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that puts a program first on the PATH."""

    def put(name: str, text: str) -> None:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent), prepend=":")

    return put


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Return a function that writes kernel settings to a folder, where they are read."""
    monkeypatch.setattr(namespaces, "SYSCTL", tmp_path / "sys")

    def put(**values: str) -> None:
        for name, value in values.items():
            path = tmp_path / "sys" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")

    return put


REFUSED = "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1"


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"kernel__apparmor_restrict_unprivileged_userns": "1"}, "kernel.apparmor_restrict_unprivileged_userns=0"),
        ({"kernel__unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        ({"user__max_user_namespaces": "0"}, "user.max_user_namespaces=10000"),
        ({"user__max_user_namespaces": "63000", "kernel__unprivileged_userns_clone": "1"}, "--cap-add SYS_ADMIN"),
    ],
)
def test_what_an_administrator_can_set(nothing_left, program, settings, values, part):
    program("unshare", REFUSED)
    settings(**values)
    message = obstacle()
    assert part in message
    assert "\n" not in message
    assert ("sysctl -w" in message) == ("=10000" in part or "kernel." in part)


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("echo 'unshare: unshare failed: No space left on device' >&2; exit 1", "no more namespaces. As root: `sysctl"),
        ("kill -9 $$", "does not let this user make network namespaces"),
    ],
)
def test_however_unshare_fails(nothing_left, program, settings, script, part):
    program("unshare", script)
    assert part in obstacle()
    with pytest.raises(LabError):
        Testbed(2)


def test_missing_programs_are_reported(tmp_path, monkeypatch):
    (tmp_path / "unshare").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("labkit.system.processes.ADMIN_PATH", ())
    assert obstacle() == "missing: util-linux iproute2. As root: `apt-get install util-linux iproute2`."
    (tmp_path / "nsenter").symlink_to("/bin/true")
    assert obstacle() == "missing: iproute2. As root: `apt-get install iproute2`."


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("ip", 'case "$*" in *bridge) echo "Error: Unknown device type." >&2; exit 2;; esac'),
        ("tc", 'echo "RTNETLINK answers: No such file or directory" >&2; exit 2'),
    ],
)
def test_a_kernel_without_bridges_cables_or_rates(nothing_left, program, name, script):
    program(name, f'{script}; PATH=/usr/sbin:/sbin:/usr/bin:/bin; exec {name} "$@"')
    message = obstacle()
    assert message.startswith("this kernel lacks a module that wires need (")
    assert message.endswith("As root: `modprobe -a bridge veth sch_tbf`.")


# --- With the real kernel ---


def test_as_root_of_a_user_namespace_with_a_read_only_proc_sys_as_in_containers(wires_can_be_made):
    """The container options that the kit recommends leave it read-only."""
    lines = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys"
    namespaces = ("unshare", "--user", "--map-root-user", "--mount")
    around = [*namespaces, "sh", "-c", f'{lines} || exit 9; exec "$@"', "sh"]
    if subprocess.run([*around, "true"], capture_output=True).returncode:
        pytest.skip("A CONTAINER'S NAMESPACES NOT TESTED HERE: there are none, or /proc/sys cannot be mounted again")
    text = "from labkit.testbed import obstacle; print(obstacle())"
    done = subprocess.run([*around, sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
