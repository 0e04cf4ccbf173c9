"""`./lab` itself, with a stand-in for uv: what it makes, when, and what it says when it can't."""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import typer.main

from labkit.system import paths, processes, programs

pytestmark = pytest.mark.slow  # each runs the script, most of them several times

TOOLS = """
    awk bash cat chmod cp date df dirname flock grep head ln mkdir mktemp mv nice nproc python3 readlink rm sed
    sha256sum sleep sort stat tail timeout uname
"""

# Makes environments, with a `labkit` in the first that tells how it was called, and keeps a list of its own calls.
UV = """#!/usr/bin/env bash
echo "$*" >>uv-calls
case $1 in
  export) ;;
  pip) # install --python .venv --target FOLDER ...
    [[ $2 == install ]] || exit 0
    mkdir -p "$6" && : >"$6/begun"
    if [[ -f uv-hangs-torch ]]; then echo $$ >torch-pid; sleep 60; fi
    if [[ -f uv-lacks-torch ]] && [[ $* != *" --index "* || ! -f index-has-torch ]]; then echo "no torch"; exit 1; fi ;;
  venv) mkdir -p "${@: -1}" && : >"${@: -1}/pyvenv.cfg" ;;
  sync)
    echo "$TMPDIR" >>uv-temporary
    echo "${UV_PYTHON_INSTALL_DIR:-}" >>uv-pythons
    if [[ -f uv-fails ]]; then echo "no such package: unobtainium"; exit 1; fi
    if [[ -f uv-hangs ]]; then sleep 60; fi
    if [[ -f uv-takes ]]; then sleep "$(<uv-takes)"; rm uv-takes; fi
    if [[ $2 == --project ]]; then venv=$3/.venv; else venv=.venv; fi
    stat -c %a $venv/.lock >>uv-locks
    if [[ $2 == --project && -f uv-fails-openmp ]]; then echo "no such package: openmp"; exit 1; fi
    if [[ $2 == --project && -f uv-hangs-openmp ]]; then echo $$ >openmp-pid; sleep 60; fi
    if [[ $* == "sync --locked" ]]; then echo "${UV_PROJECT_ENVIRONMENT:-} $CMAKE_TOOLCHAIN_FILE" >>compiled-in; fi
    if [[ $* == "sync --locked" ]]; then echo "$LABKIT_OBJECTS" >>objects; fi
    if [[ $* == "sync --locked" && -f uv-fails-horovod ]]; then
      while [[ -f uv-hangs-openmp && ! -s openmp-pid ]]; do sleep 0.05; done
      echo "no compiler"; exit 1
    fi
    mkdir -p $venv/bin
    echo "VIRTUAL_ENV='$PWD/$venv'" >$venv/bin/activate
    # Two at once write these, and a third process starts one: a file that is written can't be started, nor the reverse.
    for program in .venv/bin/labkit $venv/bin/python; do
      printf '#!/usr/bin/env bash\\necho "labkit $*"\\n' >$program.$$
      chmod +x $program.$$
      mv $program.$$ $program
    done ;;
esac
"""


