"""Commands, options and links in documents exist, and work-arounds name the issues they work around."""

import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main
import yaml

from labkit import cli
from labkit.exercises.catalogue import Exercise
from labkit.exercises.engine.outcomes import NotYet
from labkit.exercises.engine.reference import function_of
from labkit.system import paths

GUIDES = [paths.ROOT / "README.md", paths.ROOT / "CONTRIBUTING.md", *sorted((paths.ROOT / "docs").glob("*.md"))]
OTHERS = [paths.ROOT / "CHANGELOG.md", paths.ROOT / "SECURITY.md", paths.ROOT / "data" / "README.md"]
FENCED = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
# In a code block, a line up to a comment, the next command or a redirection; in prose, the whole code span.
TYPED = re.compile(r"(?:(?:^|[\s(])\./|^)lab(?P<words>(?: (?!#|&&|\||;|>|2>)[^\s`)]+)*)")


def commands(
    command: typer.core.TyperCommand, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], typer.core.TyperCommand]]:
    """Yield each command and group of `./lab`, with its words."""
    yield words, command
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from commands(subcommand, (*words, name))


COMMANDS = dict(commands(typer.main.get_command(cli.application())))


def unknown_word(line: str) -> str:
    """Return the first word of a command line that `./lab` does not know; empty if it knows them all."""
    words = line.split()
    path: tuple[str, ...] = ()
    while words and (*path, words[0]) in COMMANDS:
        path += (words.pop(0),)
    command = COMMANDS[path]
    if hasattr(command, "commands") and words and re.match("[a-z]", words[0]):
        return words[0]
    if command.context_settings.get("ignore_unknown_options"):  # they belong to another program
        return ""
    options = {
        "--help",
        *(name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)),
    }
    names = (word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None])
    return next((name for name in names if name.startswith("-") and name not in options), "")


def command_lines(text: str) -> Iterator[str]:
    """Yield the `./lab` command lines in a document, without `./lab`."""
    blocks = [block[0] for block in FENCED.finditer(text)]
    spans = re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", FENCED.sub("", text))
    for piece in [*(line for block in blocks for line in block.splitlines()), *spans]:
        for line in TYPED.finditer(piece):
            yield line["words"].strip()


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_commands_and_options_exist(path):
    unknown = {line: word for line in command_lines(path.read_text()) if (word := unknown_word(line))}
    assert not unknown


@pytest.mark.parametrize("path", ["CONTRIBUTING.md", "docs/writing-labs.md"])
def test_the_exercises_in_documents_work(path):
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", (paths.ROOT / path).read_text(), re.M | re.S)
    solution, *rest = (textwrap.dedent(block) for block in blocks if "# %% tags" in block or "EXERCISES" in block)
    tables: list[dict] = [{} for _ in rest]
    for table, block in zip(tables, rest, strict=True):
        exec(block, {"EXERCISES": table})
    text = solution[solution.index("def ") : solution.index("# %% tags")]
    exercise = Exercise(6, "twice_6", "", "def twice_6(values):\n    raise NotImplementedError()", text, "1", "")
    reference = tables[0][6]
    for answer in ({}, *reference.also):
        reference.check(exercise, function_of(exercise, answer))
    for why, answer in reference.wrong.items():
        with pytest.raises(NotYet, match=why):
            reference.check(exercise, function_of(exercise, answer))


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


def test_work_arounds_name_their_issues():
    text = (paths.ROOT / "docs" / "upstream.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    for _, file, _, upstream, _ in (row for row in rows[1:] if not set("".join(row)) <= set("- ")):
        issue = re.search(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+", upstream)
        assert (issue[0] if issue else "docs/upstream") in (paths.ROOT / file).read_text(), file


def test_site_and_package_begin_as_the_readme_does():
    first = " ".join((paths.ROOT / "README.md").read_text().split("\n\n")[1].split())
    package = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text())
    assert package["description"] == citation["abstract"] == first
    assert package["version"] == citation["version"]
    assert "{{ summary }}" in (paths.ENV / "site" / "index.md").read_text()


def test_the_readme_stays_short():
    assert len((paths.ROOT / "README.md").read_text().split()) <= 800


@pytest.mark.parametrize("path", [*GUIDES, *OTHERS[1:]], ids=lambda path: str(path.relative_to(paths.ROOT)))
def test_prose_is_wrapped_at_100_columns(path):
    """Tables, and text without a space to break at, such as a link, may be longer."""
    prose = FENCED.sub("", path.read_text()).splitlines()
    assert not [line for line in prose if len(line) > 100 and " " in line[:100].strip(" -*") and line[0] not in "|![<"]
