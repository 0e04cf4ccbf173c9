"""Tests of the script `lab` with a fake uv: when it creates the environment, and its messages if it can't."""

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import typer.main

from labkit.cli import application
from labkit.system import kernels, paths, processes

pytestmark = pytest.mark.slow  # each runs the script, most of them several times

TOOLS = """
    awk bash cat chmod cp date df dirname env flock grep gzip head id ln mkdir mktemp mv nice nproc python3 readlink rm
    ls sed sh sha256sum sleep sort stat tail tar timeout uname
"""
COPIED = "lab pyproject.toml uv.lock env/uv.txt env/variables.txt env/torch/requirements.txt labkit"

# Bash in its place could lose the signal between its handler and `exec sleep`.
HANGS = "import os, time; open('hanging', 'w').write(str(os.getpid())); time.sleep(60)"

# A fake uv that logs its calls and creates environments whose `labkit` prints its arguments. A file `fails-WHAT` or
# `hangs-WHAT` in the checkout makes that step fail or hang.
UV = f"""#!/usr/bin/env bash
echo "${{UV_OFFLINE:-online}} $*" >>uv-calls
[[ $1 != export ]] || exit 0
case $* in
  *--no-install-package*) what=packages ;;
  *--target*) what=torch ;;
  sync*) what=horovod ;;
esac
[[ ! -f fails-$what ]] || {{ echo "no $what available"; exit 1; }}
[[ ! -f hangs-$what ]] || {sys.executable} -c "{HANGS}"
echo "$what ${{UV_PROJECT_ENVIRONMENT:-}} ${{CMAKE_TOOLCHAIN_FILE:-}} ${{UV_PYTHON_INSTALL_DIR:-}}" >>made
case $what in
  torch)
    [[ ! -f fails-torch-without-index || $* == *" --index "* ]] || exit 1
    while [[ $1 != --target ]]; do shift; done; mkdir -p "$2/torch/distributed/fsdp" "$2/torch/_dynamo" ;;
  horovod) mkdir -p .venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/horovod ;;
  packages)
    mkdir -p .venv/bin
    echo "VIRTUAL_ENV='$PWD/.venv'" >.venv/bin/activate
    printf '#!/usr/bin/env bash\\nPYTHONPATH=%q exec {sys.executable} "$@"\\n' "$PWD" >.venv/bin/python
    printf '#!/usr/bin/env bash\\necho "labkit $*"\\n' >.venv/bin/labkit
    chmod +x .venv/bin/python .venv/bin/labkit ;;
esac
"""
APT = """#!/bin/sh
echo "$*" >>apt-calls
case "$*" in
  *install*numactl) exit 100 ;;
  *g++*) printf '#!/bin/sh\\n' >"$(dirname "$0")/g++"; chmod +x "$(dirname "$0")/g++" ;;
esac
"""


class Checkout:
    """A checkout on a machine with only the programs put on its PATH."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder / "kit", folder / "bin"
        for name in COPIED.split():
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (source := paths.ROOT / name).is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        (self.folder / "env/bytecode.py").write_text("print('bytecode')")
        self.path.mkdir()
        for tool in TOOLS.split():
            (self.path / tool).symlink_to(shutil.which(tool))
        for tool in ("g++", "make"):
            self.program(tool, "#!/bin/sh\n")
        self.program("uv", UV)
        self.user("1000")

    def program(self, name: str, text: str) -> None:
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def user(self, number: str) -> None:
        """Set the user ID that the script and Python see."""
        self.program("id", f"#!/bin/sh\necho {number}\n")
        (self.folder / "sitecustomize.py").write_text(f"import os\nos.geteuid = lambda: {number}\n")

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen:
        places = {"PATH": str(self.path), "HOME": str(self.folder)}
        return subprocess.Popen(
            [self.folder / "lab", *arguments],
            env=places | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def touch(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def read(self, name: str) -> str:
        return (self.folder / name).read_text() if (self.folder / name).exists() else ""

    def made(self) -> list[str]:
        return [line.split(" ")[0] for line in self.read("made").splitlines()]

    def groups(self) -> set[str]:
        """Return the package groups that the last set-up requested from uv."""
        last = [line for line in self.read("uv-calls").splitlines() if "--no-install-package" in line][-1]
        return set(re.findall(r"--group=(\w+)", last))

    def interrupt(self, *arguments: str) -> str:
        """Press Ctrl-C while uv hangs; return standard error. All started processes must have ended."""
        process = self.start(*arguments)
        assert processes.wait_until(lambda: self.read("hanging").strip(), 60)
        started = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=20)[1]
        assert process.returncode == 2
        assert psutil.wait_procs(started, timeout=10)[1] == []
        return errors


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return a function that runs `./lab doctor`; it returns labkit's environment, and standard error."""
    checkout = Checkout(tmp_path_factory.mktemp("set up"))
    checkout.run("setup")
    (checkout.folder / ".venv/bin/labkit").write_text("#!/usr/bin/env bash\nenv\n")

    def run(**variables: str) -> tuple[dict[str, str], str]:
        code, out, err = checkout.run("doctor", **variables)
        assert code == 0
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line), err

    return run


