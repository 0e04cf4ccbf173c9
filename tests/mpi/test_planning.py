"""Ranks share the cores that the machine, other runs and Slurm allow, with a command that can be typed."""

import shlex
from dataclasses import replace

import pytest
from lab_error import error_of
from machines import machine

from labkit.mpi import planning
from labkit.mpi.planning import Plan, plan
from labkit.system import cores
from labkit.system.machine import Machine, node_cpus, shares

TWO_NODES = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
ON_LOOPBACK = {"SLURM_CLUSTER_NAME": f"{planning.SMALL}x"}
ON_WIRES = {"SLURM_CLUSTER_NAME": f"{planning.SMALL_ON_WIRES}x"}


def binding(planned: Plan) -> str | None:
    return planned.argv[planned.argv.index("-bind-to") + 1] if "-bind-to" in planned.argv else None


def variable(planned: Plan, name: str) -> str:
    return planned.argv[planned.argv.index(name) + 1]


def threads_of(planned: Plan) -> int:
    return int(variable(planned, "OMP_NUM_THREADS"))


class TestFreeCores:
    """Plans while other runs have some of the cores."""

    BIG = machine(64, smt=2, numa=2)

    @staticmethod
    def without(big: Machine, *taken: int) -> tuple[tuple[int, ...], ...]:
        return tuple(core for core in big.cores if core[0] not in taken)

    def test_the_next_run_gets_the_node_with_more_free_cores(self):
        first = plan(2, "train.py", machine=self.BIG, threads=1, environ={})
        assert binding(first) == "user:0+64,1+65"
        planned = plan(2, "train.py", machine=self.BIG, threads=1, environ={}, free=self.without(self.BIG, 0, 1))
        assert (binding(planned), planned.warning) == ("user:32+96,33+97", "")

    @pytest.mark.parametrize("n", [1, 2, 3, 7])
    def test_ranks_are_bound_to_free_cores_only(self, n):
        free = self.without(self.BIG, *range(5, 40, 3))
        planned = plan(n, "train.py", machine=self.BIG, environ={}, free=free)
        assert threads_of(planned) == len(free) // n
        assert set(planned.cpus) <= {cpu for core in free for cpu in core}
        assert len(planned.cpus) == 2 * n * threads_of(planned)
        assert planned.env[cores.RESERVED_VARIABLE] == ",".join(map(str, planned.cpus))

    def test_fewer_threads_than_the_machine_has_cores_for_are_reported(self):
        planned = plan(2, "train.py", machine=self.BIG, environ={}, free=self.without(self.BIG, 0, 1, 2, 7))
        assert threads_of(planned) == 30
        assert planned.warning == "Warning: other runs have 4 of 64 cores: 2 ranks × 30 threads on the rest."

    def test_too_few_are_reported_and_ranks_run_unbound(self):
        planned = plan(2, "train.py", machine=machine(4), threads=2, environ={}, free=((0,), (1,), (3,)))
        assert (threads_of(planned), binding(planned), planned.cpus) == (2, None, ())
        assert planned.warning.startswith("Warning: other runs have 1 of 4 cores: 2 ranks × 2 threads share cores")
        assert cores.RESERVED_VARIABLE not in planned.env


TWO_SOCKETS = machine(64, smt=2, numa=2)
WITH_HOLES = replace(  # a cpuset: 20 whole cores of node 0, 12 of node 1 of which 2 have one hyperthread
    TWO_SOCKETS,
    cores=(*TWO_SOCKETS.cores[3:23], *TWO_SOCKETS.cores[40:50], (50,), (51,)),
    cpus=(*range(3, 23), *range(40, 52), *range(67, 87), *range(104, 114)),
    numa=((*range(3, 23), *range(67, 87)), (*range(40, 52), *range(104, 114))),
)


