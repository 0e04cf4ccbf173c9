"""The commands, options and links in documents exist, and work-arounds name what they work around."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main

from labkit import cli
from labkit.system import paths

GUIDES = [paths.ROOT / "README.md", paths.ROOT / "CONTRIBUTING.md", *sorted((paths.ROOT / "docs").glob("*.md"))]
OTHERS = [paths.ROOT / "CHANGELOG.md", paths.ROOT / "SECURITY.md", paths.ROOT / "data" / "README.md"]
FENCED = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
# In a line of a block up to its comment, the next command or a redirection; in a sentence the whole span of code.
TYPED = re.compile(r"(?:(?:^|[\s(])\./|^)lab(?P<words>(?: (?!#|&&|\||;|>|2>)[^\s`)]+)*)")


def commands(
    command: typer.core.TyperCommand, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], typer.core.TyperCommand]]:
    """Yield each command and group of `./lab` with the words that call it."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


COMMANDS = dict(commands(typer.main.get_command(cli.application())))


def unknown_word(line: str) -> str:
    """Return the first word of a command line that `./lab` does not know; empty when it knows all."""
    words = line.split()
    called: tuple[str, ...] = ()
    while words and (*called, words[0]) in COMMANDS:
        called += (words.pop(0),)
    command = COMMANDS[called]
    if hasattr(command, "commands") and words and re.match("[a-z]", words[0]):
        return words[0]
    if command.context_settings.get("ignore_unknown_options"):  # they are another program's
        return ""
    options = {
        "--help",
        *(name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)),
    }
    given = (word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None])
    return next((word for word in given if word.startswith("-") and word not in options), "")


def command_lines(text: str) -> Iterator[str]:
    """Yield the command lines of `./lab` in a document, without `./lab`."""
    blocks = [block[0] for block in FENCED.finditer(text)]
    spans = re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", FENCED.sub("", text))
    for piece in [*(line for block in blocks for line in block.splitlines()), *spans]:
        for line in TYPED.finditer(piece):
            yield line["words"].strip()


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_commands_and_options_exist(path):
    unknown = {line: word for line in command_lines(path.read_text()) if (word := unknown_word(line))}
    assert not unknown


def anchors(path: Path) -> set[str]:
    """Return the fragments of a document's headings, as GitHub makes them, and its own targets."""
    text = FENCED.sub("", path.read_text())
    titles = re.findall(r"^#{1,6} (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | set(
        re.findall(r'<a id="([^"]+)"', text)
    )


@pytest.mark.parametrize("path", [*GUIDES, *OTHERS], ids=lambda path: str(path.relative_to(paths.ROOT)))
def test_links_lead_somewhere(path):
    prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", path.read_text()))
    for link in re.findall(r"\]\(([^()\s]+)\)", prose) + re.findall(r'(?:href|src)="([^"]+)"', prose):
        target, _, anchor = link.partition("#")
        if not re.match(r"[a-z]+:", link):
            file = path.parent / target if target else path
            assert file.exists(), link
            assert not anchor or file.suffix != ".md" or anchor in anchors(file), link


def test_work_arounds_name_what_they_work_around():
    text = (paths.ROOT / "docs" / "upstream.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    for _, file, _, upstream, _ in (row for row in rows[1:] if not set("".join(row)) <= set("- ")):
        issue = re.search(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+", upstream)
        assert (issue[0] if issue else "docs/upstream") in (paths.ROOT / file).read_text(), file
