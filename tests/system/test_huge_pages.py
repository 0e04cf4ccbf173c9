import os
import subprocess
import sys

import pytest

from labkit.system import huge_pages


@pytest.mark.parametrize(
    ("libc", "modes", "part"),
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
def test_the_reason_for_no_huge_pages_is_reported(libc, modes, part, monkeypatch, tmp_path):
    monkeypatch.setattr(huge_pages.platform, "libc_ver", lambda: libc)
    file = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    file.parent.mkdir(parents=True)
    if modes is not None:
        file.write_text(modes)
    reason = huge_pages.problem(tmp_path)
    assert bool(reason) == bool(part)
    assert part in reason


@pytest.mark.parametrize(("kb", "part"), [(4, ""), (16, "32 MB"), (64, "512 MB")])
def test_arm64_may_have_other_page_sizes(kb, part, monkeypatch, tmp_path):
    monkeypatch.setattr(huge_pages.platform, "libc_ver", lambda: ("glibc", "2.36"))
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    (folder / "enabled").write_text("always [madvise] never\n")
    (folder / "hpage_pmd_size").write_text(f"{kb * 1024 * kb * 1024 // 8}\n")  # mapped by one page table
    assert (part in huge_pages.problem(tmp_path), bool(huge_pages.problem(tmp_path))) == (True, bool(part))


ALLOCATE = """
held = [bytearray(b"1") * (8 << 20) for _ in range(8)]
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages")))
"""


def test_the_variable_gives_a_program_huge_pages():
    if reason := huge_pages.problem():
        pytest.skip(f"2 MB PAGES NOT TESTED HERE: {reason}")
    plain = {name: value for name, value in os.environ.items() if name not in huge_pages.VARIABLES}
    kb = [
        int(subprocess.run([sys.executable, "-c", ALLOCATE], env=env, capture_output=True, check=True).stdout)
        for env in (plain, plain | huge_pages.VARIABLES)
    ]
    assert kb[1] > kb[0] + 32 * 1024
