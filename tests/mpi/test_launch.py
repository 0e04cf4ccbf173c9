"""Ranks are read completely, bound as planned, and ended cleanly, however they or their caller end."""

import contextlib
import os
import platform
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from lab_error import error_of
from listening import beyond_loopback, listeners_marked
from machines import machine

from labkit.mpi import launch, loopback
from labkit.mpi.failure import RankError, first_failure
from labkit.mpi.launch import Run, run_ranks
from labkit.mpi.mpirun import Rank
from labkit.system import compiler, cores, paths
from labkit.system.machine import shares, this_machine
from labkit.system.processes import find, wait_until
from labkit.testbed import Testbed

MAX_DELAY_S = 40  # until a rank's death is noticed, on a machine that runs other tests; runs may take 60


@pytest.fixture(autouse=True)
def isolated_cores(monkeypatch):
    """Isolate core reservations of these tests from other runs on this machine."""
    monkeypatch.setattr(cores, "NAME_PREFIX", f"labkit-test-{uuid.uuid4().hex}-")


@pytest.fixture(autouse=True)
def nothing_printed_before(monkeypatch):
    monkeypatch.setattr("labkit.system.terminal._seen", set())


# As in Docker and Apptainer: the calls have these numbers on x86-64 only (seccomp(2), linux/filter.h).
WITHOUT_PROCESS_VM = """
import ctypes, os, struct, sys
rules = [(0x20, 0, 0, 0), (0x15, 1, 0, 310), (0x15, 0, 1, 311), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = struct.pack("H6xP", len(rules), ctypes.addressof(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 == libc.prctl(22, 2, program, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the system calls' numbers are x86-64's")
def test_large_messages_arrive_where_processes_may_not_read_each_other(script):
    ranks = script(
        """
        import numpy as np
        from mpi4py import MPI
        total = np.empty(8 << 20, np.float32)
        MPI.COMM_WORLD.Allreduce(np.ones_like(total), total)
        print(total.mean())
        """
    )
    run = f"from labkit.mpi.launch import run_ranks; run_ranks(2, {str(ranks)!r})"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PROCESS_VM, "-c", run], capture_output=True, text=True, timeout=120
    )
    assert {"[0] 2.0", "[1] 2.0"} <= set(done.stdout.splitlines()), done


class TestInput:
    @pytest.mark.parametrize(
        ("script", "options", "part"),
        [
            ("gone.py", {}, "gone.py does not exist"),
            (".", {}, "is a folder"),
            *(("exists.py", {"threads": odd}, "threads must be an integer") for odd in ("2", 1.5, True)),
            ("exists.py", {"env": {"A": "x" * 300_000}}, "cannot start mpirun: Argument list too long"),
            ("exists.py", {"n": 0}, "the number of ranks, must be"),
            ("exists.py", {"n": 10_000}, "10000 ranks are too many"),
        ],
    )
    def test_one_line_and_nothing_runs(self, tmp_path, monkeypatch, capsys, script, options, part):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "exists.py").touch()
        message = error_of(run_ranks, options.pop("n", 2), script, **options, show=False)
        assert part in message
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        ([(0, 1, 4, 5)] * 2, "All runs used the same 2 cores of 1 NUMA node."),
        (
            [(1, 2, 5, 6)] * 2,
            "All runs used the same 2 cores of 2 NUMA nodes, "
            "and a process on several of them reads some memory from another node.",
        ),
        ([(0, 4), (1, 5)], "The runs used different cores, as other runs had some of them."),
        ([(0, 4), ()], "Not all ranks were bound to cores, so the runs may have used different cores and memory."),
    ],
)
def test_labs_print_which_cores_the_compared_runs_used(monkeypatch, cpus, text):
    monkeypatch.setattr(launch, "this_machine", lambda: machine(4, smt=2, numa=2))
    assert launch.placement(Run((), cpus=run_cpus) for run_cpus in cpus) == text


# Real runs from here on


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a function that writes a script for ranks; afterwards, no process of the test's runs may be left."""
    monkeypatch.chdir(tmp_path)
    mark = tmp_path.as_posix()
    monkeypatch.setenv("LABKIT_TEST", mark)

    def write(text: str, name: str = "ranks.py") -> str:
        Path(name).write_text(textwrap.dedent(text))
        return name

    yield write
    assert living(mark) == []


