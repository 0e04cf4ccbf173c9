"""Documents are right where a test can tell: commands, links, examples, versions, and figures that the code has too."""

import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main
import yaml
from english import conspicuous

from labkit import cli
from labkit.exercises import catalogue
from labkit.exercises.catalogue import Exercise
from labkit.exercises.engine.outcomes import NotYet
from labkit.exercises.engine.reference import function_of
from labkit.system import paths
from labkit_author import pack, site
from labkit_classroom.lecture import routes

AT_THE_ROOT = [paths.ROOT / name for name in ("README.md", *site.AT_THE_ROOT)]
PAGES = sorted((paths.ROOT / "docs").glob("*/*.md"))
OTHERS = [path for folder in ("data", "env", "env/*", "docs/*/*") for path in paths.ROOT.glob(f"{folder}/*.md")]
ALL = list(dict.fromkeys([*AT_THE_ROOT, *PAGES, *OTHERS]))
GUIDES = [path for path in ALL if path.name != "CHANGELOG.md"]
README, INSTALL, PLAN = (paths.ROOT / name for name in ("README.md", "docs/deploy/install.md", "docs/teach/plan.md"))
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


@pytest.mark.parametrize("path", GUIDES, ids=paths.shown)
def test_commands_and_options_exist(path):
    unknown = {line: word for line in command_lines(path.read_text()) if (word := unknown_word(line))}
    assert not unknown


