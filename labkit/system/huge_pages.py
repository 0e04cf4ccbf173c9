"""Pages of 2 MB instead of 4 kB for a program's memory: fewer to look up, and fewer to clear one by one."""

import platform
from pathlib import Path

# With this variable, malloc of the GNU C library asks Linux for them (its manual, "Memory Allocation Tunables").
VARIABLES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def problem(root: Path = Path("/")) -> str:
    """Return the reason why `VARIABLES` change nothing with this kernel and C library; empty when they do."""
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        return "the C library is no glibc 2.35 or later, and malloc has no such tunable"
    file = root / "sys/kernel/mm/transparent_hugepage/enabled"
    if (size := file.with_name("hpage_pmd_size")).exists() and int(size.read_text(encoding="utf-8")) != 2**21:
        return f"this kernel's large pages have {int(size.read_text(encoding='utf-8')) // 2**20} MB"  # not 2 MB
    mode = file.read_text(encoding="utf-8").partition("[")[2].partition("]")[0] if file.exists() else ""
    # With any other mode glibc doesn't ask: malloc.c, do_set_hugetlb.
    return {
        "madvise": "",
        "always": "the kernel gives pages of 2 MB to all who don't ask, too (transparent huge pages: always)",
    }.get(mode, f"the kernel gives no pages of 2 MB (transparent huge pages: {mode or 'not built in'})")
