"""How sure a prediction is: factors around it that hold 80 % of the measured durations.

Conformal bands: the 10 % and 90 % quantiles of log(measured / predicted) on held-out shapes, per kind, type
and basis. Kinds or bases without held-out rows have the bands of GENERIC.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from maya.estimators.annotation import BASES
from maya.estimators.interpolation import Floats

LOWER_QUANTILE, UPPER_QUANTILE = 0.1, 0.9
MIN_ROWS = 20  # fewer tell little of a tenth

# Logarithms of the factors by basis, where nothing was held out. Mean errors of bounds against the measured
# kinds are 7 to 39 % (docs/estimators.md).
GENERIC = {
    "measured": (-0.06, 0.06),
    "interpolated": (-0.12, 0.12),
    "extrapolated": (-0.2, 0.2),
    "borrowed": (-0.25, 0.25),
    "bound": (-0.3, 0.35),
    "model": (-0.25, 0.35),
}
# Beyond the measured sizes, and on another GPU, errors on the measured ones are a lower limit.
WIDENING = {"measured": 1.0, "interpolated": 1.0, "extrapolated": 1.5, "borrowed": 2.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Intervals:
    """``bands``: by (op kind, type), logarithms of the lower and the upper factor on held-out shapes."""

    bands: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def band(self, op_kind: str, dtype: str, basis: str) -> tuple[float, float]:
        """Logarithms of the lower and the upper factor around a prediction."""
        lower, upper = GENERIC[basis]
        held_out = self.bands.get((op_kind, dtype))
        if held_out is None or basis not in WIDENING:
            return lower, upper
        widening = WIDENING[basis]
        return widening * held_out[0], widening * held_out[1]

    def factors(self, op_kind: str, dtype: str, basis: np.ndarray) -> tuple[Floats, Floats]:
        """Lower and upper factors of operations of one kind and type; ``basis`` indexes BASES."""
        bands = np.exp([self.band(op_kind, dtype, name) for name in BASES])
        return bands[basis, 0], bands[basis, 1]

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"op_kind": kind, "dtype": dtype, "log_lower": lower, "log_upper": upper}
            for (kind, dtype), (lower, upper) in sorted(self.bands.items())
        ]

    @classmethod
    def from_json(cls, entries: list[dict[str, Any]]) -> "Intervals":
        return cls(bands={(e["op_kind"], e["dtype"]): (e["log_lower"], e["log_upper"]) for e in entries})


def calibrate(held_out: pd.DataFrame) -> Intervals:
    """Bands from held-out rows.

    Args:
        held_out: columns op_kind, dtype, duration_us, predicted_us
    """
    log_ratio = np.log(held_out.duration_us / held_out.predicted_us)
    bands = {}
    for (kind, dtype), group in log_ratio.groupby([held_out.op_kind, held_out.dtype]):
        if len(group) >= MIN_ROWS:
            bands[str(kind), str(dtype)] = (
                float(group.quantile(LOWER_QUANTILE)),
                float(group.quantile(UPPER_QUANTILE)),
            )
    return Intervals(bands=bands)
