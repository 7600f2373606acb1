"""Random sequences of calls agree with a model of what CUDA documents, and crash nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from native.emulated import emulator_environment

from native import random_calls

pytestmark = pytest.mark.emulator

SEEDS, STEPS = (int(text) for text in os.environ.get("MAYA_FUZZ_CALLS", "6,1500").split(","))
"""How many sequences of how many calls (make fuzz runs more)."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_calls_agree_with_the_model(seed: int, tmp_path: Path) -> None:
    environment = emulator_environment(tmp_path)
    command = [sys.executable, random_calls.__file__, environment["TEST_LIBRARY"], str(seed), str(STEPS)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, "\n".join(result.stderr.splitlines()[-40:])
