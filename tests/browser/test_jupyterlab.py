"""What JupyterLab, as `./lab start` opens it, lets a notebook that somebody else wrote do."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from labkit.system import addresses

pytestmark = [pytest.mark.weekly, pytest.mark.timeout(420)]

LAB_MS = 20_000
LINK = '<a data-commandlinker-command="help:about" data-commandlinker-args="{}">The solution</a>'


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Open a student's labs, among them a notebook with a link that runs a command; return its address."""
    folder = tmp_path_factory.mktemp("start") / "my labs"
    folder.mkdir()
    output = nbformat.v4.new_output("display_data", data={"text/html": LINK})
    cells = [nbformat.v4.new_markdown_cell(LINK), nbformat.v4.new_code_cell("1", outputs=[output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "theirs.ipynb")
    (port,) = addresses.free_ports(1)
    command = [Path(sys.executable).with_name("labkit"), "start", "--no-browser", f"--port={port}", "--folder", folder]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"HOME": str(folder)}) as server:
        token = next(found[1] for line in server.stderr if (found := re.search(r"\?token=(\w+)", line)))
        yield f"http://127.0.0.1:{port}/lab/tree/theirs.ipynb?token={token}"
        server.send_signal(signal.SIGTERM)
        server.stderr.read()


def test_a_link_in_a_notebook_runs_no_command_of_jupyterlab(address, visit):
    page = visit().page
    page.goto(address)
    links = page.locator("a", has_text=re.compile("^The solution$"))
    expect(links).to_have_count(2, timeout=LAB_MS)
    for link in links.all():
        link.click()
        expect(link).not_to_have_attribute("data-commandlinker-command", re.compile(""))
        expect(page.get_by_role("dialog")).to_have_count(0)
