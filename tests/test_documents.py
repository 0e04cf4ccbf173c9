"""What people are told to type exists, and leads to nobody else; links lead somewhere; options are tested."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main

from labkit import cli
from labkit.system import paths

# What people read: documents, labs, pages and messages.
READ = {".md", ".txt", ".html", ".ipynb", ".py", ".yaml", ".toml", ".def", ".sh", ""}
UNREAD = {".venv", "packages", "work"}  # what is installed, and what cells write
FOLDERS = (
    "docs",
    "env",
    "labkit",
    "labkit_author",
    "labkit_classroom",
    "notebooks",
    "solutions",
    ".github",
    ".devcontainer",
)


def texts() -> list[Path]:
    found = [*paths.ROOT.glob("*")]
    for start in FOLDERS:
        for folder, below, names in os.walk(paths.ROOT / start):
            below[:] = [name for name in below if name not in UNREAD]  # where it goes on
            found += [Path(folder, name) for name in names]
    return [path for path in found if path.is_file() and path.suffix in READ]


def test_whoever_forwards_a_port_names_the_address_that_jupyterlab_listens_on():
    """`localhost` is ::1 first on many machines, where another user can listen at the same port and gets the token."""
    forwarded = [
        (path.name, *found)
        for path in texts()
        for found in re.findall(r"-L[ =]?(\S*?):([^\s:]+):(\d+|\{\w+\})", path.read_text())
    ]
    assert {"README.md", "machines.md", "teaching.md", "students.py"} <= {name for name, *_ in forwarded}
    assert {host for *_, host, _ in forwarded} == {"127.0.0.1"}


@pytest.mark.parametrize("path", [path for path in texts() if path.suffix == ".md"], ids=lambda path: path.name)
def test_no_document_has_an_address_of_localhost_by_its_name(path):
    assert not re.search(r"https?://localhost\b", path.read_text())


GUIDES = [paths.ROOT / "README.md", paths.ROOT / "CONTRIBUTING.md", *sorted((paths.ROOT / "docs").glob("*.md"))]
IN_GUIDES = pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
FENCED = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
# In a line of a block up to its comment, the next command or a redirection; in a sentence the whole span of code.
TYPED = re.compile(r"(?:(?:^|[\s(])\./|^)lab(?P<words>(?: (?!#|&&|\||;|>|2>)[^\s`)]+)*)")
# Options of Docker, Podman, Apptainer, MPICH and pytest that a sentence names alone.
OTHERS = {
    "--nothing-skipped",
    *("-bind-to", "-launcher-exec", "--name", "--cleanenv", "--cpuset-cpus", "-v", "--init", "--cpus", "--shm-size"),
    *("--userns", "-p"),
}


def commands(
    command: typer.core.TyperCommand, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], typer.core.TyperCommand]]:
    """Yield each command of `./lab`, groups too, with the words by which it is called."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


COMMANDS = dict(commands(typer.main.get_command(cli.application())))


def options(command: typer.core.TyperCommand) -> set[str]:
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {option for option in found if option.startswith("-")} | {"--help"}


def refused(line: str) -> str:
    """Return what of a command line, without `./lab`, `./lab` would not know; empty when it knows all."""
    words = line.split()
    called: tuple[str, ...] = ()
    while words and (*called, words[0]) in COMMANDS:
        called += (words.pop(0),)
    command = COMMANDS[called]
    if hasattr(command, "commands") and words and re.match("[a-z]", words[0]):
        return words[0]
    if command.context_settings.get("ignore_unknown_options"):  # they are another program's
        return ""
    given = (word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None])
    return next((word for word in given if word.startswith("-") and word not in options(command)), "")


def typed(text: str) -> Iterator[str]:
    """Yield the command lines of `./lab` in a document, without `./lab`."""
    blocks = [found[0] for found in FENCED.finditer(text)]
    spans = re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", FENCED.sub("", text))
    for piece in [*(line for block in blocks for line in block.splitlines()), *spans]:
        for found in TYPED.finditer(piece):
            yield found["words"].strip()


@IN_GUIDES
def test_the_commands_and_options_that_a_document_names_exist(path):
    unknown = {line: word for line in typed(path.read_text()) if (word := refused(line))}
    assert not unknown


@IN_GUIDES
def test_the_options_that_a_sentence_names_alone_exist(path):
    known = set().union(*map(options, COMMANDS.values())) | OTHERS
    alone = re.findall(r"`(--?[a-z][\w-]*)", FENCED.sub("", path.read_text()))
    assert set(alone) <= known


def test_documents_name_commands():
    found = {line.split()[0] for path in GUIDES for line in typed(path.read_text()) if line}
    assert found >= {"setup", "start", "test", "doctor", "new-exercise", "cluster", "agenda", "pack"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Type `./lab rooflin`.", "rooflin"),
        ("```bash\n./lab doctor --jsn   # --json\n```", "--jsn"),
        ("  ```\n  cd kit && ./lab cluster upp --nodes 2\n  ```", "upp"),
        ("`./lab test --lab 09\n--exercize 4`", ""),  # what it does not know goes to pytest
        ("`./lab new-exercise 09 --aftr=3`", "--aftr"),
        ("`./lab network --rate 1 -- mpirun --what`", ""),
        ("```\n./lab start --port 1 # --prt\n./lab doctor --json > --file\n```", ""),
        ("a lab report, ./lab and `lab`, `./lab 07`", ""),
    ],
)
def test_a_command_that_is_misspelt_is_seen(text, wrong):
    assert next(filter(None, map(refused, typed(text))), "") == wrong


def fragments(path: Path) -> set[str]:
    """Return the fragments of a document's headings, as GitHub gives them, and of its own targets."""
    text = FENCED.sub("", path.read_text())
    titles = re.findall(r"^#{1,6} (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | set(
        re.findall(r'<a id="([^"]+)"', text)
    )


def dead_links(path: Path, text: str) -> list[str]:
    """Return the relative links of a document that lead to no file or no heading."""
    prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", text))
    dead = []
    for link in re.findall(r"\]\(([^()\s]+)\)", prose) + re.findall(r'(?:href|src)="([^"]+)"', prose):
        target, _, fragment = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        file = path.parent / target if target else path
        if not file.exists() or (fragment and file.suffix == ".md" and fragment not in fragments(file)):
            dead.append(link)
    return dead


@pytest.mark.parametrize(
    "path",
    [*GUIDES, paths.ROOT / "CHANGELOG.md", paths.ROOT / "SECURITY.md", paths.ROOT / "data" / "README.md"],
    ids=lambda path: str(path.relative_to(paths.ROOT)),
)
def test_links_lead_somewhere(path):
    assert dead_links(path, path.read_text()) == []


def test_a_dead_link_is_seen():
    text = "# One thing\n[a](README.md#what-you-need) [b](no.md) [c](#one-thing) [d](CONTRIBUTING.md#nothing) `[e](f)`"
    assert dead_links(paths.ROOT / "SECURITY.md", text) == ["no.md", "#one-thing", "CONTRIBUTING.md#nothing"]
    assert dead_links(paths.ROOT / "README.md", "[a](#when-something-fails) [b](https://a.b/c) [c](docs)") == []