def living(mark: str) -> list[psutil.Process]:
    return find(lambda process: process.environ().get("LABKIT_TEST") == mark)


def failure(*args, **options) -> RankError:
    with pytest.raises(RankError) as caught:
        run_ranks(*args, **options)
    return caught.value


class TestOutput:
    TENSORFLOW = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on. You may see different results.",
        "I0000 00:00:1.6 7 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use this CPU.",
        "To enable the following instructions: AVX2 FMA, rebuild TensorFlow.",
        "E0000 00:00:1.7 7 port.cc:1] no such file",
    )

    def test_lines_arrive_whole_and_in_order_without_tensorflows_notices(self, script, capsys):
        count = 3000
        name = script(f"""
            import os, sys
            rank = os.environ["PMI_RANK"]
            for i in range({count}):
                print(rank, i, "x" * (i * 37 % 200))
                print("err", rank, i, file=sys.stderr)
            print("long", "y" * 300_000, *{self.TENSORFLOW}, sep="\\n")
            for i in range(100):
                print(f"\\r{{i + 1}}%", end="")
            print()
            sys.stdout.buffer.write(b"caf\\xe9\\n")
            sys.stdout.write("no newline")
        """)
        run = run_ranks(3, name, timeout=60)
        for rank, lines in enumerate(run.lines):
            out = [f"{rank} {i} {'x' * (i * 37 % 200)}" for i in range(count)]
            out += ["long", "y" * 300_000, self.TENSORFLOW[-1], "100%", "caf\ufffd", "no newline"]
            assert [line for line in lines if not line.startswith("err")] == out
            assert [line for line in lines if line.startswith("err")] == [f"err {rank} {i}" for i in range(count)]
        shown = capsys.readouterr().out.splitlines()
        assert shown[0].startswith("mpirun -n 3 ")
        for rank, lines in enumerate(run.lines):
            assert [line for line in shown if line.startswith(f"[{rank}] ")] == [f"[{rank}] {line}" for line in lines]

    def test_the_command_is_printed_once_and_runs_in_a_shell(self, script, capsys):
        name = script("import sys; print(*sys.argv, sys.path[0] == sys.argv[-1])")
        arguments, line = ("a b", Path.cwd()), f"{name} a b {Path.cwd()} True"
        for _ in range(2):  # with several ranks, the shell would mix their lines
            assert run_ranks(1, name, *arguments, threads=1, env={"A": 1}).lines == ((line,),)
        first, again, _ = capsys.readouterr().out.split(f"[0] {line}\n")
        assert "OMP_NUM_THREADS 1" in first
        assert "-genv A 1" in first
        assert again.splitlines()[0] in (f"mpirun -n 1 … {name} 'a b' {Path.cwd()}", first)  # the second on other cores
        typed = subprocess.run(
            ["bash", "-c", first.partition("\nWarning")[0]],
            env={**os.environ, "PATH": f"{launch.BIN}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert typed.stdout == f"{line}\n"
        assert typed.returncode == 0  # MPI may warn on stderr, for example without /sys

    def test_messages_of_mpi_are_separate_from_the_ranks_lines_and_not_lost(self, script, capsys):
        name = script("""
            print("before", end="")
            from mpi4py import MPI
            MPI.COMM_WORLD.barrier()
            print(" and after")
            raise SystemExit(3)
        """)
        error = failure(1, name, env={"UCX_LOG_LEVEL": "info"})
        assert error.lines == ("before and after",)
        shown = capsys.readouterr().out.splitlines()
        messages = [line for line in shown if line.startswith("[0] MPI: [")]
        assert any("UCX  INFO  Version" in line for line in messages)
        assert [line for line in shown if "UCX  " in line] == messages
        assert messages[-1] in str(error)


@pytest.mark.slow
class TestListeners:
    """No one else, on this machine or another, can connect to a run."""

    BODY = """
        import os, pathlib, socket, time
        own = socket.create_server(("127.0.0.1", 0))
        from mpi4py import MPI
        import tensorflow as tf, horovod.tensorflow as hvd, daal4py
        hvd.init()
        daal4py.daalinit()
        print(MPI.COMM_WORLD.allreduce(1), hvd.size(), daal4py.num_procs())
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
    """

    def test_everything_listens_on_loopback_only_and_shared_memory_is_private(self, script):
        name, mark, sockets, modes = script(self.BODY), os.environ["LABKIT_TEST"], {}, set()
        with ThreadPoolExecutor() as pool:
            run = pool.submit(run_ranks, 2, name, show=False, timeout=100)
            up = 0
            while not run.done():
                for address, programs in listeners_marked(mark).items():
                    sockets.setdefault(address, set()).update(programs)
                shared = shared_memory(mark)
                with contextlib.suppress(FileNotFoundError):
                    modes |= {path.stat().st_mode for paths in shared.values() for path in paths}
                _, *system_v = map(str.split, Path("/proc/sysvipc/shm").read_text().splitlines())
                modes |= {int(mode, 8) for _, _, mode, _, maker, *_ in system_v if int(maker) in shared}
                if (up := up + (len(shared) >= 2)) == 3:
                    Path("go").touch()
        assert run.result().lines == (("2 2 2",),) * 2
        programs = {program for programs in sockets.values() for program in programs}
        assert "python" in programs, "the scripts' own sockets were not seen, so others might be missed"
        assert any("mpi" in program for program in programs)  # Hydra's port
        assert beyond_loopback(sockets) == {}
        assert {mode & 0o077 for mode in modes} == {0}

    def test_inherited_preloads_of_ranks_remain(self, script, monkeypatch):
        monkeypatch.setenv("LD_PRELOAD", "libc.so.6:libm.so.6")
        name = script("import os; print(os.environ['LD_PRELOAD'])")
        assert run_ranks(1, name, show=False).lines == (("libc.so.6:libm.so.6",),)

    def test_without_a_compiler_ranks_run_after_one_warning(self, script, monkeypatch, tmp_path, capsys):
        monkeypatch.setattr(compiler, "STATE", tmp_path / "state")
        monkeypatch.setenv("CXX", "no-such-compiler")
        name = script("print('hello')")
        runs = [run_ranks(1, name, threads=1) for _ in range(2)]
        assert [run.lines for run in runs] == [(("hello",),)] * 2
        assert capsys.readouterr().out.count(loopback.OPEN_PORT_WARNING) == 1


def shared_memory(mark: str) -> dict[int, list[Path]]:
    """Return the files in shared memory that each rank has open."""
    files_of = {}
    for process in living(mark):
        with contextlib.suppress(OSError):
            files = Path(f"/proc/{process.pid}/fd").iterdir()
            if shared := [file for file in files if str(file.readlink()).startswith("/dev/shm/")]:
                files_of[process.pid] = shared
    return files_of


@pytest.mark.slow
class TestSharing:
    AFFINITY = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"

    def test_ranks_are_bound_as_planned(self, script):
        host = this_machine()
        if host.usable_cores < 2:
            pytest.skip("RANKS BOUND TO CORES NOT TESTED HERE: that needs 2 cores")
        run = run_ranks(2, script(self.AFFINITY), threads=1)
        expected = [list(cpus) for cpus in shares(host, 2, 1)] if run.cpus else [list(host.cpus)] * 2
        assert run.lines == tuple((f"{cpus} 1",) for cpus in expected)

    def test_a_restricted_process_keeps_its_ranks_inside(self, script):
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(allowed)})
        try:
            assert run_ranks(1, script(self.AFFINITY)).lines == ((f"[{max(allowed)}] 1",),)
        finally:
            os.sched_setaffinity(0, allowed)

    WAITING = """
        import os, pathlib, sys, time
        pathlib.Path(sys.argv[1]).write_text(str(sorted(os.sched_getaffinity(0))))
        while not pathlib.Path("go").exists():
            time.sleep(0.02)
    """

    def test_concurrent_runs_have_separate_cores_and_the_last_is_warned(self, script, capsys):
        host = this_machine()
        if len(host.cores) < 2 or host.quota is not None:
            pytest.skip("RUNS WITH SEPARATE CORES NOT TESTED HERE: that needs 2 cores without a quota")
        name, count = script(self.WAITING), len(host.cores)
        quick = script(self.AFFINITY, "quick.py")
        files = [Path(f"cpus{i}") for i in range(count)]
        with ThreadPoolExecutor(count) as pool:
            runs = [pool.submit(run_ranks, 1, name, path, threads=1, show=False) for path in files]
            while not all(path.exists() and path.read_text() for path in files):
                assert not any(run.done() for run in runs)
                time.sleep(0.02)
            last = run_ranks(1, quick, threads=1)
            Path("go").touch()
        assert sorted(path.read_text() for path in files) == sorted(str(list(core)) for core in host.cores)
        assert all(run.result().cpus for run in runs)
        assert (last.cpus, last.lines) == ((), ((f"{list(host.cpus)} 1",),))
        assert f"other runs have {count} of {count} cores" in capsys.readouterr().out
        assert run_ranks(1, quick, threads=1, show=False).cpus


