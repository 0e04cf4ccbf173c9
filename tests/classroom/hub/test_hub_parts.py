"""Parts of a hub in isolation: codes, accounts, settings, the arguments of `up`."""

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

PROBED = {"memory": 2 << 30, "tasks": 500, "cpus": [0], "write": [], "read": [], "privileges": False}


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
    def test_an_unusable_file_is_refused(self, tmp_path, content, mode):
        file = tmp_path / codes.FILE
        file.write_text(content)
        file.chmod(mode)
        with pytest.raises(LabError, match=r"unusable .*Delete the file"):
            codes.make(tmp_path, ("seat-01",))

    def test_the_page_has_a_card_per_seat(self, tmp_path):
        made = codes.make(tmp_path, ("seat-01", "seat-02"))
        page = tmp_path / "page.html"
        page.write_text(codes.page("http://h:1/<x>", made))
        assert code_on_card(page, "seat-02").replace("-", "") == made["seat-02"]
        assert "<x>" not in page.read_text()
        assert "src=" not in page.read_text()  # self-contained


class TestLogin:
    @pytest.fixture
    def log_in(self, tmp_path):
        """Return the codes, and a function that returns the seat that a login form gets."""
        made = codes.make(tmp_path, ("seat-01", "seat-02"))
        authenticator = SeatAuthenticator(config=Config())
        authenticator.codes_file, authenticator.open_file = str(tmp_path / codes.FILE), str(tmp_path / settings.OPEN)
        return made, lambda seat, code: asyncio.run(
            authenticator.authenticate(SimpleNamespace(), {"username": seat, "password": code})
        )

    def test_logins_are_refused_before_the_hub_is_open(self, log_in):
        made, attempt = log_in
        with pytest.raises(tornado.web.HTTPError, match="not open yet"):
            attempt("seat-01", made["seat-01"])

    def test_a_seat_accepts_only_its_own_code(self, log_in, tmp_path):
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

    def broken(self, hub, **probed: object) -> list[str]:
        return [row.name for row in verify.judge(hub, PROBED | probed) if row.actual != row.requested]

    def test_a_server_that_matches_the_request_passes(self, hub):
        assert self.broken(hub) == []
        assert self.broken(hub, memory=hub.memory - 4096) == []  # the kernel rounds to pages

    @pytest.mark.parametrize(
        ("probed", "name"),
        [
            ({"memory": 3 << 30}, "memory"),
            ({"memory": None}, "memory"),
            ({"tasks": -1}, "processes and threads"),
            ({"cpus": [0, 1]}, "starts on CPUs"),
            ({"write": ["/kit"]}, "the kit"),
            ({"read": ["seat-02"]}, "others' folders"),
            ({"privileges": True}, "privilege escalation"),
        ],
    )
    def test_mismatches_are_named(self, hub, probed, name):
        assert self.broken(hub, **probed) == [name]

    def test_accounts_have_no_limits_and_a_trial_promises_nothing(self, hub):
        unlimited = {"memory": None, "tasks": -1, "privileges": True}
        with_accounts = replace(hub, mode=settings.ACCOUNTS, memory=0)
        assert self.broken(with_accounts, **unlimited) == []
        assert self.broken(with_accounts, read=["seat-02"]) == ["others' folders"]
        assert verify.judge(replace(hub, mode=settings.TRIAL), PROBED | unlimited) == []

    def test_capacity_follows_from_the_limit(self, hub):
        machine = replace(this_machine(), memory_free=9 << 30)
        assert "enough for 4 students with 2 GiB each; 40 " in verify.capacity(hub, machine, 40)
        assert "enough for 2 students with 4 GiB each" in verify.capacity(replace(hub, memory=0), machine, 40)


