"""What is learned of one group of operations: the logarithm of its duration over its bound.

A group is a kind and a type (see `estimator`). Dense tables become a grid that is interpolated; a regressor
(XGBoost) answers between and beyond rows. Which of them predicts off the measured points is chosen on
held-out shapes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maya.estimators.annotation import BASES
from maya.estimators.interpolation import Floats, LogGrid

Basis = NDArray[np.uint8]
MEASURED, INTERPOLATED, EXTRAPOLATED, BORROWED, BOUND, MODEL = (
    np.uint8(BASES.index(b))
    for b in ("measured", "interpolated", "extrapolated", "borrowed", "bound", "model")
)

WAYS = ("grid", "trees", "mean")
"""What may predict between the points of a grid: interpolation, the regressor, the mean of both."""

BOOST_ROUNDS = 150
TREE_DEPTH = 8
LEARNING_RATE = 0.12
# A regressor answers a little beyond the rows it was fitted on: half a factor of two on each feature.
RANGE_MARGIN = 0.35


@dataclass(frozen=True, kw_only=True, slots=True)
class Trees:
    """A regressor; ``low`` and ``high`` are the range of each feature among its rows.

    ``variants`` are the (op, direction) pairs of its rows, joined by "/", in the order of their codes.
    """

    model: bytes  # UBJSON of XGBoost
    low: Floats
    high: Floats
    variants: tuple[str, ...] = ()

    def __call__(self, features: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Log ratios of rows of features, and whether each lies within the range of the fit."""
        import xgboost

        trees = xgboost.Booster(params={"nthread": 1})
        trees.load_model(bytearray(self.model))
        inside = ((features >= self.low - RANGE_MARGIN) & (features <= self.high + RANGE_MARGIN)).all(axis=1)
        return np.asarray(trees.inplace_predict(features), np.float64), np.asarray(inside)

    def codes(self, variants: NDArray[np.object_]) -> Floats:
        """Code of each variant, -1 for those that the fit has not seen."""
        known = {variant: float(code) for code, variant in enumerate(self.variants)}
        return np.array([known.get(variant, -1.0) for variant in variants])


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """At least one of ``grid`` and ``trees``; ``lender`` names the GPU it was measured on, if another."""

    grid: LogGrid | None = None
    trees: Trees | None = None
    way: str = "trees"
    lender: str = ""

    def __call__(
        self, coordinates: tuple[Floats, ...], features: Callable[[NDArray[np.bool_]], Floats]
    ) -> tuple[Floats, Basis]:
        """Log of (duration / bound), and its basis.

        Args:
            coordinates: on the axes of the grid, ignored without one
            features: gives the features of the chosen rows for the regressor
        """
        num_rows = len(coordinates[0])
        everything = np.ones(num_rows, bool)
        if self.grid is None:
            assert self.trees is not None
            log_ratio, inside = self.trees(features(everything))
            basis = np.where(inside, INTERPOLATED, EXTRAPOLATED)
        else:
            log_ratio, is_measured, inside = self.grid(*coordinates)
            between = inside & ~is_measured
            if self.way != "grid" and self.trees is not None and between.any():
                from_trees, _ = self.trees(features(between))
                share = 1.0 if self.way == "trees" else 0.5
                log_ratio[between] = share * from_trees + (1 - share) * log_ratio[between]
            basis = np.select([is_measured, inside], [MEASURED, INTERPOLATED], EXTRAPOLATED)
        if self.lender:
            basis = np.full(num_rows, BORROWED)
        return log_ratio, basis.astype(np.uint8)


Fits = dict[str, Fit]
"""By group, e.g. "gemm/bf16" or "attention/bf16/128/causal"."""


def fit_trees(
    features: Floats,
    log_ratio: Floats,
    *,
    variants: tuple[str, ...] = (),
    rounds: int = BOOST_ROUNDS,
    depth: int = TREE_DEPTH,
) -> Trees:
    """Fits a regressor of log ratios on rows of features, without gaps."""
    import xgboost

    params = {
        "max_depth": depth,
        "eta": LEARNING_RATE,
        "subsample": 0.8,
        "colsample_bytree": 0.8,
        "tree_method": "hist",
        "seed": 0,
        "nthread": 1,  # threads of one small fit wait for each other longer than they help on a busy machine
    }
    data = xgboost.QuantileDMatrix(features, label=log_ratio, nthread=1)
    model = xgboost.train(params, data, num_boost_round=rounds)
    return Trees(
        model=bytes(model.save_raw("ubj")),
        low=features.min(axis=0),
        high=features.max(axis=0),
        variants=variants,
    )
