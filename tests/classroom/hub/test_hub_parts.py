"""Parts of a hub by themselves: codes, accounts, settings, what `up` accepts."""

import asyncio
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tornado.web
from hub_student import code_on_card, request_for
from traitlets.config import Config
from typer.testing import CliRunner

from labkit.cli import application
from labkit.system import paths
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit_classroom.commands import hub as commands
from labkit_classroom.hub import accounts as accounts_of_seats
from labkit_classroom.hub import codes, control, settings, verify
from labkit_classroom.hub.authenticator import SeatAuthenticator
from labkit_classroom.hub.control import Hub

FOUND = {"memory": 2 << 30, "tasks": 500, "cpus": [0], "write": [], "read": [], "privileges": False}


class TestCodes:
    def test_printed_cards_stay_valid(self, tmp_path):
        made = codes.make(tmp_path, ("seat-01", "seat-02"))
        assert codes.make(tmp_path, ("seat-02", "seat-03"))["seat-02"] == made["seat-02"]
        assert codes.make(tmp_path, ("seat-01",)) == {"seat-01": made["seat-01"]}
        assert len(set(made.values())) == 2
        assert (tmp_path / codes.FILE).stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(
        ("content", "mode"), [("{}", 0o644), ("[]", 0o600), ('{"seat-01": 1}', 0o600), ("{", 0o600)]
    )
    def test_a_file_that_is_unusable_is_refused(self, tmp_path, content, mode):
        file = tmp_path / codes.FILE
        file.write_text(content)
        file.chmod(mode)
        with pytest.raises(LabError, match=r"unusable .*Delete the file"):
            codes.make(tmp_path, ("seat-01",))

    def test_the_page_has_a_card_for_each_seat(self, tmp_path):
        made = codes.make(tmp_path, ("seat-01", "seat-02"))
        page = tmp_path / "page.html"
        page.write_text(codes.page("http://h:1/<x>", made))
        assert code_on_card(page, "seat-02").replace("-", "") == made["seat-02"]
        assert "<x>" not in page.read_text()
        assert "src=" not in page.read_text()  # nothing from elsewhere


class TestLogin:
    @pytest.fixture
    def log_in(self, tmp_path):
        """Return the codes, and a function that returns the seat that a form lets in."""
        made = codes.make(tmp_path, ("seat-01", "seat-02"))
        authenticator = SeatAuthenticator(config=Config())
        authenticator.codes_file, authenticator.open_file = str(tmp_path / codes.FILE), str(tmp_path / settings.OPEN)
        return made, lambda seat, code: asyncio.run(
            authenticator.authenticate(SimpleNamespace(), {"username": seat, "password": code})
        )

    def test_no_one_is_let_in_before_the_hub_is_open(self, log_in):
        made, attempt = log_in
        with pytest.raises(tornado.web.HTTPError, match="not open yet"):
            attempt("seat-01", made["seat-01"])

    def test_a_seat_takes_its_own_code_alone(self, log_in, tmp_path):
        made, attempt = log_in
        (tmp_path / settings.OPEN).touch()
        assert attempt("seat-01", made["seat-01"]) == "seat-01"
        assert attempt(" SEAT-01 ", f" {made['seat-01'][:4].lower()}-{made['seat-01'][4:]}") == "seat-01"
        wrong = [("seat-01", made["seat-02"]), ("seat-09", made["seat-01"]), ("seat-01", ""), ("", "")]
        for seat, code in [*wrong, ("seat-09", ""), ("seat-01", "é\ud800"), ("root", made["seat-01"])]:
            assert attempt(seat, code) is None, (seat, code)


class TestVerify:
    @pytest.fixture
    def hub(self, tmp_path):
        return request_for(tmp_path, mode=settings.SYSTEMD, memory=2 << 30, cpus=(0,))

    def broken(self, hub, **found: object) -> list[str]:
        return [row.what for row in verify.judge(hub, FOUND | found) if row.found != row.requested]

    def test_what_was_requested_holds(self, hub):
        assert self.broken(hub) == []
        assert self.broken(hub, memory=hub.memory - 4096) == []  # the kernel rounds to pages

    @pytest.mark.parametrize(
        ("found", "what"),
        [
            ({"memory": 3 << 30}, "memory"),
            ({"memory": None}, "memory"),
            ({"tasks": -1}, "processes and threads"),
            ({"cpus": [0, 1]}, "starts on CPUs"),
            ({"write": ["/kit"]}, "the kit"),
            ({"read": ["seat-02"]}, "others' folders"),
            ({"privileges": True}, "more privileges"),
        ],
    )
    def test_what_does_not_hold_is_named(self, hub, found, what):
        assert self.broken(hub, **found) == [what]

    def test_accounts_alone_have_no_limits_and_a_trial_promises_nothing(self, hub):
        unlimited = {"memory": None, "tasks": -1, "privileges": True}
        with_accounts = replace(hub, mode=settings.ACCOUNTS, memory=0)
        assert self.broken(with_accounts, **unlimited) == []
        assert self.broken(with_accounts, read=["seat-02"]) == ["others' folders"]
        assert verify.judge(replace(hub, mode=settings.TRIAL), FOUND | unlimited) == []

    def test_how_many_fit_goes_by_the_limit(self, hub):
        machine = replace(this_machine(), memory_free=9 << 30)
        assert "enough for 4 students with 2 GiB each; 40 " in verify.capacity(hub, machine, 40)
        assert "enough for 2 students with 4 GiB each" in verify.capacity(replace(hub, memory=0), machine, 40)