class TestStart:
    def test_an_address_in_use_is_reported_and_nothing_is_left_behind(self, tmp_path):
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
        with pytest.raises(LabError, match=r"other settings.*lab hub down"):
            hub.start(replace(request, students=5))
        assert hub.settings == request
        assert hub.stop()
        assert not hub.folder.exists()

    @pytest.mark.slow
    def test_a_failing_jupyterhub_is_reported_with_the_logs_last_lines(self, tmp_path, monkeypatch):
        config = tmp_path / "config.py"
        config.write_text("raise SystemExit('lab: a reason')")
        monkeypatch.setattr(control, "CONFIG", config)
        hub = Hub(tmp_path / "hub")
        with pytest.raises(LabError, match=r"(?s)did not start.*lab: a reason"):
            hub.start(request_for(tmp_path / "students"))
        assert not hub.folder.exists()

    def test_concurrent_commands_are_refused(self, tmp_path):
        hub = Hub(tmp_path / "hub")
        with hub._locked(), pytest.raises(LabError, match=r"another \./lab hub command"):
            hub.start(request_for(tmp_path / "students"))


class TestAccounts:
    def test_a_folder_owned_by_another_account_is_refused(self, files, accounts):
        folder = files / "seat-07"
        folder.mkdir()
        with pytest.raises(LabError, match=r"not a folder owned by seat-07 \(uid 60607\)"):
            accounts_of_seats.make_private(folder, "seat-07")
        folder.rmdir()
        folder.symlink_to("/etc")
        with pytest.raises(LabError, match=r"not a folder owned by seat-07 \(uid 60607\)"):
            accounts_of_seats.make_private(folder, "seat-07")

    def test_a_foreign_account_with_a_seats_name_is_not_removed(self, files, accounts, monkeypatch):
        other = SimpleNamespace(pw_name="seat-00", pw_uid=1000, pw_dir="/home/seat-00")
        monkeypatch.setattr(accounts_of_seats.pwd, "getpwall", lambda: [other])
        ran = []
        monkeypatch.setattr(accounts_of_seats, "_run", lambda *command: ran.append(command))
        accounts_of_seats.remove(request_for(files))
        assert ran == []

    def test_folders_writable_by_others_are_refused(self, tmp_path):
        tmp_path.chmod(0o777)
        with pytest.raises(LabError, match="other users can write"):
            accounts_of_seats.make(request_for(tmp_path))

    def test_uids_are_in_an_unassigned_range(self):
        assert accounts_of_seats.uid(settings.CHECK_SEAT) >= 60578
        assert accounts_of_seats.uid(f"seat-{commands.MAX_STUDENTS}") <= 61183


class TestCommands:
    @pytest.fixture
    def started(self, monkeypatch):
        """Replace `Hub.start`; return the list of requests passed to it."""
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

    def test_a_limit_that_cannot_be_enforced_is_refused(self, started, monkeypatch, tmp_path):
        monkeypatch.setattr(commands, "SYSTEMD_IS_UP", tmp_path / "missing")
        run = self.run("up", "--memory", "4")
        assert isinstance(run.exception, LabError), run.output  # `main` prints it and exits with 2
        assert "--memory needs root on a machine where systemd runs" in str(run.exception)
        assert self.run("up", "--memory", "0").exit_code == 0
        assert started[0].memory == 0

    @pytest.mark.parametrize("address", ["h:port", "h:99999", "[::1"])
    def test_an_invalid_address_is_refused(self, started, address):
        assert "--address is HOST or HOST:PORT" in str(self.run("up", "--address", address).exception)

    def test_root_gets_accounts_and_with_systemd_limits(self, started, monkeypatch, tmp_path):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        for place, mode, memory in ((tmp_path, "systemd", 4 << 30), (tmp_path / "missing", "accounts", 0)):
            monkeypatch.setattr(commands, "SYSTEMD_IS_UP", place)
            assert self.run("up").exit_code == 0
            assert (started[-1].mode, started[-1].memory) == (mode, memory)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert "THIS IS A TRIAL" in self.run("up").output
        assert started[-1].mode == "trial"
