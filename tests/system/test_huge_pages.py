import os
import subprocess
import sys

import pytest

from labkit.system import huge_pages


@pytest.mark.parametrize(
    ("libc", "modes", "told"),
    [
        (("glibc", "2.36"), "always [madvise] never\n", ""),
        (("glibc", "2.31"), "always [madvise] never\n", "2.35"),
        (("musl", "1.2"), "always [madvise] never\n", "2.35"),
        (("", ""), "always [madvise] never\n", "2.35"),
        (("glibc", "2.36"), "always madvise [never]\n", "never"),
        (("glibc", "2.36"), "[always] madvise never\n", "always"),
        (("glibc", "2.36"), None, "not built in"),
    ],
)
def test_why_there_are_none_is_told(libc, modes, told, monkeypatch, tmp_path):
    monkeypatch.setattr(huge_pages.platform, "libc_ver", lambda: libc)
    file = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    file.parent.mkdir(parents=True)
    if modes is not None:
        file.write_text(modes)
    why = huge_pages.problem(tmp_path)
    assert bool(why) == bool(told)
    assert told in why


@pytest.mark.parametrize(("kb", "told"), [(4, ""), (16, "32 MB"), (64, "512 MB")])
def test_arm64_may_have_other_pages(kb, told, monkeypatch, tmp_path):
    monkeypatch.setattr(huge_pages.platform, "libc_ver", lambda: ("glibc", "2.36"))
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    (folder / "enabled").write_text("always [madvise] never\n")
    (folder / "hpage_pmd_size").write_text(f"{kb * 1024 * kb * 1024 // 8}\n")  # what a page of addresses maps
    assert (told in huge_pages.problem(tmp_path), bool(huge_pages.problem(tmp_path))) == (True, bool(told))


HELD = """
held = [bytearray(b"1") * (8 << 20) for _ in range(8)]
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages")))
"""


def test_a_program_has_them_with_the_variable():
    if why := huge_pages.problem():
        pytest.skip(f"PAGES OF 2 MB NOT TESTED HERE: {why}")
    plain = {name: value for name, value in os.environ.items() if name not in huge_pages.VARIABLES}
    kb = [
        int(subprocess.run([sys.executable, "-c", HELD], env=env, capture_output=True, check=True).stdout)
        for env in (plain, plain | huge_pages.VARIABLES)
    ]
    assert kb[1] > kb[0] + 32 * 1024
