"""Unix accounts for seats: `up` creates them, `down` removes them, and students' folders stay.

A seat's account has the seat's name and a fixed uid from a range that neither useradd nor systemd assigns by itself. So
a removed account's folder never belongs to anyone else, and the next hub takes it over.
"""

import os
import pwd
import stat
import subprocess
from collections.abc import Collection
from pathlib import Path

from labkit.system import account_access, files, processes
from labkit.system.errors import LabError
from labkit_classroom.hub.settings import CHECK_SEAT, Settings

FIRST_UID = 60600  # 60578 to 61183 are unused: https://systemd.io/UIDS-GIDS
NOBODY_GID = 65534  # shared by all accounts, as homes are closed to groups
SHARED = (Path("/tmp"), files.SHARED_MEMORY)  # folders where runs of any account leave files
NO_LOGIN = "/usr/sbin/nologin"


def uid(seat: str) -> int:
    """Return the uid of a seat's account."""
    return FIRST_UID + int(seat.rpartition("-")[2])


def make(request: Settings) -> None:
    """Create missing accounts and folders, and check that an account can run this environment.

    Raises
    ------
    LabError
        If any of this fails.
    """
    if not files.is_folder_of_mine(request.files.stat()):
        raise LabError(f"other users can write in {request.files}: choose another folder with --files.")
    existing = _existing(request)
    for seat in request.all_seats:
        home = request.home(seat)
        if seat not in existing:
            ids = [f"--uid={uid(seat)}", "--no-user-group", f"--gid={NOBODY_GID}"]
            _run("useradd", "--no-create-home", f"--home-dir={home}", f"--shell={NO_LOGIN}", *ids, seat)
        make_private(home, seat)
        if seat == CHECK_SEAT and (problem := account_access.problem(uid(seat), NOBODY_GID, home)):
            raise LabError(
                f"students' accounts can't use this environment or {home}: {problem}. {account_access.REMEDY}."
            )


def make_private(folder: Path, seat: str) -> None:
    """Create a folder that only a seat's account can enter, unless it exists.

    Raises
    ------
    LabError
        If another account owns it.
    """
    if not os.path.lexists(folder):
        folder.mkdir(mode=0o700)
        os.chown(folder, uid(seat), NOBODY_GID)
    status = folder.lstat()
    if status.st_uid != uid(seat) or not stat.S_ISDIR(status.st_mode):
        raise LabError(f"{folder} is not a folder owned by {seat} (uid {uid(seat)}): move it away.")


def remove(request: Settings) -> None:
    """End all processes of the accounts, and remove the accounts and what their runs left behind.

    Raises
    ------
    LabError
        If an account can't be removed.
    """
    existing = _existing(request)
    if existing:
        end_users(set(map(uid, existing)))
        delete_left_files(set(map(uid, existing)))
    for seat in existing:
        _run("userdel", seat)


def delete_left_files(uids: Collection[int]) -> None:
    """Delete what killed runs of some users left in `SHARED`: the next class's accounts have the same uids."""
    found = (file for folder in SHARED for prefix in files.RUN_PREFIXES for file in folder.glob(f"{prefix}*"))
    left = [file for file in found if file.lstat().st_uid in uids]
    subprocess.run(["rm", "-rf", "--", *left], capture_output=True)


def end_users(uids: Collection[int]) -> bool:
    """Kill all processes of some users, as root; return whether all ended.

    kill(2) signals all of a user's processes at once: a fork loop could outrun a search for processes one by one, but
    not the kernel.
    """
    if min(uids, default=1) < 1:
        raise ValueError("that would end the machine")

    def all_ended() -> bool:
        for uid in uids:
            command = ["sh", "-c", "kill -s KILL -- -1"]  # a minimal Debian has no `kill` program
            subprocess.run(command, user=uid, group=uid, extra_groups=[], stderr=subprocess.DEVNULL, cwd="/")
        return not processes.find(lambda process: process.uids().real in uids)

    return processes.wait_until(all_ended, processes.KILL_TIMEOUT_S)


def _existing(request: Settings) -> list[str]:
    """Return the seats that have an account from this hub."""
    accounts = {account.pw_name: (account.pw_uid, account.pw_dir) for account in pwd.getpwall()}
    return [seat for seat in request.all_seats if accounts.get(seat) == (uid(seat), str(request.home(seat)))]


def _run(program: str, *arguments: str) -> None:
    if not (path := processes.which(program)):
        raise LabError(f"this machine has no {program}: install it (on Debian: apt-get install passwd).")
    process = subprocess.run([path, *arguments], capture_output=True, timeout=60)
    if process.returncode:
        raise LabError(f"{program} {arguments[-1]} failed: {process.stderr.decode(errors='replace').strip()}")