class Checkout:
    """A checkout on a machine that has only what is put on its PATH, and where administrators' programs are."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder / "kit", folder / "bin"
        openmp = ("env/openmp/pyproject.toml", "env/openmp/uv.lock")
        for name in ("lab", "pyproject.toml", "uv.lock", "env/uv.txt", *openmp, "env/torch/requirements.txt"):
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(paths.ROOT / name, target)
        self.admin_path = folder / "sbin"
        self.admin_path.mkdir()
        self.constant("ADMIN_PATH", "/usr/local/sbin:/usr/sbin:/sbin", f"'{self.admin_path}'")
        self.path.mkdir()
        for tool in TOOLS.split():
            (self.path / tool).symlink_to(shutil.which(tool))
        for tool in ("g++", "make"):
            self.program(tool, "#!/bin/sh\n")
        self.program("uv", UV)
        self.user("1000")

    def constant(self, name: str, value: str, other: str) -> None:
        text = (self.folder / "lab").read_text()
        assert f" {name}={value}" in text
        (self.folder / "lab").write_text(text.replace(f" {name}={value}", f" {name}={other}"))

    def load(self, average: str) -> None:
        """Have two cores, with so much to do."""
        self.program("nproc", "#!/bin/sh\necho 2\n")
        self.constant("LOAD_FILE", "/proc/loadavg", "load")
        (self.folder / "load").write_text(f"{average} 0.50 0.50 1/500 12345\n")

    def program(self, name: str, text: str) -> None:
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def user(self, number: str) -> None:
        self.program("id", f"#!/bin/sh\necho {number}\n")

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen:
        return subprocess.Popen(
            [self.folder / "lab", *arguments],
            env={"PATH": str(self.path), "HOME": str(self.folder)} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    def syncs(self) -> int:
        calls = self.folder / "uv-calls"
        return calls.read_text().count("sync") if calls.exists() else 0


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_first_use_makes_the_environment_and_hands_over(checkout):
    code, out, _ = checkout.run("doctor", "--json")
    assert code == 0
    assert "Setting up" in out
    assert out.endswith("labkit doctor --json\n")


def test_somebody_elses_kit_that_is_not_set_up_is_told_in_one_line():
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # which every user can reach
        Path(place).chmod(0o755)
        checkout = Checkout(Path(place))
        checkout.folder.chmod(0o555)
        done = subprocess.run(
            [checkout.folder / "lab", "doctor"],
            env={"PATH": str(checkout.path), "HOME": place},
            user=65534 if os.geteuid() == 0 else None,
            capture_output=True,
            text=True,
            timeout=30,
        )
        checkout.folder.chmod(0o755)
    assert done.returncode == 2
    assert done.stderr.endswith("whoever owns it runs ./lab setup.\n")
    assert done.stderr.count("\n") == 1


def test_later_uses_hand_over_at_once(checkout):
    checkout.run("setup")
    before = checkout.syncs()
    assert checkout.run("data", "status")[1] == "labkit data status\n"
    assert checkout.syncs() == before > 0


def test_the_second_environment_is_made_from_a_lock_of_its_own(checkout):
    checkout.run("setup")
    calls = (checkout.folder / "uv-calls").read_text().splitlines()
    of_openmp = [call for call in calls if call.startswith("sync --project env/openmp ")]
    assert len(of_openmp) == 1
    assert "--locked" in of_openmp[0]
    assert (checkout.folder / "env/openmp/.venv/bin").is_dir()


def test_both_environments_get_their_bytecode(checkout):
    checkout.run("setup")
    for log in ("setup.log", "setup-openmp.log"):
        assert "labkit env/bytecode.py" in (checkout.folder / ".lab" / log).read_text()


def test_a_folder_with_a_blank_is_compiled_in_by_a_path_without(tmp_path):
    """Flags that MPICH and TensorFlow print are taken apart at blanks."""
    (tmp_path / "a b").mkdir()
    checkout = Checkout(tmp_path / "a b")
    assert checkout.run("setup")[0] == 0
    first, last = (line.split(" ") for line in (checkout.folder / "compiled-in").read_text().splitlines())
    assert len(first) == 2  # no blank in either path
    assert not any(Path(path).parent.exists() for path in first)  # the link has gone
    assert " ".join(last) == f"{checkout.folder}/.venv {checkout.folder}/env/horovod/toolchain.cmake"
    calls = (checkout.folder / "uv-calls").read_text()
    assert "pip uninstall --python .venv horovod" in calls  # whose programs would name the link


def compile_in(folder: Path, kit: Path, text: str = "int one;\n", flag: str = "-O2", compiler: str = "done") -> bool:
    """Call the compiler as Horovod's build does, by a stand-in that copies; return whether it was called."""
    (folder / "sources").mkdir(parents=True, exist_ok=True)
    (folder / "sources/one.cc").write_text(text)
    program = folder.parent / "g++"
    program.write_text(
        "#!/bin/bash\nif [[ $1 == --version ]]; then echo 12; exit; fi\n"
        f'echo {compiler} >>"{folder}/calls"; cp "${{@: -1}}" one.o; [[ {compiler} == done ]]\n'
    )
    program.chmod(0o755)
    command = [paths.ENV / "horovod/keep.sh", folder, kit, program, flag, f"-I{folder}", f"-I{kit}/.venv"]
    done = subprocess.run(
        [*command, "-o", "one.o", "-c", folder / "sources/one.cc"],
        cwd=folder,
        env=os.environ | {"LABKIT_OBJECTS": str(folder.parent / "kept")},
        timeout=30,
    )
    assert (done.returncode == 0) == (compiler == "done")
    assert compiler != "done" or (folder / "one.o").read_text() == text
    return (folder / "calls").exists()


