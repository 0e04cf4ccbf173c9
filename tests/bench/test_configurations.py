import json
import sys
from types import SimpleNamespace

import pytest
from machines import machine
from rich.console import Console

from labkit.bench import configurations
from labkit.bench.configurations import Configuration
from labkit.measure import compare
from labkit.mpi import torch_ranks
from labkit.system import load
from labkit.system.errors import LabError

SMALL = ("--model=mnist", "--batch_size=2", "--num_batches=2", "--num_warmup_batches=1")


@pytest.fixture(scope="module")
def known():
    return configurations.known(machine(18, smt=2))


def test_threads_are_the_machines_physical_cores(known):
    assert "--num_intra_threads=18" in known["onednn-threads"].flags
    assert known["onednn-threads"].env == known["onednn"].env
    assert "OMP_NUM_THREADS" not in known["torch"].env
    assert known["torch-threads"].env == {"OMP_NUM_THREADS": 18}


ADDED = {
    "compile": {"flags": ("--torch_compile",)},
    "spin": {"env": {"OMP_WAIT_POLICY": "active"}},
    "sleep": {"env": {"OMP_WAIT_POLICY": "passive"}},
    "bf16": {"flags": ("--use_fp16",)},
    "xla": {"flags": ("--xla_compile",)},
    "huge": {"env": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}},
    "interleave": {"prefix": ("numactl", "--interleave=all")},
}


@pytest.mark.parametrize("suffix", ADDED)
def test_each_suffix_adds_only_its_own_settings(known, suffix):
    pairs = [
        (known[name.removesuffix(f"-{suffix}")], extended) for name, extended in known.items() if name.endswith(suffix)
    ]
    assert pairs
    for base, extended in pairs:
        added = ADDED[suffix]
        assert extended.flags == (*base.flags, *added.get("flags", ()))
        assert extended.env == {**base.env, **added.get("env", {})}
        assert extended.prefix == (*added.get("prefix", ()), *base.prefix)


def test_suffixes_have_a_fixed_order_and_fit_the_framework(known):
    order = list(configurations.SUFFIXES)
    for name in known:
        suffixes = name.split("-")[1:]
        assert suffixes == sorted(suffixes, key=order.index)
        torch = name.startswith("torch")
        assert not {"compile", "intel", "spin", "sleep"} & set(suffixes) or torch
        assert not {"spin", "sleep"} <= set(suffixes)
        assert "xla" not in suffixes or not torch
    assert {"onednn-threads-bf16-huge", "torch-compile-threads-bf16-huge-interleave", "onednn-xla"} <= set(known)


def test_the_command_can_be_typed_in_a_shell():
    known = configurations.known(machine(2, smt=2))
    command = known["onednn-threads-interleave"].command("--model=mnist")
    assert command.startswith("TF_ENABLE_ONEDNN_OPTS=1 numactl --interleave=all .venv/bin/python -m labkit.bench ")
    assert command.endswith(" --num_intra_threads=2 --num_inter_threads=1 --model=mnist")
    assert "LD_PRELOAD=env/torch/packages/lib/libiomp5.so " in known["torch-intel"].command()


def synthetic_rates(monkeypatch, rates, others=0.0):
    """Make runs return these rates one after the other, or fail, with this share of other work; return their names."""
    names = []

    def run_once(configuration, *flags):
        names.append(configuration.description)
        load._report_to_enclosing(load.Contention(share=others, busy=others > 0, capacity=1.0))
        rate = rates[configuration.description].pop(0)
        if isinstance(rate, str):
            raise LabError(rate)
        return {"images_per_second": rate, "gflops": rate / 10}

    monkeypatch.setattr(configurations, "run_once", run_once)
    return names


def test_configurations_alternate_and_a_failure_does_not_stop_the_others(monkeypatch, capsys):
    names = synthetic_rates(
        monkeypatch, {"a": [10.0, 20.0, 5.0], "b": [20.0, 40.0, 10.0], "c": [1.0, "exit status 1. Its last lines:"]}
    )
    comparison = configurations.compare({name: Configuration(name) for name in "abc"}, rounds=3)
    assert "".join(names) == "abccbaab"
    assert compare(*(comparison.speeds()[name] for name in "ba")).value == pytest.approx(2)
    assert comparison.failed == {"c": "exit status 1. Its last lines:"}
    assert "round 2 of 3  c  failed: exit status 1" in capsys.readouterr().out


def test_the_table_has_each_configuration_with_its_ratio(monkeypatch):
    synthetic_rates(monkeypatch, {"a": [10.0, 20.0], "b": [30.0, 60.0], "c": ["no memory", "no memory"]})
    comparison = configurations.compare({name: Configuration(name) for name in "abc"}, rounds=2)
    with Console(width=100, record=True, quiet=False) as console:
        console.print(configurations.table(comparison))
    text = console.export_text()
    assert "3.00× (2 rounds: 3.00, 3.00): undecided" in text
    assert "the rounds, too few for a verdict" in text
    assert "no memory" in text


