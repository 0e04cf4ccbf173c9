"""What a hub consists of, each part by itself: seats' codes, limits, the check."""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tornado.web
import yaml
from hub_student import code_on_card
from traitlets.config import Config
from typer.testing import CliRunner

from labkit.cli import application
from labkit.system import account_access, lease, paths, processes, programs
from labkit.system.addresses import free_ports
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit_author import build
from labkit_classroom.board import host
from labkit_classroom.hub import accounts as accounts_of_seats
from labkit_classroom.hub import (
    ahead,
    cgroups,
    check,
    codes,
    configuration,
    control,
    hub_log,
    memory,
    opening,
    runtime,
    settings,
    spawners,
    student_server,
)
from labkit_classroom.hub.authenticator import OPEN, SeatAuthenticator
from labkit_classroom.hub.control import Hub
from labkit_classroom.hub.cookies import SEAT
from labkit_classroom.lecture import rehearsal

IN_USE = os.strerror(errno.EADDRINUSE)
SEEN = {
    "memory": 2 << 30,
    "cores": 2.0,
    "tasks": 500,
    "cpus": [0],
    "write": [],
    "read": [],
    "signal": 0,
    "privileges": False,
}


@pytest.fixture
def state(tmp_path):
    """A hub as it is after it was asked for."""
    wanted = opening.settle(3, ["00"], "127.0.0.1", 8000, memory_gib=2, cores=2, students_files=tmp_path / "a b")
    request = replace(wanted, isolation=settings.SYSTEMD, tasks=500)
    return settings.State(request, folder=tmp_path, runtime=Path("/run/lab-hub-1"))


def but(hub: settings.State, **asked: object) -> settings.State:
    """Give a hub that was asked for something else."""
    return replace(hub, request=replace(hub.request, **asked))


class TestCodes:
    def test_a_seat_takes_its_own_code_alone(self, tmp_path):
        made = codes.make(tmp_path, tmp_path, ("seat-01", "seat-02"))
        kept = codes.read(tmp_path)
        assert codes.fits(kept, "seat-01", made["seat-01"])
        assert codes.fits(kept, "seat-01", f" {made['seat-01'][:4].lower()}-{made['seat-01'][4:]}")
        for seat, code in (
            ("seat-01", made["seat-02"]),
            ("seat-09", made["seat-01"]),
            ("seat-01", ""),
            ("", "é\ud800"),
        ):
            assert not codes.fits(kept, seat, code)

    def test_the_page_has_a_card_for_each_seat(self, tmp_path):
        made = codes.make(tmp_path, tmp_path, ("seat-01", "seat-02"))
        page = tmp_path / "page.html"
        page.write_text(codes.page("http://h:1/<x>", made))
        assert code_on_card(page, "seat-02").replace("-", "") == made["seat-02"]
        assert "<x>" not in page.read_text()
        assert "src=" not in page.read_text()  # nothing from elsewhere


class TestLogin:
    @pytest.fixture
    def log_in(self, state, monkeypatch, tmp_path):
        """Return the codes, and a function that says whether a seat and a code let in, or the status of the refusal."""
        made = codes.make(tmp_path, tmp_path, state.request.seats)
        state.save()
        monkeypatch.setenv(settings.VARIABLE, str(tmp_path))
        authenticator = SeatAuthenticator(config=Config())

        def attempt(seat: str, code: str, address: str = "10.0.0.1") -> bool | int:
            given: list[tuple[str, str]] = []
            handler = SimpleNamespace(
                request=SimpleNamespace(remote_ip=address, protocol="http"),
                set_cookie=lambda name, value, **kinds: given.append((name, value)),
            )
            try:
                answer = asyncio.run(authenticator.authenticate(handler, {"username": seat, "password": code}))
            except tornado.web.HTTPError as error:
                return error.status_code
            assert answer in (None, seat.lower())
            assert given == ([(SEAT, answer)] if answer else [])  # by which the proxy knows whose browser it is
            return bool(answer)

        return made, attempt

    def test_nobody_is_let_in_before_the_room_is_open(self, log_in):
        made, attempt = log_in
        assert attempt("seat-01", made["seat-01"]) == 403

    def test_wrong_codes_are_told_apart_and_lock_nobody_out(self, log_in, tmp_path):
        """The right code lets in whoever has tried wrong ones before: a neighbour's address may be the same."""
        made, attempt = log_in
        (tmp_path / OPEN).touch()
        assert [attempt("seat-01", "WRONG") for _ in range(12)] == [False] * 10 + [429] * 2
        assert attempt("seat-01", "WRONG", "10.0.0.2") is False
        assert attempt("seat-01", made["seat-01"]) is True
        assert attempt("SEAT-02", made["seat-02"]) is True
        for seat in ("seat-00", "seat-99", "", "root", "seat-01\0", "x" * 10_000):
            assert attempt(seat, made["seat-01"]) in (False, 429), seat