class TestStart:
    def test_a_taken_address_is_reported_and_nothing_is_left(self, tmp_path):
        with control.addresses.listen("127.0.0.1") as taken:
            request = request_for(tmp_path / "students", port=taken.getsockname()[1])
            with pytest.raises(LabError, match=r"cannot listen on 127.0.0.1.*--address HOST:PORT"):
                Hub(tmp_path / "hub").start(request)
        assert list(tmp_path.iterdir()) == []

    def test_a_hub_with_other_settings_is_not_replaced(self, tmp_path):
        hub, request = Hub(tmp_path / "hub"), request_for(tmp_path / "students")
        hub.folder.mkdir()
        (hub.folder / settings.TOKEN).touch()
        replace(request, runtime=tmp_path / "runtime", hub_port=1).save(hub.folder)
        with pytest.raises(LabError, match=r"other settings .*lab hub down"):
            hub.start(replace(request, students=5))
        assert hub.settings == request
        assert hub.stop()
        assert not hub.folder.exists()

    def test_a_jupyterhub_that_does_not_start_is_reported_with_its_last_lines(self, tmp_path, monkeypatch):
        config = tmp_path / "config.py"
        config.write_text("raise SystemExit('lab: a reason')")
        monkeypatch.setattr(control, "CONFIG", config)
        hub = Hub(tmp_path / "hub")
        with pytest.raises(LabError, match=r"(?s)did not start.*lab: a reason"):
            hub.start(request_for(tmp_path / "students"))
        assert not hub.folder.exists()

    def test_two_commands_do_not_start_it_at_the_same_time(self, tmp_path):
        hub = Hub(tmp_path / "hub")
        with hub._locked(), pytest.raises(LabError, match=r"another \./lab hub command"):
            hub.start(request_for(tmp_path / "students"))

    def test_another_users_hub_is_reported(self, tmp_path, accounts):
        hub = Hub(tmp_path / "hub")
        hub.folder.mkdir(mode=0o700)
        request_for(tmp_path).save(hub.folder)
        if not (child := os.fork()):
            os.setuid(65534)
            try:
                _ = hub.settings
            except LabError as error:
                os._exit(7 if "another user" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


class TestAccounts:
    def test_a_folder_of_another_account_is_refused(self, files, accounts):
        folder = files / "seat-07"
        folder.mkdir()
        with pytest.raises(LabError, match=r"not a folder of uid 60607"):
            accounts_of_seats.make_private(folder, "seat-07")
        folder.rmdir()
        folder.symlink_to("/etc")
        with pytest.raises(LabError, match=r"not a folder of uid 60607"):
            accounts_of_seats.make_private(folder, "seat-07")

    def test_an_account_of_the_same_name_is_neither_used_nor_removed(self, files, accounts, monkeypatch):
        other = SimpleNamespace(pw_name="seat-00", pw_uid=1000, pw_dir="/home/seat-00")
        monkeypatch.setattr(accounts_of_seats.pwd, "getpwall", lambda: [other])
        ran = []
        monkeypatch.setattr(accounts_of_seats, "_run", lambda *command: ran.append(command))
        accounts_of_seats.remove(request_for(files))
        assert ran == []

    def test_folders_that_others_can_write_to_are_refused(self, tmp_path):
        tmp_path.chmod(0o777)
        with pytest.raises(LabError, match="other users can write"):
            accounts_of_seats.make(request_for(tmp_path))

    def test_uids_are_where_nothing_else_assigns_any(self):
        assert accounts_of_seats.uid(settings.CHECK_SEAT) >= 60578
        assert accounts_of_seats.uid(f"seat-{commands.MAX_STUDENTS}") <= 61183


class TestCommands:
    @pytest.fixture
    def started(self, monkeypatch):
        """Return the requests that would have been started."""
        requests = []
        monkeypatch.setattr(Hub, "start", lambda self, request: requests.append(request) or [])
        shown = SimpleNamespace(variables={}, files=paths.ROOT, cpus=())
        monkeypatch.setattr(Hub, "client", SimpleNamespace(settings=shown))
        return requests

    def run(self, *arguments: str) -> str:
        return CliRunner().invoke(application(), ["hub", *arguments])

    def test_up_takes_labs_or_a_route(self, started):
        assert self.run("up", "--labs", "00, 7", "--address", "h.example:8443").exit_code == 0
        assert self.run("up", "--labs", "half", "--address", "[::1]").exit_code == 0
        assert started[0].labs == ("00", "07")
        assert (started[0].address, started[0].port) == ("h.example", 8443)
        assert "07" in started[1].labs
        assert (started[1].address, started[1].port) == ("::1", 8000)

    def test_what_can_not_be_limited_is_refused(self, started, monkeypatch, tmp_path):
        monkeypatch.setattr(commands, "SYSTEMD_IS_UP", tmp_path / "missing")
        run = self.run("up", "--memory", "4")
        assert isinstance(run.exception, LabError), run.output  # `main` prints it, and exits with 2
        assert "--memory needs root on a machine where systemd runs" in str(run.exception)
        assert self.run("up", "--memory", "0").exit_code == 0
        assert started[0].memory == 0

    @pytest.mark.parametrize("address", ["h:port", "h:99999", "[::1"])
    def test_a_wrong_address_is_refused(self, started, address):
        assert "--address is HOST or HOST:PORT" in str(self.run("up", "--address", address).exception)

    def test_root_has_accounts_and_limits_where_systemd_runs(self, started, monkeypatch, tmp_path):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        for place, mode, memory in ((tmp_path, "systemd", 4 << 30), (tmp_path / "missing", "accounts", 0)):
            monkeypatch.setattr(commands, "SYSTEMD_IS_UP", place)
            assert self.run("up").exit_code == 0
            assert (started[-1].mode, started[-1].memory) == (mode, memory)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert "THIS IS A TRIAL" in self.run("up").output
        assert started[-1].mode == "trial"
