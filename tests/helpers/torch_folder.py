"""A made-up env/torch for all tests."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def torch_folder(folder: Path, wanted: str, installed: str | None, suffix: str = EXTENSION_SUFFIXES[0]) -> Path:
    """Return the folder, with the versions of PyTorch that the kit wants and that it has."""
    (folder / "requirements.txt").write_text(f"torch=={wanted}\n")
    if installed:
        about = folder / "packages" / f"torch-{installed}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {installed}\n")
        (folder / "packages/torch").mkdir()
        (folder / f"packages/torch/_C{suffix}").touch()
        (folder / "packages" / "requirements.txt").write_text(f"torch=={installed}\n")
    return folder