def test_a_build_that_goes_on_takes_what_was_compiled(tmp_path):
    """In another folder, as uv has one for each build, and by another link to the kit."""
    assert compile_in(tmp_path / "first", tmp_path / "link 1")
    assert not compile_in(tmp_path / "second", tmp_path / "link 2")
    assert compile_in(tmp_path / "third", tmp_path, text="int two;\n")
    assert compile_in(tmp_path / "fourth", tmp_path, flag="-O3")
    assert not compile_in(tmp_path / "fifth", tmp_path, flag="-O3")


def test_what_a_compiler_failed_at_is_not_kept(tmp_path):
    assert compile_in(tmp_path / "first", tmp_path, compiler="failed")
    assert compile_in(tmp_path / "second", tmp_path)


def test_objects_are_kept_by_the_locks_until_horovod_is_installed(checkout):
    (checkout.folder / "uv-fails-horovod").touch()
    assert checkout.run("setup")[0] == 2
    kept = checkout.folder / ".lab/horovod"
    (first,) = (checkout.folder / "objects").read_text().split()
    assert Path(first).parent == kept
    kept.mkdir()
    (kept / "object").touch()
    (checkout.folder / "uv-fails-horovod").unlink()
    with (checkout.folder / "uv.lock").open("a") as lock:
        lock.write("\n")
    assert checkout.run("setup")[0] == 0
    assert (checkout.folder / "objects").read_text().split()[-1] != first
    assert not kept.exists()


@pytest.mark.parametrize(
    ("user", "said", "place"), [("0", "", ".lab/pythons"), ("0", "/opt/p", "/opt/p"), ("1000", "", "")]
)
def test_root_keeps_the_python_that_uv_brings_where_other_accounts_can_read_it(checkout, user, said, place):
    checkout.user(user)
    assert checkout.run("start", **({"UV_PYTHON_INSTALL_DIR": said} if said else {}))[0] == 0
    used = {*(checkout.folder / "uv-pythons").read_text().split("\n")} - {""}
    assert used == ({str(checkout.folder / place)} if place else set())


def groups_synced(checkout: Checkout) -> set[str]:
    """Return the groups of packages that the last set-up asked uv for."""
    calls = (checkout.folder / "uv-calls").read_text().splitlines()
    last = next(call for call in reversed(calls) if call.startswith("sync --locked"))
    return {word.removeprefix("--group=") for word in last.split() if word.startswith("--group=")}


def test_a_student_gets_no_packages_of_teachers_and_authors(checkout):
    for command in (["start"], ["doctor"], ["report"], ["join"], ["class", "--zip", "--name", "ada"]):
        assert checkout.run(*command)[0] == 0
    assert groups_synced(checkout) == set()


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (("room", "open"), {"classroom"}),
        (("class", "collected"), {"classroom"}),
        (("build", "07"), {"author"}),
        (("test", "--fast"), {"author", "classroom"}),
        (("setup", "--author"), {"author"}),
        (("setup", "--classroom", "--author"), {"author", "classroom"}),
    ],
)
def test_a_command_brings_the_packages_that_it_takes_and_they_stay(checkout, words, groups):
    assert checkout.run("start")[0] == 0
    assert checkout.run(*words)[0] == 0
    assert groups_synced(checkout) == groups
    before = checkout.syncs()
    assert checkout.run(*words)[0] == 0
    assert words[0] == "setup" or checkout.syncs() == before
    assert checkout.run("start")[0] == 0
    assert groups_synced(checkout) == groups


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_kit_of_another_account_lacks_what_its_owner_did_not_bring(checkout):
    assert checkout.run("start")[0] == 0
    (checkout.folder / ".lab").chmod(0o555)
    code, _, err = checkout.run("room", "open")
    assert code == 2
    assert "lacks the group classroom and is not yours: whoever owns it runs ./lab setup --classroom." in err


