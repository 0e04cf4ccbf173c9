"""What runs on GitHub is the code that was looked at, with no more rights than it needs, and it tests what it says."""

import re
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from labkit.system import paths

GITHUB = paths.ROOT / ".github"
WORKFLOWS = sorted(path for path in (GITHUB / "workflows").iterdir() if path.suffix in (".yml", ".yaml"))
# What may do more than read: the jobs that publish the site and draft a release, which run nothing of the kit's.
PUBLISHES = {
    "pages.yml": {"publish": {"pages": "write", "id-token": "write"}},
    "release.yml": {"publish": {"contents": "write"}},
}
# The first of each action that runs on Node 24: GitHub's machines have no older one.
NODE_24 = {
    "actions/cache": 5,
    "actions/checkout": 5,
    "actions/deploy-pages": 5,
    "actions/download-artifact": 7,
    "actions/setup-python": 6,
    "actions/upload-artifact": 6,
    "actions/upload-pages-artifact": 5,
}
OWN = "uses: ./.github/workflows/"  # a workflow of this very commit
USES = [
    pytest.param(line, id=f"{path.name}:{number}")
    for path in WORKFLOWS
    for number, line in enumerate(path.read_text().splitlines(), start=1)
    if re.search(r"\buses\b", line.partition("#")[0]) and OWN not in line
]


def workflow(name: str) -> dict[str, Any]:
    """Return a workflow; YAML takes its word `on` for True."""
    return yaml.safe_load((GITHUB / "workflows" / name).read_text())


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_there_are_workflows_with_actions():
    assert WORKFLOWS
    assert USES


@pytest.mark.parametrize("line", USES)
def test_an_action_is_pinned_by_its_commit_with_its_version_beside_it(line):
    """A tag can be moved to other code, a commit can't."""
    pinned = re.fullmatch(r"\s*(?:- )?uses: ([\w.-]+(?:/[\w.-]+)+)@[0-9a-f]{40} # v(\d+)\.\d+\.\d+", line)
    assert pinned
    assert int(pinned[2]) >= NODE_24[pinned[1]], "it runs on a Node that GitHub's machines no longer have"


def test_an_action_is_everywhere_at_the_same_commit():
    pins = defaultdict(set)
    for path in WORKFLOWS:
        for name, pin in re.findall(r"uses: ([\w./-]+)@(.+)", path.read_text()):
            pins[name].add(pin)
    assert {name: found for name, found in pins.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_ends_the_run_it_supersedes(path):
    read = workflow(path.name)
    assert read["permissions"] == {"contents": "read"}
    rights = {name: job["permissions"] for name, job in read["jobs"].items() if "permissions" in job}
    assert rights == PUBLISHES.get(path.name, {})
    assert read["concurrency"]["cancel-in-progress"] is True
    assert "github.ref" in read["concurrency"]["group"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_ends_in_time(path):
    jobs = workflow(path.name)["jobs"].values()
    assert all("timeout-minutes" in job for job in jobs if "uses" not in job)


@pytest.mark.parametrize(("name", "jobs"), PUBLISHES.items())
def test_a_job_that_may_write_runs_no_code_of_the_checkout(name, jobs):
    for job in jobs:
        for step in workflow(name)["jobs"][job]["steps"]:
            allowed = step.get("uses", "").startswith(("actions/deploy-pages@", "actions/download-artifact@"))
            assert allowed or step["run"].startswith("gh release create ")


def test_each_part_of_the_tests_waits_for_the_one_that_is_quicker():
    jobs = workflow("test.yml")["jobs"]
    assert "needs" not in jobs["style"]
    assert jobs["fast"]["needs"] == jobs["site"]["needs"] == "style"
    assert {jobs[name]["needs"] for name in ("whole", "privileged", "image")} == {"fast"}


def test_the_style_is_checked_by_its_tests_and_by_no_copy_of_them():
    assert commands(workflow("test.yml")["jobs"]["style"])[-1] == ".venv/bin/python -m pytest tests/test_style.py"


def test_all_of_it_runs_on_ubuntu_and_two_debians_and_once_a_week():
    read = workflow("test.yml")
    whole = read["jobs"]["whole"]
    assert whole["runs-on"] == "ubuntu-24.04"
    assert whole["strategy"]["matrix"]["container"] == ["", "debian:bookworm", "debian:trixie"]
    assert ".ci/run" in commands(whole)
    assert re.fullmatch(r"\d+ \d+ \* \* \d", read[True]["schedule"][0]["cron"])


def test_where_all_can_be_had_nothing_is_skipped():
    (run,) = [run for run in commands(workflow("test.yml")["jobs"]["privileged"]) if "./lab test" in run]
    tests = [word for word in run.split() if word.startswith("tests/")]
    assert run.startswith("sudo ")
    assert "--nothing-skipped" in run
    assert {"tests/slurm", "tests/testbed", "tests/classroom/hub", "tests/train/test_sbatch.py"} <= set(tests)
    assert all((paths.ROOT / path).exists() for path in tests)


def test_a_release_waits_for_all_tests():
    jobs = workflow("release.yml")["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml"
    assert "workflow_call" in workflow("test.yml")[True]
    assert set(jobs["publish"]["needs"]) == {"test", "build"}


def test_new_versions_of_actions_and_of_both_locks_are_looked_for():
    updates = yaml.safe_load((GITHUB / "dependabot.yml").read_text())["updates"]
    places = {
        (update["package-ecosystem"], place)
        for update in updates
        for place in update.get("directories", [update.get("directory")])
    }
    locks = [path.relative_to(paths.ROOT).parent for path in (paths.ROOT / "uv.lock", paths.ENV / "openmp" / "uv.lock")]
    assert places == {("github-actions", "/"), *(("uv", str(Path("/", lock))) for lock in locks)}


@pytest.fixture
def checkout(tmp_path):
    """A folder with what a release's notes are made from: version 0.2.0, and a changelog."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "release-notes").symlink_to(paths.ROOT / ".ci" / "release-notes")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n[tool]\nversion = "9"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n\n- New.\n\n## [0.1.0]\n\n- Old.\n"
    )
    return tmp_path


def notes(folder: Path, tag: str) -> subprocess.CompletedProcess:
    return subprocess.run([folder / ".ci" / "release-notes", tag], capture_output=True, text=True)


def test_a_releases_text_is_its_section_of_the_changelog(checkout):
    assert notes(checkout, "v0.2.0").stdout.strip() == "- New."


@pytest.mark.parametrize(
    ("tag", "changelog", "told"),
    [
        ("v0.1.0", None, "the tag is 'v0.1.0' and pyproject.toml has 0.2.0"),
        ("", None, "the tag is ''"),
        ("v0.2.0", "## [Unreleased]\n\n- New.\n", "no section '## [0.2.0]'"),
        ("v0.2.0", "## [0.2.0]\n\n## [0.1.0]\n\n- Old.\n", "nothing in it"),
    ],
)
def test_a_tag_without_its_version_or_its_section_is_refused_in_one_line(checkout, tag, changelog, told):
    if changelog:
        (checkout / "CHANGELOG.md").write_text(changelog)
    refused = notes(checkout, tag)
    assert refused.returncode == 2
    assert told in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_who_cites_the_kit_names_its_version():
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    assert yaml.safe_load((paths.ROOT / "CITATION.cff").read_text())["version"] == project["version"]
