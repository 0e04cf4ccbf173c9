"""Whether the classroom's packages are installed; `./lab setup --classroom` installs them."""

from importlib.util import find_spec

import pytest

INSTALLED = find_spec("jupyterhub") is not None
with_classroom = pytest.mark.skipif(not INSTALLED, reason="takes the classroom's packages")