def test_the_front_door_knows_every_command_of_each_package():
    """Which packages a command takes stands in the script too, which runs before any package is there."""
    script = (paths.ROOT / "lab").read_text()
    known = {}
    for line, group in re.findall(r"^    ([a-z |-]+)\) echo (\w+) ;;$", script, re.M):
        known |= dict.fromkeys(line.split(" | "), group)
    for entry in metadata.entry_points(group="labkit.commands"):
        app = typer.Typer()
        entry.load()(app)
        names = set(typer.main.get_command(app).commands) - {"join", "hand", "leave", "test"}
        assert {known.get(name) for name in names} == {entry.name}, names


TORCH = Path("env/torch/packages")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def torch_installs(checkout: Checkout) -> list[str]:
    """Return uv's arguments after the folder it installs PyTorch into."""
    calls = (checkout.folder / "uv-calls").read_text().splitlines()
    head = "pip install --python .venv --target env/torch/.packages.part "
    return [call.removeprefix(head) for call in calls if call.startswith(head)]


def test_pytorch_comes_for_whoever_asks_for_it_alone(checkout):
    assert checkout.run("setup")[0] == 0
    assert torch_installs(checkout) == []
    assert not (checkout.folder / TORCH).exists()
    code, out, err = checkout.run("setup", "--torch")
    assert (code, err) == (0, "")
    assert "PyTorch for CPUs, for lab 11" in out
    assert out.endswith("labkit setup --torch\n")
    assert torch_installs(checkout) == ["--no-deps -r env/torch/requirements.txt"]
    wanted = (checkout.folder / "env/torch/requirements.txt").read_text()
    assert (checkout.folder / TORCH / "requirements.txt").read_text() == wanted
    assert [path.name for path in (checkout.folder / TORCH).parent.iterdir() if "part" in path.name] == []
    assert checkout.run("setup")[0] == 0
    assert len(torch_installs(checkout)) == 1
    assert (checkout.folder / TORCH).exists()


def test_pytorch_is_looked_for_where_pip_would_look_too(checkout):
    assert checkout.run("setup", "--torch", PIP_FIND_LINKS="/wheels https://example.org/wheels")[0] == 0
    (install,) = torch_installs(checkout)
    assert install.endswith("--find-links /wheels --find-links https://example.org/wheels")


def test_pytorch_comes_from_its_own_index_where_nothing_else_has_it(checkout):
    for name in ("uv-lacks-torch", "index-has-torch"):
        (checkout.folder / name).touch()
    assert checkout.run("setup", "--torch")[0] == 0
    first, second = torch_installs(checkout)
    assert TORCH_INDEX not in first
    assert f" --index {TORCH_INDEX} " in second
    assert (checkout.folder / TORCH / "requirements.txt").exists()


def test_without_pytorch_anywhere_all_else_is_set_up(checkout):
    (checkout.folder / "uv-lacks-torch").touch()
    code, _, err = checkout.run("setup", "--torch")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("lab: torch==")
    for part in (TORCH_INDEX, ".lab/setup-torch.log", "UV_FIND_LINKS=FOLDER ./lab setup --torch goes on. All else is"):
        assert part in err
    assert not (checkout.folder / TORCH).exists()
    assert checkout.run("doctor") == (0, "labkit doctor\n", "")


def test_an_interrupted_set_up_of_pytorch_leaves_what_was_there_and_goes_on(checkout):
    checkout.run("setup", "--torch")
    (checkout.folder / TORCH / "old").touch()
    (checkout.folder / "uv-hangs-torch").touch()
    process = checkout.start("setup", "--torch")
    pid = checkout.folder / "torch-pid"
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 2
    assert "interrupted. ./lab setup --torch goes on from here." in err
    assert has_ended(int(pid.read_text()))
    assert (checkout.folder / TORCH / "old").exists()
    (checkout.folder / "uv-hangs-torch").unlink()
    assert checkout.run("setup", "--torch")[0] == 0
    assert not (checkout.folder / TORCH / "old").exists()