def assert_one_line(completed: tuple[int, str, str], *messages: str) -> None:
    code, _, err = completed
    assert (code, err.count("\n")) == (2, 1), err
    assert err.startswith("lab: ")
    for message in messages:
        assert message in err


def test_only_the_first_use_creates_the_environment(checkout):
    checkout.program("apt-get", APT)
    code, out, err = checkout.run("doctor", "--json")
    assert (code, err) == (0, "")
    assert "Setting up" in out
    for step in ("Python and the packages", "Horovod, compiled", "Bytecode"):
        assert re.search(rf"^  {step}.* \d+ s$", out, re.M), step
    assert out.endswith("labkit doctor --json\n")
    assert sorted(checkout.made()) == ["horovod", "packages"]
    assert all(" --locked " in call for call in checkout.read("uv-calls").splitlines() if "sync" in call)
    assert "bytecode" in checkout.read(".lab/setup-bytecode.log")
    assert (checkout.folder / ".venv/bin/mpirun").readlink() == Path("../../labkit/mpi/mpirun.sh")
    assert checkout.read(".venv/lib/etc/ucx/ucx.conf") == "UCX_TLS=sm,self\n"
    assert checkout.read("apt-calls") == "", "only root installs system packages"
    assert checkout.run("data", "fetch") == (0, "labkit data fetch\n", "")
    assert len(checkout.made()) == 2


@pytest.mark.parametrize("words", [(), ("--help",), ("room", "--help"), ("lint", "07", "--help")])
def test_help_installs_nothing_and_is_labkits_after_set_up(checkout, words):
    code, out, err = checkout.run(*words)
    assert (code, "./lab start" in out, err, checkout.made()) == (0, True, "", [])
    assert not (checkout.folder / ".lab").exists()
    checkout.run("setup")
    checkout.touch("fails-packages")
    assert checkout.run(*words) == (0, f"labkit {' '.join(words) or '--help'}\n", "")


@pytest.mark.parametrize("lock", ["uv.lock", "pyproject.toml", "env/uv.txt"])
def test_a_changed_lock_sets_up_again(checkout, lock):
    checkout.run("setup")
    with (checkout.folder / lock).open("a") as file:
        file.write("\n")
    assert "Updating the packages" in checkout.run("doctor")[1]
    assert "Updating the packages" in checkout.run("setup")[1], "setup always checks everything"


def test_a_moved_checkout_rebuilds_its_environment(checkout, tmp_path):
    checkout.run("setup")
    (checkout.folder / ".venv/old").touch()
    checkout.run("setup")
    assert (checkout.folder / ".venv/old").exists(), "it was not moved"
    checkout.folder = checkout.folder.rename(tmp_path / "elsewhere")
    assert checkout.run("doctor")[1].endswith("labkit doctor\n")
    assert not (checkout.folder / ".venv/old").exists()


@pytest.mark.parametrize("name", ["it's a b", 'ü"d$x;&%20#?(1)'])
def test_in_a_folder_with_an_odd_name_horovod_is_compiled_through_a_plain_link(tmp_path_factory, name):
    """The flags that MPICH and TensorFlow print are split at blanks."""
    folder = tmp_path_factory.mktemp("odd") / name
    folder.mkdir()
    checkout = Checkout(folder)
    code, _, err = checkout.run("setup")
    assert (code, err) == (0, "")
    first, last = (line for line in checkout.read("made").splitlines() if line.startswith("horovod"))
    assert len(first.split()) == 3  # no blank in either path
    assert not Path(first.split()[1]).parent.exists()  # the link is gone
    assert str(checkout.folder) in last
    assert f"pip uninstall --python {checkout.folder}/.venv horovod" in checkout.read("uv-calls")


