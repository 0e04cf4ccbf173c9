"""What runs on GitHub is the code that was looked at, with no more rights than it needs."""

import re

import pytest
import yaml

from labkit.system import paths

WORKFLOWS = sorted(
    path for path in (paths.ROOT / ".github" / "workflows").iterdir() if path.suffix in (".yml", ".yaml")
)
# What may do more than read: the job that publishes the site, which checks out and runs nothing of the kit's.
PUBLISHES = {"pages.yml": {"publish": {"pages": "write", "id-token": "write"}}}
USES = [
    pytest.param(line, id=f"{path.name}:{number}")
    for path in WORKFLOWS
    for number, line in enumerate(path.read_text().splitlines(), start=1)
    if re.search(r"\buses\b", line.partition("#")[0])
]


def test_there_are_workflows_with_actions():
    assert WORKFLOWS
    assert USES


@pytest.mark.parametrize("line", USES)
def test_an_action_is_pinned_by_its_commit_with_its_version_beside_it(line):
    """A tag can be moved to other code, a commit can't."""
    assert re.fullmatch(r"\s*(- )?uses: [\w.-]+(/[\w.-]+)+@[0-9a-f]{40}  ?# v\d+\.\d+\.\d+", line)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_ends_the_run_it_supersedes(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    rights = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert rights == PUBLISHES.get(path.name, {})
    assert workflow["concurrency"]["cancel-in-progress"] is True
    assert "github.ref" in workflow["concurrency"]["group"]


@pytest.mark.parametrize(("name", "jobs"), PUBLISHES.items())
def test_a_job_that_may_write_runs_no_code_of_the_checkout(name, jobs):
    workflow = yaml.safe_load((paths.ROOT / ".github" / "workflows" / name).read_text())
    for job in jobs:
        steps = workflow["jobs"][job]["steps"]
        assert [step["uses"].partition("@")[0] for step in steps] == ["actions/deploy-pages"]