def test_a_pack_brings_no_pytorch(checkout, tmp_path):
    code, out, err = checkout.run("setup", "--from", str(tmp_path), "--torch")
    assert (code, out) == (2, "")
    assert err == "lab: PyTorch is not in a pack: ./lab setup --torch brings it by the network, afterwards.\n"


def a_wheel(folder: Path, version: str) -> None:
    """Write a wheel of a tiny PyTorch."""
    about = f"torch-{version}.dist-info"
    files = {
        "torch/__init__.py": "",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    folder.mkdir()
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.mark.parametrize("variable", ["PIP_FIND_LINKS", "UV_FIND_LINKS"])
@pytest.mark.parametrize(("version", "code"), [("2.13.0+cpu", 0), ("2.13.0", 2)], ids=["for CPUs", "for GPUs"])
def test_the_build_for_cpus_alone_is_taken_from_a_folder(checkout, tmp_path, variable, version, code):
    """By uv itself. PyPI has PyTorch by a version without `+cpu`, which brings gigabytes for GPUs."""
    checkout.program("stand-in", UV)
    install = f'exec "{programs.uv()}" pip install --python "{sys.prefix}" "${{@:5}}"'
    checkout.program("uv", f'#!/usr/bin/env bash\n[[ "$1 $2" == "pip install" ]] || exec stand-in "$@"\n{install}\n')
    (checkout.folder / "env/torch/requirements.txt").write_text("torch==2.13.0+cpu\n")
    a_wheel(tmp_path / "wheels", version)
    done, _, err = checkout.run("setup", "--torch", **{variable: str(tmp_path / "wheels"), "UV_OFFLINE": "1"})
    assert done == code, err
    assert (checkout.folder / TORCH / "torch/__init__.py").exists() == (code == 0)


@pytest.mark.parametrize("lock", ["uv.lock", "env/openmp/uv.lock", "env/openmp/pyproject.toml"])
def test_a_changed_lock_sets_up_again(checkout, lock):
    checkout.run("setup")
    before = checkout.syncs()
    with (checkout.folder / lock).open("a") as lock:
        lock.write("\n")
    assert "Setting up" in checkout.run("doctor")[1]
    assert checkout.syncs() > before


def test_setup_asked_for_by_name_looks_at_everything_again(checkout):
    checkout.run("setup")
    before = checkout.syncs()
    checkout.run("setup")
    assert checkout.syncs() > before


@pytest.mark.parametrize("venv", [".venv", "env/openmp/.venv"])
def test_a_moved_checkout_makes_its_environments_anew(checkout, tmp_path, venv):
    checkout.run("setup")
    (checkout.folder / venv / "old").touch()
    checkout.run("setup")
    assert (checkout.folder / venv / "old").exists(), "it was not moved"
    checkout.folder = checkout.folder.rename(tmp_path / "elsewhere")
    assert checkout.run("doctor")[1].endswith("labkit doctor\n")
    assert not (checkout.folder / venv / "old").exists()


HELP = pytest.mark.parametrize("asked", [(), ("-h",), ("--help",), ("help",)])


@HELP
def test_help_makes_nothing(checkout, asked):
    code, out, err = checkout.run(*asked)
    assert (code, "./lab start" in out, err) == (0, True, "")
    assert not (checkout.folder / ".lab").exists()
    assert checkout.syncs() == 0


@HELP
def test_help_is_labkits_once_it_is_set_up(checkout, asked):
    checkout.run("setup")
    assert checkout.run(*asked) == (0, "labkit --help\n", "")


@HELP
def test_help_answers_while_a_set_up_runs(checkout, asked):
    """Of an environment that was set up before too, of which parts are there."""
    checkout.run("setup")
    (checkout.folder / "uv-hangs").touch()
    before = checkout.syncs()
    process = checkout.start("setup")
    while checkout.syncs() == before:
        time.sleep(0.05)
    try:
        code, out, err = checkout.run(*asked)
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=10)
    assert (code, "./lab start" in out, err) == (0, True, "")