@pytest.mark.parametrize(
    ("user", "variable", "folder"), [("0", "", ".lab/pythons"), ("0", "/p", "/p"), ("1000", "", "")]
)
def test_uv_run_by_root_installs_python_where_other_accounts_can_read_it(checkout, user, variable, folder):
    checkout.user(user)
    assert checkout.run("start", **({"UV_PYTHON_INSTALL_DIR": variable} if variable else {}))[0] == 0
    folders = {line.rpartition(" ")[2] for line in checkout.read("made").splitlines()}
    assert folders == {str(checkout.folder / folder) if folder else ""}


PASSED = """
    UV_INDEX_URL UV_INDEX_MIRROR_PASSWORD UV_CACHE_DIR UV_PYTHON_PREFERENCE PIP_FIND_LINKS JUPYTER_DATA_DIR UCX_TLS
    SLURM_JOB_ID SBATCH_PARTITION HTTPS_PROXY SSL_CERT_FILE LAB_DATA TF_VAR_region CXX GLIBC_TUNABLES PYTEST_VERSION
"""
CLEARED = """
    UV_PROJECT_ENVIRONMENT UV_COMPILE_BYTECODE UV_NO_BINARY PIP_TARGET PIP_REQUIRE_VIRTUALENV PYTHONHOME PYTHONSTARTUP
    CONDA_PREFIX IPYTHONDIR JUPYTER_TOKEN MPLBACKEND PMI_RANK OMPI_X
"""
REPORTED = """
    ONEDNN_DEFAULT_FPMATH_MODE HOROVOD_CONTROLLER KMP_AFFINITY OPENBLAS_CORETYPE XLA_FLAGS ATEN_CPU_CAPABILITY
    NPY_DISABLE_CPU_FEATURES PYTEST_ADDOPTS
"""


def test_lab_and_kernels_clear_the_same_variables_and_report_those_that_change_results(environment):
    names = f"{PASSED}{CLEARED}{REPORTED}".split()
    variables = dict.fromkeys(names, "x") | {"PIP_USER": "1", "KERAS_BACKEND": "tensorflow"}
    variables["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"  # glibc 2.41 reports one that it doesn't know
    inherited, err = environment(**variables)
    assert (inherited.keys() & variables.keys()) - {"PIP_USER", "KERAS_BACKEND"} == set(PASSED.split())
    assert (inherited["PIP_USER"], inherited["KERAS_BACKEND"]) == ("0", "tensorflow")
    assert err.count("\n") == 1
    assert set(err.split(": ")[2].split(" (")[0].split()) == set(REPORTED.split())
    of_kernel = variables.copy()
    assert set(kernels.settle_environment(of_kernel)) == set(REPORTED.split())
    assert of_kernel.keys() & variables.keys() == inherited.keys() & variables.keys()


def test_settings_of_the_c_library_that_hide_instruction_sets_are_cleared(environment):
    hides = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.cpu.hwcaps=-AVX2_Usable"}
    inherited, err = environment(**hides)
    assert "GLIBC_TUNABLES" not in inherited
    assert " GLIBC_TUNABLES (" in err
    assert kernels.settle_environment(hides) == ["GLIBC_TUNABLES"]


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (("join", "http://x", "K7Q2M9"), set()),
        (("class", "--zip", "--name", "ada"), set()),
        (("class", "collected"), {"classroom"}),
        (("build", "07"), {"author"}),
        (("test", "--fast"), {"author"}),
        (("style",), {"author", "classroom"}),
        (("test", "--all"), {"author", "classroom"}),
        (("setup", "--classroom", "--author"), {"author", "classroom"}),
    ],
)
def test_a_command_adds_its_package_groups_permanently(checkout, words, groups):
    for command in (("start",), words, ("start",)):
        assert checkout.run(*command)[0] == 0
    assert checkout.groups() == groups
    assert checkout.made().count("packages") == 1 + bool(groups)


def test_a_compiler_command_of_several_words_is_found(checkout):
    checkout.program("ccache", "#!/bin/sh\n")
    assert checkout.run("setup", CXX="ccache g++")[0] == 0
    assert "missing: g++" in checkout.run("setup", CXX="icpx -O2")[2]


