"""JupyterLab from `./lab start` is safe with notebooks written by others."""

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

LAB_MS = 120_000
BUTTON = '<button data-commandlinker-command="help:about" data-commandlinker-args="{}">The solution</button>'


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start JupyterLab with a notebook whose button would run a command; return its address."""
    folder = tmp_path_factory.mktemp("start") / "my labs"
    folder.mkdir()
    output = nbformat.v4.new_output("display_data", data={"text/html": BUTTON})
    cells = [nbformat.v4.new_markdown_cell(BUTTON), nbformat.v4.new_code_cell("1", outputs=[output])]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}  # otherwise, JupyterLab asks for one
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "theirs.ipynb")
    (port,) = addresses.free_ports(1)
    command = [Path(sys.executable).with_name("labkit"), "start", "--no-browser", f"--port={port}", "--folder", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"HOME": str(folder)}) as server:
        token = next(match[1] for line in server.stdout if (match := re.search(r"\?token=(\w+)", line)))
        yield f"http://127.0.0.1:{port}/lab/tree/theirs.ipynb?token={token}"
        server.send_signal(signal.SIGTERM)
        server.stdout.read()


def test_buttons_in_notebooks_cannot_run_jupyterlab_commands(address, visit):
    page = visit().page
    page.goto(address)
    buttons = page.get_by_role("button", name="The solution", exact=True)
    expect(buttons).to_have_count(2, timeout=LAB_MS)
    expect(page.locator("[data-commandlinker-command]").and_(buttons)).to_have_count(0)
    for button in buttons.all():
        button.click()
        expect(page.get_by_role("dialog")).to_have_count(0)