@HELP
@pytest.mark.parametrize("labkit", [None, "#!/nowhere/python\n", "#!/bin/sh\necho Traceback >&2; exit 1\n"])
def test_help_answers_in_a_broken_environment(checkout, asked, labkit):
    checkout.run("setup")
    program = checkout.folder / ".venv/bin/labkit"
    program.unlink()
    if labkit:
        program.write_text(labkit)
        program.chmod(0o755)
    code, out, err = checkout.run(*asked)
    assert (code, "./lab start" in out, err) == (0, True, "")


@pytest.mark.parametrize(
    ("average", "at_first", "so_far"),
    [
        (
            "9.40",
            "\n  other work has the cores: this may take 5 times as long\n",
            "; other work has the cores: this may take 4",
        ),
        ("3.90", "\n  other work has the cores: this may take 2 times as long\n", ""),  # later, that is set-up's own
        ("0.08", "", ""),
    ],
)
def test_where_there_is_no_terminal_a_line_now_and_then_says_what_set_up_does(checkout, average, at_first, so_far):
    checkout.constant("TELL_EVERY_S", "30", "1")
    checkout.load(average)
    (checkout.folder / "uv-takes").write_text("1.5")
    _, out, _ = checkout.run("setup")
    assert at_first in out
    assert ("other work" in out) == bool(at_first + so_far)
    lines = [line for line in out.splitlines() if line.startswith("  Python 3.11 and the packages")]
    assert len(lines) >= 2
    assert re.match(rf"  Python 3.11 and the packages +[12] s so far{re.escape(so_far)}", lines[0])
    assert re.fullmatch(r"  Python 3.11 and the packages +\d+ s", lines[-1])
    assert ("other work" in lines[0]) == bool(so_far)


def test_no_lock_is_one_that_others_can_hold(checkout):
    """Whoever can open a file can lock it; uv makes its own for all to write, also in /tmp under foreseeable names."""
    umask = os.umask(0)
    try:
        checkout.run("setup")
        checkout.run("setup")
    finally:
        os.umask(umask)
    assert (checkout.folder / ".lab/setup.lock").stat().st_mode & 0o777 == 0o600
    assert set((checkout.folder / "uv-locks").read_text().split()) == {"600"}
    temporary = {Path(line) for line in (checkout.folder / "uv-temporary").read_text().splitlines()}
    assert temporary
    assert tempfile.gettempdir() not in map(str, temporary)
    assert not any(folder.exists() for folder in temporary)


def test_a_lock_that_a_stranger_holds_since_before_is_left_to_them(checkout):
    lock = checkout.folder / ".lab/setup.lock"
    lock.parent.mkdir()
    lock.touch(0o644)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert checkout.run("doctor")[1].endswith("labkit doctor\n")


def test_others_wait_for_a_set_up_that_runs_and_say_so(checkout):
    (checkout.folder / "uv-hangs").touch()
    process = checkout.start("setup")
    while not checkout.syncs():
        time.sleep(0.05)
    waiting = checkout.start("doctor")
    assert f"(process {process.pid}); waiting for it" in waiting.stdout.readline()
    assert waiting.poll() is None
    (checkout.folder / "uv-hangs").unlink()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=10)
    assert waiting.communicate(timeout=30)[0].endswith("labkit doctor\n")


def test_a_failed_step_shows_why_and_the_next_call_goes_on(checkout):
    (checkout.folder / "uv-fails").touch()
    code, _, err = checkout.run("start")
    assert code == 2
    assert "unobtainium" in err
    assert ".lab/setup.log" in err
    (checkout.folder / "uv-fails").unlink()
    code, _, err = checkout.run("start")
    assert code == 0, err