def test_six_rounds_give_intervals_and_verdicts(monkeypatch):
    synthetic_rates(monkeypatch, {"a": [10.0, 20.0, 5.0] * 2, "b": [20.0, 40.0, 11.0] * 2})
    table = configurations.table(configurations.compare({name: Configuration(name) for name in "ab"}, rounds=6))
    assert list(table.columns[2].cells) == ["1", "2.00× (2.00 to 2.20): faster"]
    assert table.caption == "in brackets: 95% interval, 6 rounds"


def test_a_busy_machine_is_reported(monkeypatch, capsys):
    synthetic_rates(monkeypatch, {"a": [10.0], "b": [30.0]}, others=0.31)
    comparison = configurations.compare({name: Configuration(name) for name in "ab"}, rounds=1)
    warning = (
        "⚠ Meanwhile, other work took 31% of the cores. These figures are unreliable: measure again when the machine"
    )
    assert warning in capsys.readouterr().out
    assert warning in configurations.table(comparison).caption
    assert json.loads(json.dumps(comparison.as_dict()))["others"]["share"] == 0.31


def test_configurations_that_are_not_installed_are_skipped_with_a_remedy(monkeypatch, capsys):
    synthetic_rates(monkeypatch, {"a": [1.0]})
    absent = {"no-program": Configuration("c", prefix=("no-such-program",))}
    comparison = configurations.compare({"a": Configuration("a"), **absent}, rounds=1)
    assert list(comparison.results) == ["a"]
    assert "no-such-program is not installed: sudo apt-get install no-such-program" in capsys.readouterr().out


def test_missing_optional_software_is_reported_with_a_remedy(monkeypatch, known, tmp_path):
    monkeypatch.delenv("LAB_WITHOUT", raising=False)
    monkeypatch.setattr(torch_ranks, "FOLDER", tmp_path)
    assert "(1 GB): ./lab setup --torch" in known["torch"].missing
    monkeypatch.setattr(torch_ranks, "obstacle", lambda: "")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert known["torch"].missing == ""
    monkeypatch.setattr(configurations.platform, "machine", lambda: "aarch64")
    assert known["torch"].missing == ""
    assert known["torch-intel"].missing == "there is no package of Intel's OpenMP for Arm"
    monkeypatch.setattr(configurations, "huge_pages_problem", lambda: "no such pages")
    assert known["onednn-huge"].missing == "no such pages"
    assert "for torch.compile, there is no compiler no-such-compiler. To install" in known["torch-compile"].missing


def test_if_no_configuration_can_run_each_reason_is_reported():
    with pytest.raises(LabError, match=r"no configuration could run\. a: no-such-program is not installed"):
        configurations.compare({"a": Configuration("a", prefix=("no-such-program",))}, rounds=1)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(LabError, match=r"no configuration 'mkl': choose from eigen, onednn, torch, .* -threads"):
        configurations.choose(["eigen", "mkl"])
    assert tuple(configurations.choose(["all"])) == configurations.LADDER


@pytest.mark.slow
def test_configurations_have_their_own_variables_not_the_callers(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    eigen = configurations.run_once(configurations.known()["eigen"], *SMALL)
    assert eigen["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert "OMP_NUM_THREADS" not in eigen["environment"]


def test_a_run_has_the_variables_of_its_configuration_and_returns_its_lines(monkeypatch):
    started = []

    def run(argv, **options):
        started.append((argv, options["env"]))
        return SimpleNamespace(failure="", lines=("User settings:",))

    monkeypatch.setattr(configurations.processes, "run", run)
    monkeypatch.setenv("KMP_SETTINGS", "0")
    other = Configuration("other", {"OMP_NUM_THREADS": 2}, ("--num_inter_threads=1",), ("nice",))
    assert configurations.run(other, *SMALL) == ("User settings:",)
    argv, env = started[0]
    assert argv == ["nice", sys.executable, "-m", "labkit.bench", "--num_inter_threads=1", *SMALL]
    assert (env["OMP_NUM_THREADS"], env["KMP_SETTINGS"]) == (2, None)
    configurations.run(Configuration("ours", env={"KMP_SETTINGS": 1}))
    assert started[1][1]["KMP_SETTINGS"] == 1


def test_a_failed_run_is_reported_with_its_last_lines():
    with pytest.raises(LabError, match=r"exit status 2\. Its last lines:\n(.*\n)*.*No such option: --no-such-flag"):
        configurations.run_once(Configuration("bad"), "--no-such-flag")