class TestLife:
    """A hub that is started and ended, without its processes."""

    @pytest.fixture
    def wanted(self, files):
        return opening.settle(2, ["00"], "127.0.0.1", 8000, students_files=files / "life", keep_apart=settings.NONE)

    @pytest.fixture
    def hub(self, tmp_path, monkeypatch):
        hub = Hub(tmp_path / "hub")
        monkeypatch.setattr(Hub, "_launch", lambda self, asked, lock: None)
        yield hub
        hub.stop(delete_files=True)

    @pytest.mark.parametrize(
        ("killed_in", "new"),
        [("codes.page", True), ("settings.Request.home", False), ("control.Hub._launch", False)],
    )
    def test_the_same_start_goes_on_wherever_one_was_killed(self, hub, wanted, monkeypatch, killed_in, new):
        if not (child := os.fork()):
            monkeypatch.setattr(f"labkit_classroom.hub.{killed_in}", lambda *_: os._exit(9))
            hub.start(wanted)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert hub.start(wanted) is new
        assert {file.name for file in hub.folder.iterdir()} >= {
            "state.json",
            "api-token",
            "codes.json",
            "seats.html",
        }
        assert code_on_card(hub.cards, "seat-02")
        assert hub.state.request.home("seat-02").is_dir()

    @pytest.mark.parametrize("name", [one.name for one in fields(settings.Request)])
    def test_one_that_ended_goes_on_for_the_same_request_alone(self, hub, wanted, name):
        hub.start(wanted)
        before = getattr(wanted, name)
        other = before / "x" if isinstance(before, Path) else before + {str: "x", tuple: ("x",)}.get(type(before), 1)
        with pytest.raises(LabError, match="a hub of other settings was here"):
            hub.start(replace(wanted, **{name: other}))
        assert hub.start(wanted) is False

    @pytest.mark.parametrize("killed_in", ["control.Hub._clear", "runtime.remove", "codes.forget"])
    def test_the_same_end_goes_on_wherever_one_was_killed(self, hub, wanted, monkeypatch, killed_in):
        hub.start(wanted)
        place = hub.state.runtime
        if not (child := os.fork()):
            monkeypatch.setattr(f"labkit_classroom.hub.{killed_in}", lambda *_: os._exit(9))
            hub.stop(delete_files=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert hub.stop(delete_files=True)
        assert not any(left.exists() for left in (hub.folder, place, wanted.files))

    def test_printed_cards_are_good_for_the_next_hub_of_the_same_files(self, hub, wanted):
        def codes_of(**options: bool) -> list[str]:
            hub.start(wanted, **options)
            assert codes.fits(codes.read(hub.folder), "seat-01", code_on_card(hub.cards, "seat-01"))
            found = [code_on_card(hub.cards, seat) for seat in wanted.seats]
            hub.stop()
            return found

        printed = codes_of()
        assert codes_of() == printed
        assert not set(codes_of(new_codes=True)) & set(printed)
        (wanted.files / codes.KEPT).chmod(0o644)
        with pytest.raises(LabError, match=r"not yours alone.*--new-codes"):
            hub.start(wanted)
        (wanted.files / codes.KEPT).write_text("")  # of one that was killed
        assert len(set(codes_of(new_codes=True))) == 2
        hub.start(wanted)
        hub.stop(delete_files=True)
        assert not wanted.files.exists()

    def test_two_at_a_time_are_refused(self, hub, wanted, monkeypatch):
        monkeypatch.setattr(control, "LOCK_TIMEOUT_S", 0.1)
        hub.start(wanted)
        with (hub.folder / "hub.pid").open("a") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            for action in (lambda: hub.start(wanted), hub.stop):
                with pytest.raises(LabError, match=r"another \./lab hub starts or ends it"):
                    action()
        assert hub.stop()
        assert not hub.folder.exists()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_a_start_that_is_ended_cleans_up_as_by_an_interrupt(self, hub, files, monkeypatch, number):
        def end(*_: object) -> None:
            os.kill(os.getpid(), number)
            time.sleep(60)

        def open_checked(hub: Hub, wanted: settings.Request, new_codes: bool) -> None:
            monkeypatch.setattr(Hub, "_launch", end)
            hub.start(wanted)

        monkeypatch.setattr("labkit_classroom.hub.control.Hub.__init__.__defaults__", (hub.folder,))
        monkeypatch.setattr(opening, "open_checked", open_checked)
        # Nobody is let in here.
        monkeypatch.setattr("labkit_classroom.commands.hub._not_as_root", lambda isolation: settings.NONE)
        before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
        try:
            ports = ["--port", str(free_ports(1)[0]), "--board-port", "0"]
            run = CliRunner().invoke(
                application(), ["hub", "up", "--students", "1", "--files", str(files / f"ended {number}"), *ports]
            )
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
        assert run.exit_code == 130, run.output
        assert not hub.folder.exists()

    def test_another_users_hub_is_told_as_such(self, state, accounts):
        state.save()
        state.folder.chmod(0o700)
        if not (child := os.fork()):
            os.setuid(65534)
            try:
                settings.load(state.folder)
            except LabError as error:
                os._exit(7 if "another user's" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

    def test_an_account_that_stays_is_told_and_can_be_removed_later(self, state, monkeypatch, tmp_path):
        userdel = tmp_path / "bin" / "userdel"
        userdel.parent.mkdir()
        userdel.write_text("#!/bin/sh\necho no space left on device >&2\nexit 10\n")
        userdel.chmod(0o755)
        monkeypatch.setenv("PATH", f"{userdel.parent}:{os.environ['PATH']}")
        left = SimpleNamespace(pw_name="lab-hub-1-seat-01", pw_uid=61234, pw_dir=str(tmp_path / "deleted by hand"))
        monkeypatch.setattr("labkit_classroom.hub.accounts.ours", lambda hub: [left])
        with pytest.raises(LabError, match=r"lab-hub-1-seat-01: no space left .*lab hub down goes on"):
            accounts_of_seats.remove(state)

    @pytest.mark.skipif(not programs.which("userdel"), reason="there is no userdel")
    def test_accounts_are_managed_without_the_administrators_folders_on_the_path(self, monkeypatch):
        monkeypatch.setenv("PATH", "/nowhere")
        done = accounts_of_seats._administer("userdel", "--help")
        assert (done.returncode, "Usage: userdel" in done.stdout) == (0, True)

    def test_without_the_program_for_it_an_account_is_no_traceback(self, monkeypatch):
        monkeypatch.setattr(programs, "which", lambda program: None)
        with pytest.raises(LabError, match=r"^there is no useradd on this machine: install it"):
            accounts_of_seats._administer("useradd", "seat")

    def test_a_room_is_looked_up_for_a_new_hub_alone(self, state, monkeypatch):
        """The board of one that is up, or was killed, has the room's file open."""
        state.save()
        wanted = replace(state.request, board_port=8500)

        def busy(path: Path) -> None:
            raise LabError("a board has it open")

        def up(*_: object) -> bool:
            raise LabError("the hub is up")

        monkeypatch.setattr(opening, "Store", busy)
        monkeypatch.setattr(Hub, "start", up)
        for hub, told in ((Hub(state.folder), "the hub is up"), (Hub(state.folder / "new"), "a board has it open")):
            with pytest.raises(LabError, match=told):
                opening.open_checked(hub, wanted)

    def test_those_who_do_not_start_stop_nobody_elses_warm_up(self, state):
        class Fake:
            hub = state

            def start(self, seat):
                if seat == "seat-01":
                    raise LabError("it did not start")

            def servers(self):
                return {"seat-02": "ready", "seat-03": "ready"}

        told = []
        assert opening.warm(Fake(), 60, lambda up, of: told.append((up, of))) == ["seat-01"]
        assert told == [(2, 3)]


@pytest.mark.slow
class TestKilledCommands:
    """JupyterHub goes on when the command that has started it is killed."""

    @pytest.fixture
    def wanted(self, files):
        (port,) = free_ports(1)
        return opening.settle(1, ["00"], "127.0.0.1", port, students_files=files / "killed", keep_apart=settings.NONE)

    @pytest.fixture
    def folder(self, tmp_path):
        yield tmp_path / "hub"
        Hub(tmp_path / "hub").stop(delete_files=True)

    def test_one_that_is_killed_while_it_looks_is_followed_by_the_next(self, folder, wanted, monkeypatch):
        if not (child := os.fork()):
            monkeypatch.setattr(opening, "verify", lambda hub: (folder / "looks").touch() or time.sleep(600))
            opening.open_checked(Hub(folder), wanted)
        assert processes.wait_until((folder / "looks").exists, 90)
        with pytest.raises(LabError, match=r"another \./lab hub up starts it"):
            Hub(folder).start(wanted)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        before, card = Hub(folder).pid(), code_on_card(Hub(folder).cards, "seat-01")
        assert before
        hub = Hub(folder)
        assert not hub.start(wanted)  # it is not a new one
        assert hub.pid() not in (before, None)
        hub.open()
        assert code_on_card(hub.cards, "seat-01") == card
        with pytest.raises(LabError, match="the hub is up"):
            Hub(folder).start(wanted)

    def test_one_that_is_killed_as_jupyterhub_starts_leaves_none_that_cannot_be_found(
        self, folder, wanted, monkeypatch
    ):
        if not (child := os.fork()):
            monkeypatch.setattr("labkit_classroom.hub.control.Client", lambda hub: os.kill(os.getpid(), signal.SIGKILL))
            Hub(folder).start(wanted)
        os.waitpid(child, 0)
        left = Hub(folder).pid()
        assert left
        assert Hub(folder).stop()
        assert not processes.find(lambda one: processes.environ_of(one).get(settings.VARIABLE) == str(folder))


class TestLog:
    @pytest.mark.slow
    def test_what_a_server_says_is_marked_harmless_and_bounded(self, tmp_path):
        """Two told on: the lines of a pipe, and of these no more than is allowed in an hour."""
        told, pipe = [], tmp_path / "pipe"
        os.mkfifo(pipe)

        async def say() -> None:
            output = hub_log._Output(pipe, told.extend)
            with output.writing() as end:
                os.write(end, b"lab: whole\nbegun")
                os.write(end, b", ended\n")
                for _ in range(5):
                    os.write(end, b"x" * 50_000 + b"\n")
                    await asyncio.sleep(2 * hub_log.PAUSE_S)
                os.write(end, b"short\n" * 10_000)
                await asyncio.sleep(2 * hub_log.PAUSE_S)

        asyncio.run(say())
        assert told[:2] == [b"lab: whole", b"begun, ended"]
        assert told[-1] == b"says too much: the rest of this hour is left out"
        assert sum(len(line[: hub_log.MAX_LINE]) + 1 for line in told) < hub_log.ALLOWED + 100

    def test_no_line_of_a_student_looks_like_the_kits_own(self, tmp_path, capfd):
        hub_log.note("seat-01", [b"lab: type your code at http://evil", b"\x1b[2J\rlab: a\x0blab: b\xff", b""])
        (tmp_path / "hub.log").write_text(said := capfd.readouterr().err)
        assert all(line.startswith("seat-01: ") for line in said.splitlines())
        assert not set(said) & set("\x1b\r\x0b")
        assert hub_log.last_words(tmp_path) == said.splitlines()
        assert hub_log.last_words(tmp_path, "seat-02") == said.splitlines()
        assert hub_log.last_words(tmp_path, "seat-01") == [said.splitlines()[0]]

    def test_a_message_of_the_hub_that_quotes_a_student_is_one_in_the_log(self, monkeypatch):
        monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)
        hub_log.set_records_apart()
        record = logging.getLogRecordFactory()("x", logging.INFO, "", 1, "no user %s", ("a\nlab: b\x1b[2J",), None)
        assert record.getMessage() == "no user a\n  lab: b\N{REPLACEMENT CHARACTER}[2J"


class TestRuntime:
    """What students can write to under /run."""

    OTHER = 65534

    @pytest.fixture
    def hub(self, state, files, accounts, monkeypatch):
        account = SimpleNamespace(pw_uid=self.OTHER, pw_gid=self.OTHER)
        monkeypatch.setattr("pwd.getpwnam", lambda name: account)
        hub = but(replace(state, runtime=files / "run"), isolation=settings.ACCOUNTS)
        yield hub
        runtime.remove(hub)
        assert not hub.runtime.exists()

    @pytest.fixture
    def division(self):
        return lease.Division((0,), ((min(os.sched_getaffinity(0)),),), 1)

    def as_other(self, action) -> int:
        """Do something as another user; return the number of its error."""
        if not (child := os.fork()):
            try:
                os.setuid(self.OTHER)
                action()
            except OSError as error:
                os._exit(error.errno)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def test_a_student_fills_their_own_part_alone(self, hub, division, monkeypatch):
        runtime.make(hub, division)
        if not hub.sockets("seat-01").is_mount():
            pytest.skip("no seats' accounts: nothing can be mounted here")

        def write(file: Path) -> None:
            with file.open("ab") as opened:
                for _ in range(100):
                    opened.write(bytes(1 << 20))

        assert self.as_other(lambda: write(hub.sockets("seat-01") / "large")) == errno.ENOSPC
        assert (hub.sockets("seat-01") / "large").stat().st_size <= runtime.SEAT_BYTES
        (hub.sockets("seat-02") / "mine").write_text("there is room")

    def test_it_is_made_once_and_removed_with_all_that_is_in_it(self, hub, division):
        for _ in range(2):
            runtime.make(hub, division)
            (hub.sockets("seat-01") / "kept").touch()
        (hub.sockets("seat-01") / "kept").unlink()
        mounts = Path("/proc/self/mountinfo").read_text()
        assert mounts.count(f"{hub.runtime}/".replace(" ", "\\040")) == (4 if hub.sockets("seat-01").is_mount() else 0)


class TestAccounts:
    """What is made and removed for a seat, with an account that is only looked up."""

    @pytest.fixture
    def hub(self, state, files, accounts, monkeypatch):
        """A hub whose seat-01 has an account of the number that `number` has."""
        home, known = files / "put away" / "seat-01", SimpleNamespace(pw_uid=61234, pw_gid=61234, pw_name="a-seat")
        home.parent.mkdir(exist_ok=True)
        known.pw_dir = str(home)
        monkeypatch.setattr("pwd.getpwnam", lambda name: known)
        monkeypatch.setattr(accounts_of_seats, "CHECK_SEAT", "seat-01")
        monkeypatch.setattr(accounts_of_seats, "ours", lambda hub: [known])
        monkeypatch.setattr("labkit.system.account_access.problem", lambda *_: "")
        monkeypatch.setattr("subprocess.run", lambda *_, **__: SimpleNamespace(returncode=0))
        yield but(state, files=home.parent, students=1)
        shutil.rmtree(home.parent)

    def test_a_folder_is_nobody_elses_while_there_is_no_account(self, hub):
        home = hub.request.home("seat-01")
        for again in range(2):
            accounts_of_seats.make(hub, sys.stdout)
            assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (61234, 0o700)
            assert (home / "work").exists() is bool(again)
            (home / "work").touch()
            home.chmod(0o755)  # as its student can
            accounts_of_seats.remove(hub)
            assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (0, 0o700)
        assert accounts_of_seats._number(home) == 61234

    def test_what_is_no_students_is_not_handed_out(self, hub):
        home = hub.request.home("seat-01")
        home.mkdir()  # of one that was killed as it made it
        accounts_of_seats.make(hub, sys.stdout)
        for spoil in (lambda: os.chown(home, 0, 0), lambda: os.chown(home, 1234, 1234), lambda: home.chmod(0o755)):
            (home / "work").touch()
            spoil()
            with pytest.raises(LabError, match="is not a-seat's"):
                accounts_of_seats.make(replace(hub), sys.stdout)
            os.chown(home, 0, 0)
        shutil.rmtree(home)
        home.symlink_to("/etc")
        with pytest.raises(LabError, match="is not a-seat's"):
            accounts_of_seats.make(hub, sys.stdout)
        home.unlink()
        hub.request.files.chmod(0o777)
        with pytest.raises(LabError, match="others than root can write"):
            accounts_of_seats.make(hub, sys.stdout)


class TestCheck:
    def test_what_is_held_to_all_that_was_asked_passes(self, state):
        assert all(row.holds for row in check.judge(state, SEEN))

    @pytest.mark.parametrize(
        ("what", "seen"),
        [
            ("memory", {"memory": None}),
            ("memory", {"memory": 3 << 30}),
            ("CPU time", {"cores": None}),
            ("processes and threads", {"tasks": -1}),
            ("the kit", {"write": ["/opt/kit"]}),
            ("others' folders, processes", {"read": ["seat-02"]}),
            ("others' folders, processes", {"signal": 1}),
            ("more rights", {"privileges": True}),
        ],
    )
    def test_a_limit_that_does_not_hold_is_told(self, state, what, seen):
        assert [row.what for row in check.judge(state, SEEN | seen) if not row.holds] == [what]

    def test_nothing_is_promised_where_nothing_keeps_students_apart(self, state):
        rows = check.judge(but(state, isolation=settings.NONE), SEEN | {"memory": None, "read": ["seat-02"]})
        assert {row.asked for row in rows} == {"–"}

    def test_the_room_stays_closed_and_nothing_is_left(self, state, monkeypatch):
        done = []

        class Fake:
            def start(self, *_):
                done.append("started")
                return True

            def stop(self):
                done.append("stopped")

        monkeypatch.setattr(opening, "verify", lambda hub: (check.judge(state, SEEN | {"memory": None}), 0))
        with pytest.raises(LabError, match=r"memory: asked 2\.0 GiB, found no limit"):
            opening.open_checked(Fake(), state.request)
        assert done == ["started", "stopped"]

    def test_students_are_counted_by_what_is_free(self):
        machine = replace(this_machine(), memory_free=21 << 30)
        assert check.carries(machine, 1 << 30) == 20
        assert check.carries(replace(machine, memory_free=0), 1 << 30) == 0


class TestLimits:
    def test_a_unit_is_started_with_all_limits(self, state, monkeypatch):
        """What systemd is told: this machine may have no systemd, and the unit is not started."""
        c, started = Config(), {}
        spawners.configure(c, but(state, cpus=(0, 1)))
        monkeypatch.setattr("systemdspawner.systemd.get_systemd_version", lambda: 252)

        async def no(unit: str) -> bool:
            return False

        async def start(unit: str, **options: object) -> None:
            started.update(options, unit=unit)

        monkeypatch.setattr("systemdspawner.systemd.service_failed", no)
        monkeypatch.setattr("systemdspawner.systemd.service_running", no)
        monkeypatch.setattr("systemdspawner.systemd.start_transient_service", start)
        monkeypatch.setattr("pwd.getpwnam", lambda name: type("account", (), {"pw_uid": 7, "pw_gid": 8, "pw_dir": "/"}))

        class User:
            name, id, url = "seat-01", 1, "/user/seat-01/"

        spawner = c.JupyterHub.spawner_class(config=c, user=User(), start_timeout=0)
        monkeypatch.setattr(type(spawner), "get_env", lambda self: {})
        monkeypatch.setattr(type(spawner), "get_args", lambda self: [])
        asyncio.run(asyncio.wait_for(super(spawners._InTurn, spawner).start(), 10))
        assert "PATH" in spawner.env_keep
        assert started["unit"] == "lab-hub-1-seat-01"
        assert (started["uid"], started["gid"]) == (7, 8)
        properties = started["properties"]
        assert properties["MemoryMax"] == 2 << 30
        assert properties["MemorySwapMax"] == "0"
        assert properties["CPUQuota"] == "200%"
        assert properties["CPUAffinity"] == "0,1"
        assert properties["TasksMax"] == properties["LimitNPROC"] == "500"
        assert properties["NoNewPrivileges"] == properties["PrivateTmp"] == properties["PrivateDevices"] == "yes"
        assert properties["ProtectSystem"] == "strict"
        assert properties["ReadWriteDirectories"][0] == f'"{state.request.home("seat-01")}"'

    @pytest.mark.parametrize(
        ("kind", "line", "written"),
        [
            ("cgroup2", "0::/", {"memory.max": "1024", "memory.swap.max": "0", "cpu.max": "150000 100000"}),
            ("cgroup", "4:memory,cpu:/", {"memory.limit_in_bytes": "1024", "cpu.cfs_quota_us": "150000"}),
        ],
    )
    def test_groups_get_their_limits(self, tmp_path, kind, line, written):
        top = tmp_path / "sys" / "fs" / "cgroup"
        (tmp_path / "proc" / "self").mkdir(parents=True)
        top.mkdir(parents=True)
        (tmp_path / "proc" / "self" / "cgroup").write_text(f"{line}\n")
        mount = f"1 1 0:1 / /sys/fs/cgroup rw - {kind} {kind} rw,memory,cpu\n"
        (tmp_path / "proc" / "self" / "mountinfo").write_text(mount)
        (top / "cgroup.procs").write_text(f"{os.getpid()}\n")
        groups = cgroups.make("a-seat", 1024, 1.5, tmp_path)
        assert groups == [top / "a-seat"]
        assert {name: (groups[0] / name).read_text() for name in written} == written
        assert cgroups.names("a-", tmp_path) == {"a-seat"}


class TestCommands:
    def test_the_sides_of_a_hub_that_is_not_there(self, monkeypatch, tmp_path):
        monkeypatch.setattr(settings, "FOLDER", tmp_path / "hub")
        monkeypatch.setattr(Hub.__init__, "__defaults__", (tmp_path / "hub",))
        run = CliRunner().invoke
        assert run(application(), ["hub", "status"]).exit_code == 1
        assert run(application(), ["hub", "down"]).output == "No hub was up.\n"
        assert isinstance(run(application(), ["hub", "warm"]).exception, LabError)
        assert isinstance(run(application(), ["hub", "up", "--isolation", "vm"]).exception, LabError)
        assert isinstance(run(application(), ["hub", "up", "--labs", "77"]).exception, LabError)

    @pytest.mark.parametrize(
        ("option", "value", "told"),
        [
            ("--files", __file__, "can be no folder"),
            ("--files", f"{__file__}/below", "can be no folder"),
            ("--files", "a" * 5000, "can be no folder.*name too long"),
            ("--address", "a" * 5000, "--address is one of"),
            ("--address", "\udcff.example", "--address is one of"),
            ("--address", "0", "--address is one of"),
            ("--memory", "inf", "take numbers"),
            ("--cores", "inf", "take numbers"),
        ],
    )
    def test_what_cannot_be_is_told_in_a_line_of_ordinary_length(self, monkeypatch, tmp_path, option, value, told):
        monkeypatch.setattr(Hub.__init__, "__defaults__", (tmp_path / "hub",))
        monkeypatch.setattr(account_access, "problem", lambda *_: "")
        ports = ["--port", str(free_ports(1)[0]), "--board-port", "0"]
        run = CliRunner().invoke(application(), ["hub", "up", "--students", "1", "--labs", "00", option, value, *ports])
        assert isinstance(run.exception, LabError), run.output
        assert re.search(told, str(run.exception))
        assert len(str(run.exception)) < 300
        assert not (tmp_path / "hub").exists()

    def test_what_systemd_would_hide_from_students_is_refused(self, monkeypatch, tmp_path, accounts):
        monkeypatch.setattr(opening, "SYSTEMD_IS_UP", tmp_path)
        monkeypatch.setattr(opening, "PRIVATE", (tmp_path,))
        where = {"students_files": tmp_path / "students", "keep_apart": settings.SYSTEMD}
        with pytest.raises(LabError, match="students is where systemd gives each student a folder of their own"):
            opening.settle(2, ["00"], "127.0.0.1", 8000, **where)

    def test_a_port_that_is_taken_is_told_and_nothing_is_left(self, tmp_path, files):
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
            port = taken.getsockname()[1]
            wanted = opening.settle(1, ["00"], "127.0.0.1", port, students_files=files / "x", keep_apart=settings.NONE)
            hub = Hub(tmp_path / "hub")
            with pytest.raises(LabError, match=f"port {port}: .* Try another --port"):
                hub.start(wanted)
        assert not hub.folder.exists()


class TestLookAhead:
    """What is found in the first second, and not after minutes."""

    @pytest.fixture(autouse=True)
    def nothing_is_started(self, monkeypatch):
        def too_late(*_: object, **__: object) -> None:
            raise AssertionError("it was to be found before")

        for name in ("start", "stop"):
            monkeypatch.setattr(Hub, name, too_late)
        monkeypatch.setattr(memory, "of_labs", too_late)

    @pytest.mark.parametrize("command", ["check", "up"])
    @pytest.mark.parametrize("option", ["--port", "--board-port"])
    def test_a_port_that_is_taken(self, monkeypatch, command, option):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
            ports = {"--port": str(free_ports(1)[0]), "--board-port": "0", option: str(taken.getsockname()[1])}
            arguments = ["hub", command, "--address", "127.0.0.1", *itertools.chain(*ports.items())]
            error = CliRunner().invoke(application(), arguments).exception
        assert isinstance(error, LabError)
        assert str(error) == f"cannot listen on 127.0.0.1, port {ports[option]}: {IN_USE}. Try another {option}."

    @pytest.mark.parametrize("command", ["check", "up"])
    @pytest.mark.parametrize("has_system_python", [True, False])
    def test_a_python_that_students_accounts_cannot_read(self, monkeypatch, tmp_path, command, has_system_python):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        if has_system_python:
            (tmp_path / f"python{version}").touch()
        monkeypatch.setattr(ahead, "SYSTEM_PYTHON", tmp_path / "python3")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(account_access, "problem", lambda *_: "~/python is below /root, whose mode is 0700")
        ports = ["--port", str(free_ports(1)[0]), "--board-port", "0"]
        error = CliRunner().invoke(application(), ["hub", command, *ports]).exception
        assert isinstance(error, LabError)
        assert "~/python is below /root, whose mode is 0700. " in str(error)
        assert str(error).endswith(f"{account_access.REMEDY}.")
        assert (f"`UV_PYTHON={tmp_path}/python{version} ./lab setup`" in str(error)) == has_system_python


class TestCheckCommand:
    """A check without its processes: the order of what it does, and what it leaves."""

    @pytest.fixture
    def done(self, monkeypatch, tmp_path):
        """What was done, in its order."""
        done: list[str] = []

        def start(hub: Hub, request: settings.Request) -> None:
            done.append("start")
            assert request.address == "127.0.0.1"
            request.home("seat-01").mkdir(parents=True)

        def of_labs(labs: list[str], on_lab: object) -> None:
            done.append(f"memory of {' '.join(labs)}")

        monkeypatch.setattr(paths, "STATE", tmp_path)
        monkeypatch.setattr(settings, "FOLDER", tmp_path / "hub")
        monkeypatch.setattr(Hub.__init__, "__defaults__", (tmp_path / "hub",))
        monkeypatch.setattr(Hub, "start", start)
        monkeypatch.setattr(Hub, "stop", lambda hub: done.append("stop"))
        monkeypatch.setattr(opening, "verify", lambda hub: done.append("look") or ([], 1 << 20))
        monkeypatch.setattr(memory, "of_labs", of_labs)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        return done

    def test_memory_is_measured_last_and_nothing_is_left(self, done, tmp_path):
        ports = ["--port", str(free_ports(1)[0]), "--board-port", "0"]
        run = CliRunner().invoke(application(), ["hub", "check", "--students", "2", "--labs", "00,07", *ports])
        assert (run.exit_code, run.exception and str(run.exception)) == (0, None), run.output
        assert done == ["start", "look", "stop", "memory of 00 07"]
        assert list(tmp_path.iterdir()) == []

    def test_a_routes_labs_are_those_of_the_check(self, done):
        ports = ["--port", str(free_ports(1)[0]), "--board-port", "0"]
        CliRunner().invoke(application(), ["hub", "check", "--route", "half", *ports])
        assert done[-1] == "memory of 00 02 07"

    def test_a_lab_that_is_measured_leaves_a_rehearsals_results_and_the_screen_alone(
        self, monkeypatch, tmp_path, capfd
    ):
        def execute(notebook: object, name: str, cwd: Path, **parameters: object) -> None:
            ran_in.append(cwd)
            (cwd / "work").mkdir()
            (cwd / "work" / "results-00.json").write_text("small")
            subprocess.run(["sh", "-c", "echo I0000 a notice >&2"], check=True)

        ran_in: list[Path] = []
        monkeypatch.setattr(paths, "STATE", tmp_path)
        monkeypatch.setattr(memory, "FILE", tmp_path / "memory.json")
        monkeypatch.setattr(rehearsal, "FOLDER", tmp_path / "rehearsal")
        monkeypatch.setattr(build, "execute", execute)
        kept = tmp_path / "rehearsal" / "work" / "results-00.json"
        kept.parent.mkdir(parents=True)
        kept.write_text("in full")
        memory.of_labs(["00"], lambda title: None)
        assert kept.read_text() == "in full"
        assert not ran_in[0].exists()
        os.write(2, b"errors come again")
        assert capfd.readouterr().err == "errors come again"


class TestWorkshop:
    """A route, or labs, for the board and for the students' folders; a name for the login page."""

    def asked(self, monkeypatch, tmp_path, *options: str) -> settings.Request:
        """Return what `hub up` with these options asks for."""
        asked: list[settings.Request] = []

        def open_checked(hub: Hub, request: settings.Request, new_codes: bool) -> None:
            asked.append(request)
            raise LabError("enough")

        monkeypatch.setattr(settings, "FOLDER", tmp_path / "hub")
        monkeypatch.setattr(Hub.__init__, "__defaults__", (tmp_path / "hub",))
        monkeypatch.setattr(opening, "open_checked", open_checked)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
        try:
            ports = ["--port", str(free_ports(1)[0]), "--board-port", "0", "--files", str(tmp_path / "students")]
            run = CliRunner().invoke(application(), ["hub", "up", *ports, *options])
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
        assert str(run.exception) == "enough", run.output
        return asked[0]

    def test_of_a_route(self, monkeypatch, tmp_path):
        request = self.asked(monkeypatch, tmp_path, "--route", "half", "--start", "13:30")
        assert request.labs == ("00", "02", "07")
        assert request.timetable == ("--route", "half", "--start", "13:30")
        assert request.name == "Deep learning at scale on CPUs: half a day"

    def test_of_labs_and_a_name(self, monkeypatch, tmp_path):
        options = ("--labs", "00,6", "--date", "2026-12-01", "--name", "HPC school")
        request = self.asked(monkeypatch, tmp_path, *options)
        assert request.labs == ("00", "06")
        assert request.timetable == ("--labs", "00,6", "--start", "9:00", "--date", "2026-12-01")
        assert request.name == "HPC school"

    def test_of_neither(self, monkeypatch, tmp_path):
        request = self.asked(monkeypatch, tmp_path)
        assert request.labs == ("00", "02", "07")
        assert request.timetable == ()

    def test_a_time_that_the_board_could_not_read_is_refused_at_once(self, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        ports = ["--port", str(free_ports(1)[0]), "--board-port", "0"]
        run = CliRunner().invoke(application(), ["hub", "up", "--route", "half", "--start", "noon", *ports])
        assert "9:00 or 13:30" in str(run.exception)

    def test_the_board_is_opened_with_the_timetable_whose_first_day_stays(self, state, monkeypatch):
        opened: list[dict[str, Any]] = []
        monkeypatch.setattr(host, "open_room", lambda *_, **given: opened.append(given))
        hub = replace(but(state, board_port=8500, timetable=("--route", "half")), first_day="2026-12-01")
        (board,) = configuration._board(hub)
        run = CliRunner().invoke(application(), board["command"][3:])
        assert run.exit_code == 0, run.output
        assert opened[0]["days"][0].entries[0].begin == datetime(2026, 12, 1, 9)
        assert opened[0]["people"] == 3
        (board,) = configuration._board(but(hub, timetable=("--route", "half", "--date", "2026-12-02")))
        assert board["command"][-2:] == ["--date", "2026-12-02"]
        (board,) = configuration._board(but(hub, timetable=()))
        assert "--date" not in board["command"]

    def test_a_students_folder_has_the_labs_that_are_taught(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(os, "environ", os.environ.copy())
        os.environ |= {"LAB_FOLDER": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path / "run"), "LAB_LABS": "00,07"}
        monkeypatch.setattr(os, "umask", lambda mask: None)
        monkeypatch.setattr(os, "execv", lambda *_: None)
        student_server.main()
        assert {copy.name[:2] for copy in tmp_path.glob("*.ipynb")} == {"00", "07"}


def test_kubernetes_values_give_each_student_whole_cores():
    values = yaml.safe_load((paths.ENV / "kubernetes" / "values.yaml").read_text())
    student = values["singleuser"]
    assert student["cpu"]["guarantee"] == student["cpu"]["limit"] == int(student["cpu"]["limit"])
    assert student["memory"]["guarantee"] == student["memory"]["limit"]


def test_kubernetes_values_fit_the_image():
    values = yaml.safe_load((paths.ENV / "kubernetes" / "values.yaml").read_text())
    image = (paths.ENV / "container" / "Containerfile").read_text()
    student, spawner = values["singleuser"], values["hub"]["config"]["KubeSpawner"]
    (folder,) = re.findall(r"^VOLUME (\S+)$", image, re.M)  # anything else mounted above it would be hidden by it
    assert student["storage"]["homeMountPath"] == folder == spawner["notebook_dir"]
    assert {student["extraEnv"][name] for name in ("HOME", "LAB_FOLDER")} == {folder}
    kit = re.search(r'^ENTRYPOINT \["(\S+)/lab"\]$', image, re.M)[1]  # which would take the arguments for a command's
    assert spawner["extra_container_config"]["command"] == [f"{kit}/.venv/bin/python"]
    assert student["cmd"] == ["-m", student_server.__name__]
    assert student["extraEnv"]["PATH"].startswith(f"{kit}/.venv/bin:")
    assert f"--uid {student['uid']} student" in image
    assert not student["allowPrivilegeEscalation"]
    assert not student["cloudMetadata"]["blockWithIptables"]  # by a privileged container
