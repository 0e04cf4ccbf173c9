"""GitHub workflows use pinned actions, minimal permissions and time limits."""

import re

import pytest
import yaml

from labkit.system import paths

WORKFLOWS = sorted((paths.ROOT / ".github" / "workflows").glob("*.y*ml"))
# Only the jobs that publish the site and draft a release may write.
PUBLISH = {"pages.yml": {"pages": "write", "id-token": "write"}, "release.yml": {"contents": "write"}}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_is_pinned_with_minimal_permissions_and_time_limits(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        allowed = PUBLISH.get(path.name) if name == "publish" else None
        assert job.get("permissions") == allowed, f"{name}: rights"
        assert "uses" in job or "timeout-minutes" in job, f"{name}: no time limit"
        actions = [job["uses"]] if "uses" in job else [step["uses"] for step in job["steps"] if "uses" in step]
        for action in actions:  # a tag can be moved, a commit can't
            assert action.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
