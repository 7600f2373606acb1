"""Predicted against measured iteration times of whole training runs. The data are not part of the project."""

import pytest
from data_dir import shared_data_dir
from measured_runs import compare, measured_runs

pytestmark = [pytest.mark.data, pytest.mark.slow, pytest.mark.emulator]

# Gross errors only. Below: clocks that fall under load, slower hosts. Above: the measured programs fuse
# kernels that these do not.
LEAST_RATIO, LARGEST_RATIO = 0.65, 1.45


def test_iteration_times(capsys: pytest.CaptureFixture[str]) -> None:
    off = []
    for run in measured_runs(shared_data_dir()):
        result = compare(run)
        with capsys.disabled():
            print(f"\n{run.name}: measured {run.measured_ms:.0f} ms, ratio {result.ratio:.2f}", end="")
        if not LEAST_RATIO < result.ratio < LARGEST_RATIO:
            off.append(f"{run.name}: {result.ratio:.2f}")
    assert not off


def test_the_set_is_complete() -> None:
    """A row that is no longer found would leave the comparison without a word."""
    assert len(measured_runs(shared_data_dir())) == 8 + 8 + 7
