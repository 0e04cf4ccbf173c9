"""Students' C is compiled once for each CPU, and runs in child processes, where its faults are named."""

import re

import pytest

from labkit import native
from labkit.native import CHECKED
from labkit.system import compiler
from labkit.system.errors import LabError
from labkit.system.machine import this_machine

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(native.obstacle()), reason="NO C COMPILER HERE")]
SUM = """
#include <stdio.h>
#include <stdlib.h>
#include <omp.h>
#include "size.h"
int main(int count, char **arguments) {
    float *numbers = malloc(SIZE * sizeof *numbers), sum = 0;
    for (int i = 0; i < SIZE; i++) numbers[i] = i;
    for (int i = 0; i < atoi(arguments[1]); i++) sum += numbers[i];
    printf("%g on %d, %s\\n", sum, omp_get_max_threads(), getenv("OMP_WAIT_POLICY"));
}
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "STATE", tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "size.h").write_text("#define SIZE 10\n")
    (tmp_path / "sum.c").write_text(SUM)
    return tmp_path / "sum.c"


def test_a_program_runs_with_one_thread_per_usable_core(source):
    program = native.build("sum.c")
    assert native.run(program, 4) == (f"6 on {this_machine().usable_cores}, passive",)
    assert native.run(program, 4, threads=3) == ("6 on 3, passive",)


def test_a_program_is_compiled_again_only_if_its_result_could_differ(source, monkeypatch):
    program = native.build("sum.c")
    made = program.stat().st_mtime_ns
    assert (native.build("sum.c"), program.stat().st_mtime_ns) == (program, made)
    others = {native.build("sum.c", flags=("-O0", "-fopenmp"))}
    (source.parent / "size.h").write_text("#define SIZE 11\n")
    others.add(native.build("sum.c"))
    monkeypatch.setattr(native, "cpu_flags", lambda: ["another", "cpu"])
    others.add(native.build("sum.c"))
    monkeypatch.setattr(compiler, "version", lambda: "another compiler")
    others.add(native.build("sum.c"))
    assert len(others - {program}) == 4


def test_several_files_make_one_program(source):
    (source.parent / "half.c").write_text("float half(float x) { return x / 2; }")
    main = '#include <stdio.h>\nfloat half(float);\nint main(void) { printf("%g\\n", half(3)); }'
    (source.parent / "main.c").write_text(main)
    assert native.run(native.build("main.c", "half.c")) == ("1.5",)


def test_a_wrong_index_is_named_with_its_line(source):
    with pytest.raises(LabError, match=r"^sum: heap-buffer-overflow at \S*sum.c:9\.$"):
        native.run(native.build("sum.c", flags=CHECKED), 11)
    assert native.run(native.build("sum.c", flags=CHECKED), 10)[0].startswith("45 on")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            "int a[4] = {0}; volatile int i = 4; return a[i];",
            r"index 4 out of bounds for type 'int \[4\]' at \S*bad.c:1",
        ),
        ("volatile int big = 2147483647; return big + 1;", r"signed integer overflow: .* at \S*bad.c:1"),
        ("volatile int zero = 0; return 1 / zero;", r"division by zero at \S*bad.c:1"),
    ],
)
def test_an_undefined_operation_is_named_with_its_line(source, body, error):
    (source.parent / "bad.c").write_text(f"int main(void) {{ {body} }}")
    with pytest.raises(LabError, match=rf"^bad: {error}\.$"):
        native.run(native.build("bad.c", flags=CHECKED))


def test_a_crash_ends_the_child_only_and_says_how_to_find_the_line(source):
    (source.parent / "crash.c").write_text("#include <signal.h>\nint main(void) { return raise(SIGSEGV); }")
    with pytest.raises(LabError, match=r"^crash: killed by SIGSEGV. An index may be out of range: .*CHECKED"):
        native.run(native.build("crash.c"))


def test_a_program_that_does_not_end_is_ended(source):
    (source.parent / "loop.c").write_text("int main(void) { for (volatile int i = 0;; i++) ; }")
    with pytest.raises(LabError, match=r"^loop: timed out"):
        native.run(native.build("loop.c"), timeout=0.5)


def test_what_does_not_compile_is_shown_with_its_line(source):
    source.write_text("int main(void) { return wrong; }")
    with pytest.raises(LabError, match=r"^sum.c: it does not compile:(.|\n)*sum.c:1:25: error: .*wrong"):
        native.build("sum.c")
    with pytest.raises(LabError, match=r"^gone.c does not exist: run the cell that writes it"):
        native.build("gone.c")
    assert not list((source.parent / "state").glob("sum*")), "nothing incomplete is kept"


def test_without_a_compiler_the_remedy_is_named(source, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    assert compiler.version() == ""
    remedy = r"there is no compiler no-such-compiler\. To install one: `sudo apt-get install g\+\+`, or set CXX"
    assert re.match(remedy, native.obstacle())
    with pytest.raises(LabError, match=f"^{remedy}"):
        native.build("sum.c")
    monkeypatch.setenv("LAB_WITHOUT", "compiler")
    assert native.obstacle() == "LAB_WITHOUT simulates a machine without compiler"


def test_without_the_sanitizers_libraries_their_packages_are_named(source, monkeypatch):
    fake = source.parent / "fedoras-g++"
    missing = "/usr/bin/ld: cannot find /usr/lib64/libasan.so.8.0.0: No such file or directory"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *-E*|--version) exec g++ "$@" ;; esac\necho "{missing}" >&2; exit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(LabError, match=r"^sum.c: the compiler's libraries .* `sudo dnf install libasan libubsan`"):
        native.build("sum.c", flags=CHECKED)
    with pytest.raises(LabError, match=r"^sum.c: it does not compile:(.|\n)*libasan.so"):
        native.build("sum.c")


def test_the_compiler_is_named_with_its_version(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    assert re.match(r"g\+\+ .*\d+\.\d+", compiler.version())
