import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines import machine

from labkit.bench import configurations
from labkit.bench.configurations import Configuration
from labkit.mpi import torch_ranks
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
    "compile": Configuration(flags=("--torch_compile",)),
    "sleep": Configuration({"OMP_WAIT_POLICY": "passive"}),
    "bf16": Configuration(flags=("--use_fp16",)),
}


@pytest.mark.parametrize("suffix", ADDED)
def test_each_suffix_adds_only_its_own_settings(known, suffix):
    pairs = [
        (known[name.removesuffix(f"-{suffix}")], extended) for name, extended in known.items() if name.endswith(suffix)
    ]
    assert pairs
    for base, extended in pairs:
        assert extended.flags == (*base.flags, *ADDED[suffix].flags)
        assert extended.env == {**base.env, **ADDED[suffix].env}


def test_suffixes_have_a_fixed_order_and_fit_the_framework(known):
    for name in known:
        suffixes = name.split("-")[1:]
        assert suffixes == sorted(suffixes, key=configurations.SUFFIXES.index)
        assert not {"compile", "intel", "sleep"} & set(suffixes) or name.startswith("torch")
    assert {"onednn-threads-bf16", "torch-compile-threads-intel-sleep-bf16"} <= set(known)


@pytest.fixture
def compare(monkeypatch):
    """Return a function that compares configurations whose runs return these rates one after the other, or fail."""

    def compare_rates(rates, rounds):
        def run_once(configuration, *flags):
            (name,) = configuration.flags
            names.append(name)
            rate = rates[name].pop(0)
            if isinstance(rate, str):
                raise LabError(rate)
            return {"images_per_second": rate}

        names = []
        monkeypatch.setenv("LAB_WITHOUT", "torch")
        monkeypatch.setattr(configurations, "run_once", run_once)
        chosen = {name: Configuration(flags=(name,)) for name in rates} | ABSENT
        monkeypatch.setattr(configurations, "known", lambda: chosen)
        return configurations.compare([*chosen], rounds=rounds), "".join(names)

    return compare_rates


ABSENT = {"absent": Configuration(flags=(configurations.PYTORCH,))}


def test_configurations_alternate_and_a_missing_one_does_not_stop_the_others(compare, capsys):
    comparison, names = compare({"a": [10.0, 20.0] * 3, "b": [20.0, 40.0, 20.0, 44.0, 20.0, 44.0]}, 6)
    assert names == "abbaabbaabba"
    assert "absent is skipped: LAB_WITHOUT simulates a machine without torch" in capsys.readouterr().out
    assert comparison.skipped.keys() == {"absent"}
    table = configurations.table(comparison)
    assert list(table.columns[2].cells)[:2] == ["1", "2.00× (2.00 to 2.20): faster"]
    assert "LAB_WITHOUT simulates a machine without torch" in list(table.columns[2].cells)[2]
    assert table.caption == "in brackets: 95% interval, 6 rounds"
    assert json.loads(json.dumps(comparison.as_dict()))["speeds"]["a"]["rounds"] == [10.0, 20.0] * 3


def test_too_few_rounds_are_reported(compare):
    comparison, _ = compare({"a": [10.0, 20.0], "b": [30.0, 60.0]}, 2)
    table = configurations.table(comparison)
    assert list(table.columns[2].cells)[1] == "3.00× (2 rounds: 3.00, 3.00): undecided"
    assert "the rounds, too few for a verdict" in table.caption


def test_a_run_that_fails_ends_the_comparison_with_its_name(compare):
    with pytest.raises(LabError, match=r"^c: exit status 1\. Its last"):
        compare({"a": [1.0, 1.0], "c": ["exit status 1. Its last"]}, 2)


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
    assert "for torch.compile, there is no compiler no-such-compiler. To install" in known["torch-compile"].missing


def test_if_no_configuration_can_run_each_reason_is_reported(monkeypatch, capsys):
    monkeypatch.setenv("LAB_WITHOUT", "torch")
    with pytest.raises(LabError, match="no configuration can run here"):
        configurations.compare(["torch"], rounds=1)
    assert "torch is skipped: LAB_WITHOUT simulates" in capsys.readouterr().out


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(LabError, match=r"no configuration 'mkl': choose from eigen, onednn, torch, .* -threads"):
        configurations.choose(["eigen", "mkl"])


@pytest.mark.slow
def test_configurations_have_their_own_variables_not_the_callers(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    eigen = configurations.run_once(configurations.known()["eigen"], *SMALL)
    assert eigen["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert "OMP_NUM_THREADS" not in eigen["environment"]


def test_a_run_has_the_variables_of_its_configuration(monkeypatch):
    started = []

    def run(argv, **options):
        started.append((argv, options["env"]))
        Path(argv[-1].removeprefix("--json=")).write_text("{}")
        return SimpleNamespace(failure="")

    monkeypatch.setattr(configurations.processes, "run", run)
    monkeypatch.setenv("KMP_SETTINGS", "0")
    configurations.run_once(Configuration({"OMP_NUM_THREADS": 2}, ("--num_inter_threads=1",)), *SMALL)
    argv, env = started[0]
    assert argv[:-1] == [sys.executable, "-m", "labkit.bench", "--num_inter_threads=1", *SMALL]
    assert (env["OMP_NUM_THREADS"], env["KMP_SETTINGS"]) == (2, None)
    configurations.run_once(Configuration({"KMP_SETTINGS": 1}))
    assert started[1][1]["KMP_SETTINGS"] == 1


def test_a_failed_run_is_reported_with_its_last_lines():
    with pytest.raises(LabError, match=r"exit status 2\. Its last lines:\n(.*\n)*.*no such option: --no-such-flag"):
        configurations.run_once(Configuration(), "--no-such-flag")
