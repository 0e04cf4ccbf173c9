"""Work-arounds for others' programs are where docs/upstream.md says and name their link; updates have it read again."""

import re
import tomllib

import pytest

from labkit.system import paths

DOCUMENT = paths.ROOT / "docs" / "upstream.md"
HEADER = ["what", "in the kit", "looked at with", "upstream", "remove when"]
TABLE = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in DOCUMENT.read_text().splitlines()
    if line.startswith("| ")
]
ROWS = [row for row in TABLE[1:] if not set("".join(row)) <= set("- ")]
LOCKED = {
    package["name"]: package["version"]
    for package in tomllib.loads((paths.ROOT / "uv.lock").read_text())["package"]
    if "version" in package
}
LOCKED |= dict(re.findall(r"^([\w-]+)==(\S+)", (paths.ENV / "torch" / "requirements.txt").read_text(), re.M))
ISSUE = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+")
SENT = paths.ROOT / "docs" / "upstream"


def test_the_table_has_its_columns():
    assert TABLE[0] == HEADER
    assert len(ROWS) > 20
    assert all(len(row) == len(HEADER) and all(row) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_file_of_a_work_around_names_its_link(row):
    _, file, _, upstream, _ = row
    links = ISSUE.findall(upstream)
    text = (paths.ROOT / file).read_text()
    assert (links[0] if links else "docs/upstream") in text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_somebody_looked_since_the_version_moved(row):
    if row[2] != "–":
        name, version = row[2].split()
        assert LOCKED[name] == version, f"is '{row[4]}' so by now? Then remove the work-around; else write the version"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_has_no_issue_yet_has_a_text_that_can_be_sent(row):
    upstream = row[3]
    texts = re.findall(r"\]\(upstream/([\w.-]+)\)", upstream)
    assert ISSUE.search(upstream) or texts or "to send" in upstream or upstream.startswith("none needed")
    assert all((SENT / name).is_file() for name in texts)


def test_each_text_and_patch_belongs_to_a_row():
    named = set(re.findall(r"\]\(upstream/([\w.-]+)\)", DOCUMENT.read_text()))
    assert {path.name for path in SENT.glob("*.md")} == named
    for patch in SENT.glob("*.patch"):
        assert f"docs/upstream/{patch.name}" in patch.with_suffix(".md").read_text()
