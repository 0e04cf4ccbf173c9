"""Run one of the kit's commands in this process."""

import sys
from unittest.mock import patch

import pytest

from labkit import cli


def run_lab(*arguments: object) -> int:
    """Run `./lab` with these arguments; return its exit code."""
    with patch.object(sys, "argv", ["lab", *map(str, arguments)]), pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0
