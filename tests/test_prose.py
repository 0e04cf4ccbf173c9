"""The kit's texts avoid the phrases in tests/phrases.toml: documents, labs, docstrings, comments and messages."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.system import paths

PHRASES = tomllib.loads((paths.ROOT / "tests" / "phrases.toml").read_text())["phrases"]
# Between two words: white space, the # of a comment's next line, the quotes around a string's next line.
SPACE = r"(?:[\s#]|\"\n\s*f?\")+"
PATTERNS = [re.compile(rf"(?<![\w-])(?:{phrase['find'].replace(' ', SPACE)})(?!\w)", re.I) for phrase in PHRASES]
FOLDERS = (".github", "data", "docs", "env", "labkit", "labkit_author", "labkit_classroom", "solutions", "tests")
SUFFIXES = {".md", ".py", ".toml", ".yml", ".sh", ".sbatch"}
OTHERS = {".venv", "packages", "work"}  # folders of files that are not the kit's
SELF = {"test_prose.py", "phrases.toml"}

PLAIN = """\
Each worker reads its own shard, so the batches of two workers never overlap. The compiler reports how long each pass
took, which is three times as long as the link step on our 12-core build machine, 8 of which are performance cores.
Unless told otherwise, the scheduler assigns as many processes as there are sockets. These take turns on the bus.

The throughput of the new kernel is close to that of MKL, and its tail latencies are lower than those of the old one.
The factor by which it improves depends on the batch size; the algorithm by which tiles are chosen does not matter.
MPI stands for Message Passing Interface. It stands in for a missing broker, and as it stands there is no retry.

The value is shown beside the slider. If nothing listens on the port, the client backs off, and the time by which it
must give up is in the configuration. A buffer holds a whole number of cache lines. Does the first import take long?
Who owns this queue? Ask whoami, or the user `nobody`, whose UID is 65534. With or without, the result is the same.

The option has been available since 2023. Not so many users as we expected have asked for it, but for large clusters
it matters. Before you go on holiday, check that the backups go on running. Tell us what you see, and what is missing.
Results go on the dashboard. That of course depends on the load; a colleague of yours may have measured it already.

oneDNN's log lists the primitives. Pick the fastest of them, by the luck of the draw if they tie. There is no such
file; the content is amended later. What is measured is the median, and each run falls out of cache. Two of the
servers, both of which have AMX, are set up beside the switch. Is the lint quick? Commit, and return what you borrowed.
"""


def files() -> Iterator[Path]:
    """Yield the files that are read."""
    yield from (path for pattern in ("*.md", "lab", "*.toml") for path in paths.ROOT.glob(pattern))
    for folder in FOLDERS:
        for path in sorted((paths.ROOT / folder).rglob("*.*")):
            parts = {*path.relative_to(paths.ROOT).parts}
            if path.suffix in SUFFIXES and not parts & (OTHERS | SELF):
                yield path


def reports(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and message for each phrase in a text."""
    for pattern, phrase in zip(PATTERNS, PHRASES, strict=True):
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield line, f"{' '.join(match[0].split())!r}: write {phrase['write']}"


def test_texts_avoid_phrases():
    problems = []
    for path in files():
        text = path.read_text()
        if path.name == "CHANGELOG.md":
            text = text.partition("\n## [0")[0]  # without 0.1.0's section, which is older than the phrases
        problems += [f"{path.relative_to(paths.ROOT)}:{line}: {message}" for line, message in reports(text)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase["find"])
def test_phrases_match_their_examples(phrase):
    assert any(message.endswith(phrase["write"]) for _, message in reports(phrase["example"]))


def test_plain_english_is_accepted():
    assert list(reports(PLAIN)) == []
