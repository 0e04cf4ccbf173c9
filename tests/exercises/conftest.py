from labs import pytest_generate_tests  # noqa: F401
