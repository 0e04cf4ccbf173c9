"""What users notice is told in CHANGELOG.md, or a commit says that none is due."""

import shutil
import subprocess

import pytest

from labkit.system import paths

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="THE CHANGELOG'S CHECK IS NOT TESTED HERE: no git")


@pytest.fixture
def git(tmp_path, monkeypatch):
    """A repository with one commit and the check; the function runs git there."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # of a hook that runs these tests
        monkeypatch.delenv(name, raising=False)

    def run(*arguments):
        who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / ".ci").mkdir()
    shutil.copy(paths.ROOT / ".ci" / "changelog", tmp_path / ".ci")
    run("init", "--initial-branch=main")
    run("add", ".")
    run("commit", "--message=Begin")
    run("tag", "base")
    return run


@pytest.mark.parametrize(
    ("commits", "code"),
    [
        ([(["labkit/a.py"], "Change")], 1),
        ([(["labkit_classroom/board/a.py", "tests/a.py"], "Change")], 1),
        ([(["solutions/09_a.py"], "Change"), (["README.md"], "Change")], 1),
        ([(["lab"], "Say changelog, and no more")], 1),
        ([(["labkit/a.py"], "Change"), (["CHANGELOG.md"], "Tell")], 0),
        ([(["labkit/a.py", "CHANGELOG.md"], "Change")], 0),
        ([(["labkit/a.py"], "Move a function\n\nNo changelog: nobody sees it.")], 0),
        ([(["tests/a.py", "docs/a.md", "labels"], "Change")], 0),
        ([], 0),
    ],
)
def test_a_range_that_users_notice_has_a_line_or_says_why_not(git, tmp_path, commits, code):
    for number, (names, message) in enumerate(commits):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(str(number))
        git("add", ".")
        git("commit", f"--message={message}")
    done = subprocess.run([tmp_path / ".ci" / "changelog", "base"], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("CHANGELOG.md has no line on this" in done.stdout) == bool(code)
    assert done.stderr == ""


def test_what_others_changed_since_does_not_count(git, tmp_path):
    """The range is what a branch adds, wherever the base has gone since."""
    git("switch", "--create", "mine")
    (tmp_path / "docs.md").write_text("")
    git("add", ".")
    git("commit", "--message=Change")
    git("switch", "main")
    (tmp_path / "lab").write_text("")
    git("add", ".")
    git("commit", "--message=Theirs")
    git("switch", "mine")
    assert subprocess.run([tmp_path / ".ci" / "changelog", "main"]).returncode == 0


def test_it_asks_for_the_base():
    done = subprocess.run([paths.ROOT / ".ci" / "changelog"], capture_output=True, text=True)
    assert done.returncode
    assert "which commit does the range begin after?" in done.stderr
