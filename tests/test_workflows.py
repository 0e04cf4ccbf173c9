"""GitHub workflows use pinned actions, minimal permissions and time limits."""

import re

import pytest
import yaml

from labkit.system import paths

GITHUB = paths.ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.y*ml"))
# Only the jobs that publish the site and draft a release may write.
PUBLISH = {"pages.yml": {"pages": "write", "id-token": "write"}, "release.yml": {"contents": "write"}}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_has_minimal_permissions_and_time_limits(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        allowed = PUBLISH.get(path.name) if name == "publish" else None
        assert job.get("permissions") == allowed, f"{name}: rights"
        assert "uses" in job or "timeout-minutes" in job, f"{name}: no time limit"


@pytest.mark.parametrize("path", [*WORKFLOWS, *GITHUB.glob("actions/*/action.yml")], ids=lambda path: path.name)
def test_actions_are_pinned_or_the_kits(path):
    for action in re.findall(r"uses: (\S+)", path.read_text()):  # a tag can be moved, a commit can't
        pinned = re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)
        assert pinned or (action.startswith("./") and (paths.ROOT / action).exists()), action
