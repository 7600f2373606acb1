"""Predicted durations of the operations of one rank."""

from dataclasses import dataclass

import numpy as np

BASES = ("measured", "interpolated", "bound", "model")
"""How a duration was made: a measured row, between measured rows, a data-sheet bound with an
efficiency, or an analytical model of links (collectives, copies)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """Arrays aligned with the rows of ``RankTrace.ops``; 0 for rows that take no device time."""

    duration_ns: np.ndarray  # int64
    basis: np.ndarray  # uint8, index into BASES
    op_kind: np.ndarray  # object (str): gemm, attention, conv, elementwise, norm, ..., "" for none
    flops: np.ndarray  # float64
    bytes: np.ndarray  # float64: moved through memory, or between ranks for collectives