def test_the_example_of_an_exercise_works():
    text = (paths.ROOT / "docs/contribute/writing-labs.md").read_text()
    lab, table = (textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", text, re.M | re.S))
    entries: dict = {}
    exec(table, {"EXERCISES": entries})
    solution = lab[lab.index("def ") : lab.index("# %% tags")]
    exercise = Exercise(6, "twice_6", "", "def twice_6(values):\n    raise NotImplementedError()", solution, "1", "")
    reference = entries[6]
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


@pytest.mark.parametrize("path", ALL, ids=paths.shown)
def test_links_lead_somewhere(path):
    prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", path.read_text()))
    for link in re.findall(r"\]\(([^()\s]+)\)", prose) + re.findall(r'(?:href|src)="([^"]+)"', prose):
        target, _, anchor = link.partition("#")
        if not re.match(r"[a-z]+:", link):
            file = path.parent / target if target else path
            assert file.exists(), link
            assert not anchor or file.suffix != ".md" or anchor in anchors(file), link


def test_code_names_documents_that_exist():
    """In messages and comments, say."""
    patterns = ("lab", "labkit*/**/*.py", "env/*", "env/*/*", "tests/**/*.py", ".github/**/*")
    for file in (file for pattern in patterns for file in paths.ROOT.glob(pattern) if file.is_file()):
        for name in re.findall(r"(?<![\w./-])docs/[a-z/-]+\.(?:md|patch|png)", file.read_text(errors="ignore")):
            assert (paths.ROOT / name).exists(), (file, name)


def test_work_arounds_name_their_issues_and_locked_versions():
    text = (paths.ROOT / "docs/contribute/upstream.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    locked = (paths.ROOT / "uv.lock").read_text() + (paths.ENV / "torch" / "requirements.txt").read_text()
    for _, file, checked, upstream, _ in (row for row in rows[1:] if not set("".join(row)) <= set("- ")):
        issue = re.search(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+", upstream)
        assert (issue[0] if issue else "docs/contribute/upstream") in (paths.ROOT / file).read_text(), file
        name, _, version = checked.partition(" ")
        pinned = (f'name = "{name}"\nversion = "{version}"', f"{name}=={version}")
        assert not version or any(text in locked for text in pinned), file


def test_package_and_citation_begin_as_the_readme_does():
    first = " ".join(README.read_text().split("\n\n")[1].split())
    package = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text())
    assert package["description"] == citation["abstract"] == first
    assert package["version"] == citation["version"]
    assert package["authors"] == citation["authors"]
    assert f"git clone {package['urls']['Repository']} " in README.read_text()


def test_the_site_has_every_document():
    listed = {
        (paths.ROOT / "docs" / title.lower() / f"{page}.md").resolve()
        for title, pages in site.SECTIONS.items()
        for page in pages.split()
        if "*" not in page
    }
    assert listed == {*AT_THE_ROOT[1:], *PAGES, paths.ROOT / "docs" / "contribute" / "modules.md"}  # a made page


def test_documents_stay_short():
    """Glossary and work-arounds are for looking things up; rules of tables are not words."""
    assert len(README.read_text().split()) <= 600
    read = [path for path in [*AT_THE_ROOT, *PAGES] if path.name not in ("glossary.md", "upstream.md")]
    assert sum(len(re.findall(r"\S*\w\S*", path.read_text())) for path in read) <= 15_000


@pytest.mark.parametrize("path", GUIDES, ids=paths.shown)
def test_prose_is_wrapped_at_100_columns(path):
    """Tables, headings, and text without a space to break at, such as a link, may be longer."""
    prose = FENCED.sub("", path.read_text()).splitlines()
    assert not [line for line in prose if len(line) > 100 and " " in line[:100].strip(" -*") and line[0] not in "|![<#"]


@pytest.mark.parametrize(
    "path", [path for path in [*AT_THE_ROOT, *PAGES] if path.name != "glossary.md"], ids=paths.shown
)
def test_prose_reads_like_a_native_writers(path):
    """Each entry of the glossary has a line "Search for: …"."""
    assert not conspicuous(path.read_text())


# Figures that the code has too


def with_check(name: str) -> list[str]:
    """Return the numbers of the labs that show more with a part that the doctor checks."""
    return [lab.number for lab in catalogue.labs() if name in lab.better_with]


def test_install_names_the_labs_that_use_optional_parts():
    cells = [line.split("|")[1] for line in INSTALL.read_text().splitlines() if line.startswith("| ")]
    parts = {"emulated wires": "network", "NUMA placement": "numactl", "Slurm jobs": "Slurm", "PyTorch": "PyTorch"}
    for part, check in parts.items():
        cell = next(cell for cell in cells if cell.strip().startswith(part))
        assert re.findall(r"\b\d\d\b", cell) == with_check(check), part
    text = " ".join(README.read_text().split())
    assert re.findall(r"\d\d", re.search(r"Labs ([\d, and]+) also use PyTorch", text)[1]) == with_check("PyTorch")


def test_documents_agree_on_disk_and_on_the_time_of_the_tests():
    setup = re.search(r"DISK_NEEDED_GB=(\d+)", (paths.ROOT / "lab").read_text())[1]
    disk, minutes = set(), set()
    for path in [*GUIDES, paths.ROOT / "labkit_author" / "commands.py"]:
        text = " ".join(path.read_text().split())
        disk |= {(number, path.name) for number in re.findall(r"(\d+) GB of (?:free )?disk", text)}
        minutes |= set(re.findall(r"(\d+) minutes on two (?:idle )?cores", text, re.I))
    assert {number for number, _ in disk} <= {setup, str(pack.BUILD_BYTES // 10**9)}, disk
    assert len(minutes) == 1


def test_install_lists_the_variables():
    parameters = [parameter for command in COMMANDS.values() for parameter in command.params]
    names = {parameter.envvar for parameter in parameters if isinstance(parameter.envvar, str)}
    assert not [name for name in names if f"`{name}`" not in INSTALL.read_text()]


@pytest.mark.parametrize("name", routes.names())
def test_the_plan_lists_the_routes(name):
    row = next(line for line in PLAN.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    route, last = routes.find(name), row.rstrip("| ").rpartition("|")[2]
    named = re.findall(r"\b\d\d\b", last)
    labs = [lab.number for lab in catalogue.labs() if lab.number not in named] if "all but" in last else named
    assert labs == route.labs
    assert f"{route.hours:g} h" in row
