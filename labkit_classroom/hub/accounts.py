"""Unix accounts for seats: made with the hub, and removed with it, if they are those that it made.

An account is a hub's by its name, which begins with the hub's own, and by its home, the seat's folder among the hub's
files. It has no password and no login shell. When it is removed, the student's folder is put away: it is root's, and
its group has the number of the account, so that the next account that gets this number, maybe in another hub, has no
way into it. The account that is made for the folder again gets the same number, and the folder back.
"""

import contextlib
import os
import pwd
import stat
import subprocess
from pathlib import Path
from typing import TextIO

import psutil

from labkit.system import account_access, files, processes, programs
from labkit.system.errors import LabError
from labkit_classroom.hub import ahead
from labkit_classroom.hub.settings import CHECK_SEAT, State

NO_LOGIN = "/usr/sbin/nologin"
MIN_UID = 1000  # the lowest number of a person's account: below are the system's own
CLOSED = 0o700


def make(hub: State, lock: TextIO) -> None:
    """Make the account and the folder of each seat that has none, and see that an account can run this environment.

    Parameters
    ----------
    hub : State
        Whose seats they are.
    lock : file
        The lock that keeps others from making and removing them; it is held until each is made, whoever is killed.

    Raises
    ------
    LabError
        When that can't be done.
    """
    with files.writing(hub.request.files):
        hub.request.files.mkdir(parents=True, exist_ok=True)
    if not files.is_folder_of_mine(hub.request.files.stat()):
        raise LabError(f"others than root can write in {hub.request.files}: name another folder with --files.")
    for seat in (CHECK_SEAT, *hub.request.seats):
        home = hub.request.home(seat)
        account = _find(hub.account(seat)) or _add(hub.account(seat), home, lock)
        if _is_new(home):
            home.mkdir(mode=CLOSED, exist_ok=True)
            home.chmod(CLOSED)
            os.chown(home, 0, account.pw_uid)
        if _number(home) != account.pw_uid:
            raise LabError(f"{home} is not {account.pw_name}'s: move it away, or name another folder with --files.")
        os.chown(home, account.pw_uid, account.pw_gid)
    check = pwd.getpwnam(hub.account(CHECK_SEAT))
    if problem := account_access.problem(check.pw_uid, check.pw_gid, hub.request.home(CHECK_SEAT)):
        raise LabError(
            f"students' accounts can't use this environment, or {hub.request.files}: {problem}. {ahead.way_out()}"
        )


def remove(hub: State) -> None:
    """Remove the accounts that were made for these files' seats; the files stay.

    Raises
    ------
    LabError
        When one can't be removed.
    """
    for account in ours(hub):
        with contextlib.suppress(FileNotFoundError):  # it was deleted by hand
            Path(account.pw_dir).chmod(CLOSED)  # its student may have opened it
            os.chown(account.pw_dir, 0, account.pw_uid)
        done = _administer("userdel", account.pw_name)
        if done.returncode:
            raise LabError(
                f"cannot remove the account {account.pw_name}: {done.stderr.strip()}. "
                "Mend that, then ./lab hub down goes on."
            )


def ours(hub: State) -> list[pwd.struct_passwd]:
    """Return the accounts that were made for these files' seats."""
    homes = {hub.account(seat): str(hub.request.home(seat)) for seat in (CHECK_SEAT, *hub.request.seats)}
    return [account for account in pwd.getpwall() if homes.get(account.pw_name) == account.pw_dir]


def processes_of(hub: State, seat: str) -> list[psutil.Process]:
    """Return the processes of a seat's server on this machine, whether the seat has an account or not."""
    home = str(hub.request.home(seat))
    return processes.find(lambda process: processes.environ_of(process).get("LAB_FOLDER") == home)


def end_rest(hub: State, seat: str) -> None:
    """End the processes that a seat's server has left behind."""
    processes.end_all(lambda: processes_of(hub, seat))


def _find(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _is_new(home: Path) -> bool:
    """Whether a student's folder is not there, or was just made when that was killed."""
    return not os.path.lexists(home) or (_number(home) == 0 and home.is_dir() and not any(home.iterdir()))


def _number(home: Path) -> int:
    """Return the number of the account that a student's folder is of; 0 for what is no such folder."""
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return 0
    put_away = status.st_uid == 0 and stat.S_IMODE(status.st_mode) == CLOSED
    return status.st_gid if put_away else status.st_uid


def _add(name: str, home: Path, lock: TextIO) -> pwd.struct_passwd:
    number = []
    if not _is_new(home):
        number = [f"--uid={_number(home)}"]
        if _number(home) < MIN_UID:
            raise LabError(f"{home} is no student's: move it away, or name another folder with --files.")
        with contextlib.suppress(KeyError):
            raise LabError(
                f"the number of {home}'s owner, {_number(home)}, is now that of the account "
                f"{pwd.getpwuid(_number(home)).pw_name}: name another folder with --files."
            )
    options = ["--no-create-home", f"--home-dir={home}", f"--shell={NO_LOGIN}", *number]
    done = _administer("useradd", *options, name, lock=lock)
    if done.returncode:
        raise LabError(f"cannot make the account {name}: {done.stderr.strip()}")
    return pwd.getpwnam(name)


def _administer(program: str, *arguments: str, lock: TextIO | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of the administrator's, which keeps the lock if there is one."""
    if not (path := programs.which(program)):
        raise LabError(f"there is no {program} on this machine: install it (on Debian: apt-get install passwd).")
    locks = (lock.fileno(),) if lock else ()
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, pass_fds=locks)
