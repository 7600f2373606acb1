"""Multilinear interpolation on a rectangular grid in logarithmic coordinates, vectorised."""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogGrid:
    """Values on the points of a grid whose axes are positive and ascending.

    ``values`` holds logarithms and has no gaps; ``is_measured`` marks the points that were measured,
    the others were filled from their neighbours along the axes.
    """

    axes: tuple[Floats, ...]
    values: Floats
    is_measured: NDArray[np.bool_]

    def __call__(self, *coordinates: Floats) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
        """Interpolates.

        Args:
            coordinates: one array per axis, all of one length; points beyond an axis are clamped to it.

        Returns:
            the value (a logarithm), whether the point is a measured one, whether it lies inside the grid
        """
        length = len(coordinates[0])
        inside = np.ones(length, bool)
        exact = np.ones(length, bool)
        lower: list[NDArray[np.int64]] = []
        weights: list[Floats] = []
        for axis, x in zip(self.axes, coordinates, strict=True):
            inside &= (x >= axis[0]) & (x <= axis[-1])
            clamped = np.clip(x, axis[0], axis[-1])
            index = np.clip(np.searchsorted(axis, clamped, side="right") - 1, 0, max(len(axis) - 2, 0))
            upper = np.minimum(index + 1, len(axis) - 1)
            span = np.log(axis[upper]) - np.log(axis[index])
            share = np.divide(
                np.log(clamped) - np.log(axis[index]), span, out=np.zeros(length), where=span > 0
            )
            exact &= (share == 0) | (share == 1)
            lower.append(index)
            weights.append(share)
        result = np.zeros(length)
        for corner in product((0, 1), repeat=len(self.axes)):
            weight = np.ones(length)
            position = []
            for side, index, share, axis in zip(corner, lower, weights, self.axes, strict=True):
                weight *= share if side else 1 - share
                position.append(np.minimum(index + side, len(axis) - 1))
            result += weight * self.values[tuple(position)]
            exact &= (weight == 0) | self.is_measured[tuple(position)]
        return result, exact & inside, inside


def fit_log_grid(points: tuple[Floats, ...], values: Floats) -> LogGrid:
    """Places ``values`` (logarithms, the last of repeated points wins) on the grid that the points span."""
    axes = tuple(np.unique(p) for p in points)
    grid = np.full(tuple(len(a) for a in axes), np.nan)
    grid[tuple(np.searchsorted(a, p) for a, p in zip(axes, points, strict=True))] = values
    return LogGrid(axes=axes, values=_fill_gaps(grid, axes), is_measured=~np.isnan(grid))


def grid_fill(points: tuple[Floats, ...]) -> float:
    """Share of the grid that points span on which there is a point."""
    num_cells = float(np.prod([len(np.unique(p)) for p in points]))
    return len(np.unique(np.stack(points), axis=1).T) / num_cells


def _fill_gaps(grid: Floats, axes: tuple[Floats, ...]) -> Floats:
    """Fills missing points by the mean of linear interpolations along each axis, until none is left.

    Along an axis the nearest value is kept beyond the ends.
    """
    if np.isnan(grid).all():
        raise ValueError("no value to fill a grid from")
    while np.isnan(grid).any():
        total = np.zeros_like(grid)
        count = np.zeros(grid.shape)
        for dim, axis in enumerate(axes):
            lines = np.moveaxis(grid, dim, -1).reshape(-1, len(axis))
            filled = np.full_like(lines, np.nan)
            x = np.log(axis)
            for row in np.flatnonzero(np.isnan(lines).any(axis=1) & ~np.isnan(lines).all(axis=1)):
                known = ~np.isnan(lines[row])
                filled[row] = np.interp(x, x[known], lines[row][known])
            along = np.moveaxis(filled.reshape(np.moveaxis(grid, dim, -1).shape), -1, dim)
            found = ~np.isnan(along)
            total[found] += along[found]
            count[found] += 1
        missing = np.isnan(grid) & (count > 0)
        grid = grid.copy()
        grid[missing] = total[missing] / count[missing]
    return grid
