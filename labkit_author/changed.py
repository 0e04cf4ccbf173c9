"""Find the labs that changed since the main branch or, on that branch, since the previous commit."""

import re
import subprocess
from pathlib import Path

from labkit.system import paths

MAIN = "main"
LAB = re.compile(r"^solutions/(\d\d)[_.]|/exercises/.*lab(\d\d)")


def files(root: Path = paths.ROOT) -> set[str] | None:
    """Return the files that changed, committed or not, relative to the repository's folder; None if git can't tell.

    git can't tell outside a repository, on no branch, in a shallow clone without the commit to compare with, and on a
    branch that shares no commit with the main branch.
    """

    def git(*arguments: str) -> list[str]:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, check=True, encoding="utf-8")
        return [line for line in re.split(r"[\0\n]", done.stdout) if line]

    try:
        if git("rev-parse", "--show-toplevel") != [str(root.resolve())]:
            return None
        if git("symbolic-ref", "--short", "HEAD") == [MAIN]:
            (base,) = git("rev-parse", "HEAD^")
        else:
            branches = (f"refs/heads/{MAIN}", f"refs/remotes/origin/{MAIN}")
            main, *_ = [*git("for-each-ref", "--format=%(refname)", *branches), "no main branch"]
            (base,) = git("merge-base", "HEAD", main)
        return {*git("diff", "--name-only", "-z", base), *git("ls-files", "--others", "--exclude-standard", "-z")}
    except (OSError, subprocess.CalledProcessError):
        return None


def has_lab(number: str, root: Path = paths.ROOT) -> bool:
    """Return whether a lab's source, notebook, or checks changed; true if git can't tell."""
    changed = files(root)
    return changed is None or any(number in match.groups() for path in changed if (match := LAB.search(path)))