MPI4PY = """
    import os, signal, sys, time
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    print("here is", rank)
    MPI.COMM_WORLD.barrier()
    if rank == 1:
        print(time.monotonic())
        {fault}
    MPI.COMM_WORLD.allreduce(1)
    print("never")
"""
PLAIN = """
    import os, signal, sys, time
    if os.environ["PMI_RANK"] == "1":
        print(time.monotonic())
        {fault}
    time.sleep(100)
"""


class TestFaults:
    @pytest.mark.parametrize(
        ("body", "fault", "status", "killed_by"),
        [
            (MPI4PY, "os.kill(os.getpid(), signal.SIGSEGV)", None, signal.SIGSEGV),
            (MPI4PY, "raise ValueError('boom')", 1, None),
            (PLAIN, "sys.exit(3)", 3, None),
        ],
    )
    def test_the_failed_rank_is_named_quickly(self, script, body, fault, status, killed_by):
        error = failure(3, script(body.format(fault=fault)), timeout=60)
        late = time.monotonic() - float(next(line for line in error.lines if line[:1].isdigit()))
        assert late < MAX_DELAY_S
        assert error.rank == 1
        assert str(error).startswith("Rank 1 ")
        assert (killed_by.name if killed_by else f"exit status {status}") in str(error)
        assert all(line in str(error) for line in error.lines)

    def test_the_last_lines_are_quoted_and_a_traceback_begins_in_the_script(self, script):
        # To one stream: the order of lines from two is not kept.
        text = "import sys\nprint(*range(100), sep='\\n', file=sys.stderr)\n1 / 0"
        *printed, head, place, code, arrows, error = failure(1, script(text), timeout=60).lines
        assert printed == list(map(str, range(90, 100)))
        assert (head, place) == ("Traceback (most recent call last):", '  File "ranks.py", line 3, in <module>')
        assert (code, set(arrows), error) == ("    1 / 0", set(" ~^"), "ZeroDivisionError: division by zero")

    def test_mpi_abort(self, script):
        error = failure(3, script(MPI4PY.format(fault="MPI.COMM_WORLD.Abort(7)")), timeout=60)
        assert "exit status 7" in str(error)
        assert error.rank in (1, None)  # mpirun may end everything before it passes on the rank's output