def has_ended(pid: int) -> bool:
    """Whether a process has ended, or does within seconds; who reaps it is not set-up's business."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for _ in range(100):
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.05)
        return False
    return True


def test_of_two_steps_at_once_the_one_that_failed_is_named(checkout):
    (checkout.folder / "uv-fails-openmp").touch()
    code, _, err = checkout.run("start")
    assert code == 2
    assert "no such package: openmp" in err
    assert 'stopped at "TensorFlow with OpenMP, for lab 03"' in err
    (checkout.folder / "uv-fails-openmp").unlink()
    assert checkout.run("start")[0] == 0


def test_a_failed_step_ends_what_runs_beside_it(checkout):
    for name in ("uv-fails-horovod", "uv-hangs-openmp"):
        (checkout.folder / name).touch()
    code, _, err = checkout.run("start")
    assert code == 2
    assert "no compiler" in err
    assert 'stopped at "Horovod, compiled for this TensorFlow"' in err
    assert has_ended(int((checkout.folder / "openmp-pid").read_text()))


def test_an_interrupt_ends_what_runs_beside_a_step_too(checkout):
    (checkout.folder / "uv-hangs-openmp").touch()
    process = checkout.start("start")
    pid = checkout.folder / "openmp-pid"
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert "interrupted" in process.communicate(timeout=10)[1]
    assert process.returncode == 2
    assert has_ended(int(pid.read_text()))


def test_an_interrupted_setup_ends_what_it_started_and_can_be_run_again(checkout):
    (checkout.folder / "uv-hangs").touch()
    process = checkout.start("start")
    while not checkout.syncs():
        time.sleep(0.05)
    started = psutil.Process(process.pid).children(recursive=True)
    assert started
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 2
    assert "interrupted" in err, out
    assert psutil.wait_procs(started, timeout=5)[1] == []
    (checkout.folder / "uv-hangs").unlink()
    assert checkout.run("start")[1].endswith("labkit start\n")


def test_a_killed_setup_ends_what_it_started_too(checkout):
    pid = checkout.folder / "openmp-pid"
    (checkout.folder / "uv-hangs-openmp").touch()
    process = checkout.start("start")
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert has_ended(int(pid.read_text()))
    temporary = Path((checkout.folder / "uv-temporary").read_text().splitlines()[0])
    assert processes.wait_until(lambda: not temporary.exists(), 10)
    (checkout.folder / "uv-hangs-openmp").unlink()
    assert checkout.run("start")[1].endswith("labkit start\n")


def test_a_python_that_somebody_may_not_run_is_told_in_one_line(checkout):
    """As one below root's home, of a kit that root has set up."""
    checkout.run("setup")
    (checkout.folder / ".venv/bin/python").unlink()
    (checkout.folder / ".venv/bin/python").symlink_to("/nowhere/bin/python3.11")
    code, _, err = checkout.run("doctor")
    assert (code, err.count("\n")) == (2, 1)
    assert "you may not run this kit's Python, /nowhere/bin/python3.11" in err


def test_folders_are_where_they_are_also_with_a_cdpath(checkout, tmp_path):
    """Scripts that are called from elsewhere, by a path without a slash or a dot at its head."""

    def set_up(cdpath: str) -> str:
        return subprocess.run(
            ["kit/lab", "setup", "--from", "stick"],
            cwd=tmp_path,
            env={"PATH": str(checkout.path), "CDPATH": cdpath},
            capture_output=True,
            text=True,
            timeout=30,
        ).stderr

    (tmp_path / "other/kit").mkdir(parents=True)
    assert set_up(f".:{tmp_path}/other") == "lab: there is no folder stick to set up from.\n"
    (tmp_path / "stick").mkdir()
    (tmp_path / "other/stick").mkdir()
    (tmp_path / "stick/SHA256SUMS").touch()
    assert "stick is not a pack" not in set_up(f"{tmp_path}/other")


def test_two_set_ups_of_one_folder_take_turns(checkout):
    both = [checkout.start("doctor") for _ in range(2)]
    told = [process.communicate(timeout=30)[0] for process in both]
    assert all(out.endswith("labkit doctor\n") for out in told)
    assert sum("Setting up" in out for out in told) == 1


@pytest.mark.parametrize(
    ("manager", "command"),
    [("dnf", "sudo dnf install -y gcc-c++ make python3"), (None, "your package manager, for: g++ make")],
)
def test_missing_compilers_are_named_with_the_command_before_anything_else(checkout, manager, command):
    for tool in ("g++", "make"):
        (checkout.path / tool).unlink()
    if manager:
        checkout.program(manager, "#!/bin/sh\n")
    code, out, err = checkout.run("start")
    assert code == 2
    assert err.startswith("lab: missing: g++ make.")
    assert command in err
    assert out == ""
    assert checkout.syncs() == 0


