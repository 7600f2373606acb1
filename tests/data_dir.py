"""Where measured data for validation are, which are not part of the project."""

import os
from pathlib import Path

import pytest

VARIABLE = "MAYA_SHARED_DATA"


def shared_data_dir() -> Path:
    """The folder of measured tables; the calling test is skipped where there is none."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get(VARIABLE, default))
    if not folder.is_dir():
        pytest.skip(f"no measured data in {folder}: set {VARIABLE} to their folder")
    return folder
