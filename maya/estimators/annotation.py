"""Predicted durations of the operations of one rank."""

from dataclasses import dataclass

import numpy as np

BASES = ("measured", "interpolated", "extrapolated", "borrowed", "bound", "model")
"""How a duration was made: a measured row, between measured rows, beyond them, with the efficiency measured
on the nearest other GPU, a data-sheet bound with an efficiency, or an analytical model of links
(collectives, copies)."""

MEASURED_BASES = ("measured", "interpolated", "extrapolated")
"""Those that rest on measurements of the GPU itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """Arrays aligned with the rows of ``RankTrace.ops``; 0 for rows that take no device time."""

    duration_ns: np.ndarray  # int64
    basis: np.ndarray  # uint8, index into BASES
    op_kind: np.ndarray  # object (str): gemm, attention, conv, elementwise, norm, ..., "" for none
    dtype: np.ndarray  # object (str): type that decides the rate, "" where it does not matter
    flops: np.ndarray  # float64
    bytes: np.ndarray  # float64: moved through memory, or between ranks for collectives