def test_what_uv_says_about_the_lock_is_shown(checkout):
    """In a folder that is a member of another project's workspace, say."""
    checkout.program("uv", "#!/bin/sh\necho 'error: no members' >&2\nexit 2\n")
    fake = "#!/bin/sh\nmkdir -p .lab/uv.part/bin && ln -sf /bin/true .lab/uv.part/bin/python\n"
    checkout.program("python3", fake)
    code, _, err = checkout.run("setup")
    assert (code, err) == (2, "lab: uv can't read this kit's packages: error: no members\n")


def test_a_python_without_a_module_is_named_and_not_kept(checkout):
    python = f'exec {sys.executable} "$@"'
    assert python in UV
    checkout.program("uv", UV.replace(python, "echo No module named _sqlite3; exit 1"))
    code, _, err = checkout.run("setup")
    assert code == 2
    assert "No module named _sqlite3" in err
    assert "UV_PYTHON_PREFERENCE=only-managed ./lab setup" in err
    assert not (checkout.folder / ".venv").exists()


@pytest.mark.parametrize("why", ["No space left on device (os error 28)", "Disk quota exceeded"])
def test_a_full_disk_is_named(checkout, why):
    checkout.program("uv", UV.replace("no $what available", why))
    checkout.touch("fails-packages")
    _, _, err = checkout.run("setup", UV_CACHE_DIR="/small")
    assert "A disk is full, of bytes (df -h) or of files (df -i):" in err
    assert "uv's cache in /small" in err


def test_a_group_that_cannot_be_installed_leaves_the_kit_usable(checkout):
    """Without a network, say: the students' commands run, and the same command later adds the group."""
    checkout.run("setup")
    checkout.touch("fails-packages")
    for command in (["room", "status"], ["test", "--fast"], ["setup", "--classroom"]):
        code, out, err = checkout.run(*command)
        assert (code, "3 GB" in out) == (2, False)
        assert re.search(r"; \./lab setup --(author|classroom) resumes\.$", err)
        assert checkout.run("start") == (0, "labkit start\n", "")
    (checkout.folder / "fails-packages").unlink()
    assert checkout.run("room", "status")[1].endswith("labkit room status\n")
    assert checkout.groups() == {"classroom"}


def test_no_command_leaves_the_kit_unable_to_start(checkout):
    """Each command, right or mistyped, with packages that can't be installed or a set-up that is interrupted."""
    checkout.run("setup")
    names = set(typer.main.get_command(application()).commands)
    assert {"start", "doctor", "room", "lint"} <= names
    for what in ("packages", "horovod"):
        checkout.touch(f"fails-{what}")
        for name in sorted(names):
            for words in ([name], [name, "--help"], [f"{name}s", "--all"]):
                checkout.run(*words)
        assert checkout.run("start") == (0, "labkit start\n", ""), (what, names)
        (checkout.folder / f"fails-{what}").unlink()
    checkout.touch("hangs-packages")
    assert "lab: interrupted." in checkout.interrupt("lint")
    assert checkout.run("start") == (0, "labkit start\n", "")


def test_no_command_changes_the_packages_of_a_running_hub(checkout):
    assert checkout.run("hub", "up")[0] == 0
    made, settings = checkout.made(), checkout.folder / ".lab/hub/settings.json"
    settings.parent.mkdir()
    settings.touch()
    code, _, err = checkout.run("lint")
    assert code == 2
    assert "./lab hub down first" in err
    assert (checkout.groups(), checkout.made()) == ({"classroom"}, made)
    for command in (["hub", "status"], ["start"], ["hub", "down"]):
        assert checkout.run(*command)[0] == 0
    settings.unlink()
    assert checkout.run("lint")[0] == 0


def test_the_script_lists_every_command_that_needs_a_group():
    """It runs before any package is installed, so it has its own list."""
    groups = {}
    for line, group in re.findall(r"^    ([a-z |-]+)\) echo (\w+) ;;$", (paths.ROOT / "lab").read_text(), re.M):
        groups |= dict.fromkeys(line.split(" | "), group)
    for entry in metadata.entry_points(group="labkit.commands"):
        app = typer.Typer()
        entry.load()(app)
        names = set(typer.main.get_command(app).commands) - {"join", "hand", "leave", "style", "test"}
        assert {groups.get(name) for name in names} == {entry.name}, names