class TestComparedRuns:
    """Ranks and threads are compared on the same cores and the same memory."""

    MACHINES = pytest.mark.parametrize(
        "big",
        [TWO_SOCKETS, machine(64, smt=2, numa=8), machine(8), WITH_HOLES],
        ids=["two sockets", "eight nodes", "one node", "a cpuset with holes"],
    )

    @staticmethod
    def cores_of(big: Machine, n: int, threads: int) -> set[tuple[int, ...]]:
        cpus = set().union(*shares(big, n, threads))
        return {core for core in big.cores if cpus & set(core)}

    @staticmethod
    def by_node(big: Machine, cores: set[tuple[int, ...]]) -> list[int]:
        return [count for node in big.numa if (count := sum(core[0] in node for core in cores))]

    @MACHINES
    def test_have_the_same_cores_for_any_ranks_and_threads(self, big):
        for total in range(1, len(big.cores) + 1):
            process = self.cores_of(big, 1, total)
            assert len(process) == total
            for n in (n for n in range(2, total + 1) if total % n == 0):
                ranks = shares(big, n, total // n)
                assert self.cores_of(big, n, total // n) == process
                assert sum(map(len, ranks)) == len(set().union(*ranks)) == sum(map(len, process))

    @MACHINES
    def test_use_as_few_numa_nodes_as_possible(self, big):
        sizes = sorted(self.by_node(big, set(big.cores)), reverse=True)
        for total in range(1, len(big.cores) + 1):
            fewest = next(count for count in range(1, 9) if sum(sizes[:count]) >= total)
            assert len(self.by_node(big, self.cores_of(big, total, 1))) == fewest

    @pytest.mark.parametrize(
        ("big", "total", "nodes"),
        [
            (TWO_SOCKETS, 8, [8]),
            (TWO_SOCKETS, 32, [32]),
            (TWO_SOCKETS, 40, [20, 20]),
            (TWO_SOCKETS, 64, [32, 32]),
            (machine(64, numa=4), 24, [12, 12]),
            (WITH_HOLES, 12, [12]),
            (WITH_HOLES, 30, [18, 12]),
        ],
    )
    def test_use_equal_parts_of_several_numa_nodes(self, big, total, nodes):
        assert self.by_node(big, self.cores_of(big, 1, total)) == nodes

    def test_match_mpirun(self):
        ranks, threads = (plan(n, "a.py", machine=TWO_SOCKETS, threads=8 // n, environ={}) for n in (8, 1))
        assert ranks.cpus == threads.cpus == (*range(8), *range(64, 72))

    def test_under_a_quota_ranks_are_not_bound(self):
        limited = machine(64, numa=2, quota=8.0)
        assert all(plan(n, "a.py", machine=limited, threads=8 // n, environ={}).cpus == () for n in (8, 1))
        assert node_cpus(limited, 2) == [limited.cpus] * 2

    def test_more_ranks_than_cores_share_them(self):
        assert node_cpus(machine(2), 4) == [(0,), (0,), (1,), (1,)]


class TestPlan:
    def test_two_ranks_on_two_cores(self):
        planned = plan(2, "train.py", "--epochs", 1, machine=machine(2), environ={})
        assert planned.command.splitlines() == [
            "mpirun -n 2 -bind-to user:0,1 -genv OMP_NUM_THREADS 1 -genv TF_NUM_INTRAOP_THREADS 1 \\",
            "    -genv TF_NUM_INTEROP_THREADS 1 -genv UCX_TLS posix,cma,self \\",
            "    python -u -m labkit.mpi.rank_runner train.py --epochs 1",
        ]
        assert planned.short_command == "mpirun -n 2 … train.py --epochs 1"
        assert planned.warning == ""

    @pytest.mark.parametrize(
        ("n", "threads", "host", "expected", "warning"),
        [
            (1, None, machine(2), (2, "user:0-1"), ""),
            (2, None, machine(64, smt=2, numa=2), (32, "user:0-31+64-95,32-63+96-127"), ""),
            (2, None, machine(2, first=6), (1, "user:6,7"), ""),  # only CPUs that this process may use
            (2, None, machine(64, quota=4.0), (2, None), ""),
            (4, None, machine(2), (1, None), "4 ranks × 1 thread on 2 cores"),
            (1, 4, machine(2), (4, None), "1 rank × 4 threads on 2 cores"),
        ],
    )
    def test_threads_and_binding(self, n, threads, host, expected, warning):
        planned = plan(n, "train.py", machine=host, threads=threads, environ={})
        assert (threads_of(planned), binding(planned)) == expected
        assert warning in planned.warning
        assert bool(warning) == bool(planned.warning)

    @pytest.mark.parametrize("cpus", [{"SLURM_CPUS_ON_NODE": "16"}, {"SLURM_JOB_CPUS_PER_NODE": "16(x2)"}])
    def test_in_a_slurm_job_each_node_shares_its_cores(self, cpus):
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", **cpus}
        planned = plan(7, "train.py", machine=machine(2), environ=job)
        assert (threads_of(planned), binding(planned), planned.warning) == (4, None, "")
        assert planned.command.startswith("SLURM_OVERLAP=1 SLURM_CPU_BIND=none mpirun -n 7 -genv")
        assert "use at most 256," in error_of(plan, 257, "train.py", machine=machine(2), environ=job)

    @pytest.mark.parametrize(
        ("job", "local", "expected"),
        [
            ({}, True, {"UCX_TLS": "posix,cma,self"}),
            ({"SLURM_JOB_ID": "7"}, False, {"UCX_TLS": "sm,self"}),  # after salloc, possibly on another machine
            ({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}, True, {"UCX_TLS": "sm,self"}),
            (TWO_NODES | {"SLURMD_NODENAME": "n1"}, False, {"UCX_TLS": "all"}),
            (TWO_NODES | {"SLURM_CLUSTER_NAME": "a"}, False, {"UCX_TLS": "all"}),
            (TWO_NODES | {"UCX_TLS": "rc,self"}, False, {"UCX_TLS": "rc,self"}),  # the site's setting
            (TWO_NODES | ON_LOOPBACK, True, {"UCX_TLS": "all", "UCX_NET_DEVICES": "lo"}),
            (TWO_NODES | ON_WIRES, False, {"UCX_TLS": "all", "UCX_NET_DEVICES": "eth7"}),
            ({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"} | ON_WIRES, True, {"UCX_TLS": "sm,self"}),
        ],
    )
    def test_on_one_machine_nothing_listens_on_its_addresses(self, monkeypatch, job, local, expected):
        monkeypatch.setattr(planning, "interface", lambda: "eth7")
        planned = plan(2, "train.py", machine=machine(2), environ=job)
        assert planned.local == local
        names = [arg for arg in planned.argv if arg.startswith("UCX_")]
        assert {name: variable(planned, name) for name in names} == expected
        interface = "lo" if local and job else expected.get("UCX_NET_DEVICES")
        assert planned.env.get("HYDRA_IFACE") == interface

    @pytest.mark.parametrize("needed", [0, 100 << 20])
    def test_private_shared_memory_is_used_if_there_is_space(self, monkeypatch, tmp_path, needed):
        monkeypatch.setattr(planning, "SHM_BYTES_PER_RANK", needed)
        monkeypatch.setattr(planning.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 64 << 20}))
        planned = plan(1, "train.py", machine=machine(2), environ={})
        assert variable(planned, "UCX_TLS") == ("sm,self" if needed else "posix,cma,self")

    def test_requested_variables_take_precedence(self):
        env = {"OMP_NUM_THREADS": 3, "HOROVOD_CYCLE_TIME": 0.5}
        planned = plan(2, "train.py", machine=machine(2), env=env, environ={})
        assert planned.argv.count("OMP_NUM_THREADS") == 1
        assert [variable(planned, name) for name in ("OMP_NUM_THREADS", "HOROVOD_CYCLE_TIME")] == ["3", "0.5"]

    @pytest.mark.parametrize(("threads", "inter_op"), [(1, "1"), (2, "2"), (16, "2")])
    def test_threads_of_tensorflow(self, threads, inter_op):
        planned = plan(1, "train.py", machine=machine(16), threads=threads, environ={})
        assert variable(planned, "TF_NUM_INTRAOP_THREADS") == variable(planned, "OMP_NUM_THREADS") == str(threads)
        assert variable(planned, "TF_NUM_INTEROP_THREADS") == inter_op

    def test_the_wrapped_command_is_the_same_in_a_shell(self):
        odd = ["two words", "$HOME", "line\nend", "-1", "--text=a b", "--x", "x" * 200, *("--flag", "value") * 20]
        planned = plan(2, "my script.py", *odd, machine=machine(64), env={"A": "b c"}, environ={})
        assert shlex.split(planned.command.replace("\\\n", "")) == list(planned.argv)
        lines = planned.command.split(" \\\n")
        assert all(len(line) <= planning.COMMAND_WIDTH + 4 for line in lines if "xxx" not in line)
        assert "--flag \\" not in planned.command


@pytest.mark.parametrize("n", [0, -1, 2.0, "2", None, True])
def test_number_of_ranks(n):
    assert error_of(plan, n, "train.py", machine=machine(2), environ={}) == (
        f"n, the number of ranks, must be an integer, 1 or more, not {n!r}."
    )