def test_one_command_installs_all_that_the_day_needs(checkout):
    checkout.program("apt-get", APT)
    (checkout.path / "g++").unlink()
    code, _, err = checkout.run("start")
    assert code == 2
    assert "-y g++ numactl iproute2 slurm-wlm munge   then run this again. (Labs 03 and 06 to 08 can do without" in err
    checkout.program("g++", "#!/bin/sh\n")
    checkout.program("numactl", "#!/bin/sh\n")
    code, out, _ = checkout.run("start")
    assert code == 0
    assert "by whoever may: sudo apt-get install --no-install-recommends -y iproute2 slurm-wlm munge\n" in out
    assert apt_calls(checkout) == ""


APT = """#!/bin/sh
echo "$*" >>apt-calls
[ "$1" = update ] || case "$*" in
  *numactl*) [ ! -e no-numactl ] || { echo "Unable to locate package numactl"; exit 100; } ;;
  *iproute2*) [ ! -e no-iproute2 ] || { echo "Unable to locate package iproute2"; exit 100; } ;;
  *slurm-wlm*) [ ! -e no-slurm-wlm ] || { echo "Unable to locate package slurm-wlm"; exit 100; } ;;
  *g++*) printf '#!/bin/sh\\n' >"$(dirname "$(readlink -f "$0")")/g++"; chmod +x "$(dirname "$0")/g++" ;;
esac
"""


def apt_calls(checkout: Checkout) -> str:
    calls = checkout.folder / "apt-calls"
    return calls.read_text() if calls.exists() else ""


def test_root_on_debian_gets_what_is_missing_and_what_labs_can_use(checkout):
    (checkout.path / "g++").unlink()
    checkout.program("apt-get", APT)
    checkout.user("0")
    code, out, err = checkout.run("start")
    assert (code, err) == (0, "")
    assert "System packages (g++)" in out
    assert "install --no-install-recommends -y g++\n" in apt_calls(checkout)
    assert "install --no-install-recommends -y numactl\n" in apt_calls(checkout)
    assert "install --no-install-recommends -y iproute2\n" in apt_calls(checkout)
    assert "install --no-install-recommends -y slurm-wlm munge\n" in apt_calls(checkout)


@pytest.mark.parametrize("package", ["numactl", "iproute2", "slurm-wlm"])
def test_what_labs_can_do_without_stops_nothing(checkout, package):
    checkout.program("apt-get", APT)
    checkout.user("0")
    (checkout.folder / f"no-{package}").touch()
    code, out, _ = checkout.run("start")
    assert code == 0
    assert out.endswith("labkit start\n")
    assert f"Unable to locate package {package}" in (checkout.folder / ".lab/setup.log").read_text()


@pytest.mark.parametrize(("user", "there"), [("1000", False), ("0", True)])
def test_nothing_is_installed_without_root_or_where_all_is_there(checkout, user, there):
    checkout.program("apt-get", APT)
    checkout.user(user)
    if there:
        for program in ("numactl", "sbatch"):
            checkout.program(program, "#!/bin/sh\n")
        for program in ("ip", "tc"):  # not on the PATH of Debian's users
            checkout.program(f"../sbin/{program}", "#!/bin/sh\n")
    assert checkout.run("start")[0] == 0
    assert apt_calls(checkout) == ""


@pytest.mark.parametrize("program", ["ip", "tc"])
def test_half_of_iproute2_is_not_enough(checkout, program):
    """As on distributions that have `tc` in a package of its own."""
    checkout.program("apt-get", APT)
    checkout.user("0")
    checkout.program(program, "#!/bin/sh\n")
    assert checkout.run("start")[0] == 0
    assert "install --no-install-recommends -y iproute2\n" in apt_calls(checkout)


@pytest.mark.parametrize(
    ("program", "says", "told"),
    [
        ("uname", "Darwin arm64", "this is Darwin arm64, and the labs need Linux on x86-64"),
        ("df", "x\n/dev/sda 9 9 1048576 9% /", "1 GB are free here and set-up needs"),
    ],
)
def test_a_machine_that_cannot_serve_is_reported_in_one_line(checkout, program, says, told):
    checkout.program(program, f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    code, _, err = checkout.run("start")
    assert code == 2
    assert told in err
    assert err.count("\n") == 1