@pytest.mark.parametrize(
    ("variables", "direct"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "site.org"}, "localhost,127.0.0.1,::1,site.org"),
        ({"NO_PROXY": "a", "no_proxy": "b"}, "localhost,127.0.0.1,::1,b"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_servers_on_this_machine_are_never_reached_through_a_proxy(environment, variables, direct):
    inherited, _ = environment(http_proxy="http://127.0.0.1:9", **variables)
    assert inherited["no_proxy"] == inherited["NO_PROXY"] == direct


def test_a_python_that_this_account_may_not_run_is_reported_in_one_line(checkout):
    """For example, one below root's home, in a kit that root has set up."""
    checkout.run("setup")
    (checkout.folder / ".venv/bin/python").unlink()
    (checkout.folder / ".venv/bin/python").symlink_to("/nowhere/bin/python3.11")
    assert_one_line(checkout.run("doctor"), "Python, /nowhere/bin/python3.11, is gone, or you may not run it")


def test_a_failed_download_names_the_settings_of_package_sources(checkout):
    checkout.touch("fails-packages")
    settings = checkout.folder / "settings/uv/uv.toml"
    settings.parent.mkdir(parents=True)
    settings.touch()
    variables = {"UV_INDEX_URL": "https://ada:secret@x.test", "XDG_CONFIG_HOME": str(settings.parent.parent)}
    err = checkout.run("start", **variables)[2]
    assert "UV_INDEX_URL" in err
    assert str(settings) in err
    assert "secret" not in err


@pytest.mark.parametrize(
    ("what", "step"),
    [("packages", "Python and the packages"), ("horovod", "Horovod, compiled for this TensorFlow")],
)
def test_a_failed_step_shows_its_error_and_the_next_call_resumes(checkout, what, step):
    checkout.touch(f"fails-{what}")
    code, _, err = checkout.run("start")
    assert code == 2
    assert f"no {what} available" in err
    assert f'set-up stopped at "{step}". The full log is .lab/setup.log; ./lab setup resumes.\n' in err
    (checkout.folder / f"fails-{what}").unlink()
    assert checkout.run("start")[1].endswith("labkit start\n")


def test_executable_bits_lost_in_an_archive_are_restored(checkout):
    for name in ("lab", "labkit/mpi/mpirun.sh"):
        (checkout.folder / name).chmod(0o644)
    command = ["bash", checkout.folder / "lab", "setup"]
    assert subprocess.run(command, env={"PATH": str(checkout.path)}, timeout=60).returncode == 0
    assert os.access(checkout.folder / "lab", os.X_OK)
    assert os.access(checkout.folder / ".venv/bin/mpirun", os.X_OK)


def test_a_failed_step_ends_concurrent_steps(checkout):
    checkout.touch("fails-horovod")
    (checkout.folder / "env/bytecode.py").write_text(HANGS)
    assert checkout.run("start")[0] == 2
    hanging = checkout.read("hanging").strip()
    assert not processes.find(lambda process: str(process.pid) == hanging)


@pytest.mark.parametrize("what", ["packages", "horovod"])
def test_ctrl_c_ends_all_processes_and_the_next_call_resumes(checkout, what):
    checkout.touch(f"hangs-{what}")
    assert "lab: interrupted. ./lab setup resumes." in checkout.interrupt("start")
    (checkout.folder / f"hangs-{what}").unlink()
    assert checkout.run("start")[1].endswith("labkit start\n")


def test_a_second_set_up_waits_for_the_first_one(checkout):
    checkout.touch("hangs-packages")
    first = checkout.start("setup")
    assert processes.wait_until(lambda: checkout.read("hanging").strip(), 60)
    second = checkout.start("doctor")
    assert "another set-up of this folder is running; waiting for it" in second.stdout.readline()
    (checkout.folder / "hangs-packages").unlink()
    psutil.Process(int(checkout.read("hanging"))).kill()
    assert first.communicate(timeout=60)[0].endswith("labkit setup\n")
    assert second.communicate(timeout=60)[0] == "labkit doctor\n", "it set up again"
    assert (checkout.folder / ".lab/setup.lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "sudo apt-get install --no-install-recommends -y g++ make (or ask an administrator"),
        ("dnf", "sudo dnf install -y gcc-c++ make python3"),
        (None, "your package manager, for: g++ make"),
    ],
)
def test_missing_compilers_are_reported_first_with_the_install_command(checkout, manager, command):
    for tool in ("g++", "make"):
        (checkout.path / tool).unlink()
    if manager:
        checkout.program(manager, APT)
    assert_one_line(checkout.run("start"), "missing: g++ make.", command)
    assert (checkout.made(), checkout.read("apt-calls")) == ([], "")


def test_root_on_debian_gets_missing_and_optional_system_packages(checkout):
    (checkout.path / "g++").unlink()
    checkout.program("apt-get", APT)
    checkout.user("0")
    code, out, err = checkout.run("start", PATH=str(checkout.path))
    assert (code, err) == (0, "")
    assert "System packages (g++)" in out
    installed = re.findall(r"install --no-install-recommends -y (.*)", checkout.read("apt-calls"))
    assert installed[0] == "g++"
    assert set(installed[1:]) <= {"numactl", "iproute2", "slurm-wlm munge"}, "an unavailable package stopped others"
    assert ("Optional system packages" in out) == bool(installed[1:])


@pytest.mark.parametrize(
    ("cpu", "wheels"), [("x86_64", "x86_64-manylinux_2_28"), ("aarch64", "aarch64-manylinux_2_35")]
)
def test_packages_match_the_cpu(cpu, wheels, checkout):
    checkout.program("uname", f"#!/bin/sh\n[ $1 = -m ] && echo {cpu} || echo Linux {cpu}\n")
    checkout.run("start")
    options = f"--locked --inexact --python-platform {wheels} --no-install-package horovod"
    assert f"sync {options}" in checkout.read("uv-calls")


@pytest.mark.parametrize(
    ("program", "output", "message"),
    [
        ("uname", "Darwin arm64", "this is Darwin arm64, but the labs need Linux on x86-64 or Arm64"),
        ("uname", "Linux riscv64", "this is Linux riscv64, but"),
        ("df", "x\n/dev/sda 9 9 1048576 9% /", "only 1 GB free, but set-up needs"),
    ],
)
def test_an_unsuitable_machine_is_reported_in_one_line(checkout, program, output, message):
    checkout.program(program, f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    assert_one_line(checkout.run("start"), message)


@pytest.mark.parametrize("name", ["a:b", "course=1", "a\nb"])
def test_a_path_that_programs_would_split_is_refused_before_any_work(checkout, tmp_path, name):
    checkout.folder = checkout.folder.rename(tmp_path / name)
    assert_one_line(checkout.run("start"), "contains a colon, an equals sign or a line break")
    assert checkout.read("uv-calls") == ""


def install_torch(checkout: Checkout) -> subprocess.CompletedProcess:
    """Run the last part of `./lab setup --torch`."""
    assert checkout.run("setup")[0] == 0
    return subprocess.run(
        [checkout.folder / ".venv/bin/python", "-c", "from labkit.cli import setup; setup.install_torch()"],
        cwd=checkout.folder,
        env={"PATH": str(checkout.path), "PIP_FIND_LINKS": "/wheels"},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("only_its_index", [False, True])
def test_pytorch_comes_from_pips_sources_or_its_own_index(checkout, only_its_index):
    checkout.touch(*["fails-torch-without-index"] * only_its_index)
    completed = install_torch(checkout)
    assert (completed.returncode, completed.stderr) == (0, "")
    installs = [call for call in checkout.read("uv-calls").splitlines() if "--target" in call]
    assert all("--find-links /wheels" in call for call in installs)
    assert ["https://download.pytorch.org/whl/cpu" in call for call in installs] == [False, True][: 1 + only_its_index]
    packages = checkout.folder / "env/torch/packages"
    assert (packages / "requirements.txt").read_text() == checkout.read("env/torch/requirements.txt")
    assert (packages / "torch").is_dir()
    assert not (packages.parent / ".packages.part").exists()


def test_if_pytorch_is_unavailable_an_old_installation_is_kept(checkout):
    old = checkout.folder / "env/torch/packages/old"
    old.mkdir(parents=True)
    checkout.touch("fails-torch")
    completed = install_torch(checkout)
    assert "UV_FIND_LINKS=FOLDER ./lab setup --torch) resumes" in completed.stderr
    assert old.exists()
