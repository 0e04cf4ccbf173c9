"""Huge pages: 2 MB instead of 4 kB for a program's memory, so that fewer are looked up and cleared."""

import platform
from pathlib import Path

# With this variable, glibc's malloc requests them from Linux (its manual, "Memory Allocation Tunables").
VARIABLES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def problem(root: Path = Path("/")) -> str:
    """Return the reason why `VARIABLES` have no effect with this kernel and C library; empty if they have one."""
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        return "the C library is not glibc 2.35 or later, so malloc has no such tunable"
    file = root / "sys/kernel/mm/transparent_hugepage/enabled"
    if (size := file.with_name("hpage_pmd_size")).exists() and int(size.read_text(encoding="utf-8")) != 2**21:
        return f"this kernel's huge pages are {int(size.read_text(encoding='utf-8')) // 2**20} MB"  # not 2 MB
    mode = file.read_text(encoding="utf-8").partition("[")[2].partition("]")[0] if file.exists() else ""
    # In any other mode glibc doesn't request them: malloc.c, do_set_hugetlb.
    return {
        "madvise": "",
        "always": "the kernel gives every program 2 MB pages anyway (transparent huge pages: always)",
    }.get(mode, f"the kernel gives no 2 MB pages (transparent huge pages: {mode or 'not built in'})")