class TestEnd:
    def test_after_a_timeout_stubborn_ranks_and_their_children_are_ended(self, script):
        name = script("""
            import os, signal, subprocess, time
            rank = os.environ["PMI_RANK"]
            if rank == "2":
                raise SystemExit
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            mark = {"LABKIT_TEST": os.environ["LABKIT_TEST"]}
            subprocess.Popen(["sleep", "1000"])
            subprocess.Popen(["sleep", "1000"], env=mark)
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            if rank == "1":
                os.kill(os.getpid(), signal.SIGSTOP)
            print("up")
            time.sleep(1000)
        """)
        error = failure(3, name, timeout=10)
        assert str(error).startswith("Timed out after 10 s, and all ranks were ended.")
        assert "rank 0 was silent for" in error.lines[0]
        assert "its last line: up" in error.lines[0]
        assert "it had printed nothing" in error.lines[1]
        assert "rank 2 had finished after" in error.lines[2]

    def test_leftover_children_are_killed_and_cause_no_delay(self, script):
        name = script("""
            import subprocess
            subprocess.Popen(["sleep", "1000"])
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            print("done")
        """)
        began = time.monotonic()
        run = run_ranks(2, name, timeout=60)
        assert run.lines == (("done",), ("done",))
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("ranks", "rank", "how"),
    [
        # The first report counts.
        (({"exit_code": 1, "ended_at": 2.0}, {"exit_code": 3, "ended_at": 1.5}), 1, "exit status 3"),
        # A rank that failed to reach a dying one, or crashed as another was killed, is not blamed.
        (({"exit_code": 15, "ended_at": 1.0}, {"exit_code": -9, "ended_at": 1.1}), 1, "SIGKILL"),
        (({"exit_code": -11, "ended_at": 1.0}, {"exit_code": -9, "ended_at": 1.1}), 1, "SIGKILL"),
        # A rank that gave up is blamed, not the ones that were killed for it long afterwards.
        (({"exit_code": 15, "ended_at": 1.0}, {"exit_code": -9, "ended_at": 4.0}), 0, "exit status 15"),
        # On another node, a rank may end without a report.
        (({"exit_code": 0, "ended_at": 9.0}, {"local": False}), 1, "without a message"),
        # A crash after the script.
        (({"exit_code": 0, "ended_at": 1.2}, {"exit_code": -11, "finished_at": 1.0}), 1, "SIGSEGV"),
    ],
)
def test_who_failed_first(ranks, rank, how):
    """The verdict on synthetic exits, for cases that are rare in real runs."""
    ranks = [Rank(number, **{"started": True, "local": True, **known}) for number, known in enumerate(ranks)]
    error = first_failure(ranks, None, ())
    assert error.rank == rank
    assert how in str(error)


def test_a_rank_that_mpirun_killed_after_its_script_did_not_fail():
    killed = {"finished_at": 1.0, "ended_at": 1.2, "gone_at": 1.2}
    assert first_failure([Rank(0, started=True, exit_code=0), Rank(1, started=True, **killed)], None, ()) is None


@pytest.mark.slow
def test_an_ended_slurm_job_is_reported_as_soon_as_srun_gives_up(tmp_path, monkeypatch):
    """Its variables remain in a tmux, editor or JupyterLab that was started in it. Hydra would wait forever."""
    message = "srun: error: Unable to confirm allocation for job 999: Invalid job id specified"
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = {"JOB_ID": "999", "NNODES": "1", "JOB_NUM_NODES": "1", "NODELIST": "n1", "TASKS_PER_NODE": "2"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    (tmp_path / "x.py").write_text("from mpi4py import MPI")
    monkeypatch.chdir(tmp_path)
    error = failure(2, "x.py", timeout=300, show=False)
    assert str(error) == f"mpirun started no rank. It reported:\n  {message}"


STUBBORN = """
    import os, signal, time
    from mpi4py import MPI
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    MPI.COMM_WORLD.barrier()
    print("ready")
    time.sleep(1000)
"""
CALLER = """
    from labkit.mpi.launch import run_ranks
    from labkit.testbed import Testbed
    try:
        run_ranks(2, "ranks.py", network={network})
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.fixture
def calling(script, tmp_path, monkeypatch):
    """Return a function that starts a process with stubborn ranks, and returns it when they are up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script(STUBBORN)
    with contextlib.ExitStack() as stack:

        def start(network: str) -> subprocess.Popen:
            command = [sys.executable, script(CALLER.format(network=network), "caller.py")]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert "[0] ready\n" in iter(process.stdout.readline, "")
            return process

        yield start


@pytest.mark.slow
def test_an_interrupt_ends_all_ranks(calling):
    caller = calling("None")
    os.killpg(caller.pid, signal.SIGINT)  # as Jupyter interrupts a kernel
    out, _ = caller.communicate(timeout=MAX_DELAY_S)
    assert out.splitlines()[-1] == "interrupted"
    assert wait_until(lambda: living(os.environ["LABKIT_TEST"]) == [], MAX_DELAY_S)


@pytest.mark.slow
def test_no_rank_and_no_network_survives_a_killed_caller(calling, wires_can_be_made):
    caller = calling('Testbed(2, "1 Gbit/s")')
    assert len(living(os.environ["LABKIT_TEST"])) >= 5
    caller.kill()
    assert wait_until(lambda: living(os.environ["LABKIT_TEST"]) == [], MAX_DELAY_S)


# On nodes with wires between them


EXCHANGE = """
    import os, sys
    import numpy
    from mpi4py import MPI
    from labkit.testbed import traffic
    comm, (how, elements) = MPI.COMM_WORLD, sys.argv[1:]
    data, result, before = numpy.full(int(elements), comm.rank + 1.0), numpy.empty(int(elements)), traffic().sent
    comm.Barrier()
    if how == "all":
        comm.Allreduce(data, result)
    else:
        comm.Sendrecv(data, comm.rank ^ int(how), recvbuf=result, source=comm.rank ^ int(how))
    comm.Barrier()
    print(os.uname().nodename, traffic().sent - before, result[0], *sorted(os.sched_getaffinity(0)))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("wires_can_be_made")
class TestNetwork:
    ELEMENTS = 100_000
    SIZE = 8 * ELEMENTS

    @pytest.fixture
    def wires(self):
        with Testbed(2, "500 Mbit/s") as testbed:
            yield testbed

    def exchange(self, name: str, n: int, how: str, **options) -> list[list[str]]:
        return [lines[-1].split() for lines in run_ranks(n, name, how, self.ELEMENTS, timeout=60, **options).lines]

    def test_an_allreduce_uses_the_wires(self, script, capsys):
        """A ring sends 2 (n - 1) / n of the data from each node; no algorithm needs less than (n - 1) / n."""
        n = 4
        with Testbed(n, "1 Gbit/s") as four:
            words = self.exchange(script(EXCHANGE), n, "all", network=four)
        assert [name for name, *_ in words] == ["node1", "node2", "node3", "node4"]
        assert {total for _, _, total, *_ in words} == {str(float(sum(range(n + 1))))}
        sent = [int(count) for _, count, *_ in words]
        assert min(sent) >= (n - 1) / n * self.SIZE
        assert sum(sent) >= 2 * (n - 1) * self.SIZE
        assert "4 nodes on wires of 1 Gbit/s: a transfer reached " in capsys.readouterr().out

    def test_ranks_of_one_node_share_its_memory_and_cores(self, script, wires):
        """Ranks 0 and 1 are neighbours on node 1, ranks 2 and 3 on node 2."""
        name = script(EXCHANGE)
        words = self.exchange(name, 4, "1", network=wires)
        assert all(int(sent) < 0.2 * self.SIZE for _, sent, *_ in words)
        assert [word for word, *_ in words] == ["node1", "node1", "node2", "node2"]
        node_cpus = [list(map(str, node.cpus)) for node in wires.nodes for _ in range(2)]
        assert [cpus for _, _, _, *cpus in words] == node_cpus
        assert all(int(sent) > 2 * self.SIZE for _, sent, *_ in self.exchange(name, 4, "2", network=wires))

    def test_the_printed_command_can_be_typed(self, script, capsys):
        folder, name = "deeper", script("import os; print(os.uname().nodename, os.environ['OMP_NUM_THREADS'])")
        Path(folder).mkdir()
        options = {"racks": 2, "uplink": "50 Mbit/s", "wires": {2: "40.5 Mbit/s"}, "queue": 20_000}
        with Testbed(2, "123.4 Mbit/s", **options) as racks, contextlib.chdir(folder):
            run = run_ranks(2, f"../{name}", network=racks, timeout=60)
        printed = capsys.readouterr().out.split("\n2 nodes in")[0]
        program = shlex.quote(f"{os.path.relpath(paths.ROOT, folder)}/lab")  # the checkout's path may have spaces
        assert printed.startswith(f"{program} testbed --nodes 2 --rate ")
        # `lab` might set up this environment first; it then runs this program.
        typed = subprocess.run(
            ["bash", "-c", shlex.quote(str(launch.BIN / "labkit")) + printed.removeprefix(program)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert typed.returncode == 0, typed.stderr
        assert {line for lines in run.lines for line in lines} <= set(typed.stdout.splitlines())  # no line is split
        assert typed.stdout.startswith(f"{racks.topology}: a transfer reached ")

    def test_a_rank_that_is_killed_on_its_node(self, script, wires):
        body = MPI4PY.format(fault="os.kill(os.getpid(), signal.SIGKILL)")
        error = failure(4, script(body), network=wires, timeout=60)
        assert str(error).startswith("Rank 1 was killed by SIGKILL")
        assert run_ranks(2, script("print(1)"), network=wires, timeout=60).lines == (("1",), ("1",))
