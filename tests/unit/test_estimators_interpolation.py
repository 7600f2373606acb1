import numpy as np

from maya.estimators.interpolation import fit_log_grid


def grid_of(function: object, *axes: list[float]) -> object:
    points = [np.array(p, float) for p in np.meshgrid(*axes, indexing="ij")]
    flat = tuple(p.ravel() for p in points)
    return fit_log_grid(flat, function(*flat))


def test_a_power_law_is_reproduced_between_points() -> None:
    grid = grid_of(lambda x, y: np.log(3 * x**2 / y), [1, 4, 16], [2, 32])
    value, exact, inside = grid(np.array([2.0, 4.0, 7.0]), np.array([5.0, 32.0, 3.0]))
    np.testing.assert_allclose(np.exp(value), [3 * 4 / 5, 3 * 16 / 32, 3 * 49 / 3])
    assert exact.tolist() == [False, True, False]
    assert inside.all()


def test_points_beyond_an_axis_are_clamped_and_said_to_be() -> None:
    grid = grid_of(np.log, [1, 4, 16])
    value, exact, inside = grid(np.array([0.5, 64.0]))
    np.testing.assert_allclose(np.exp(value), [1, 16])
    assert not exact.any()
    assert not inside.any()


def test_gaps_are_filled_along_the_axes_and_are_not_measured() -> None:
    # f = x y without the point (4, 4): both lines through it give 16.
    x, y = (a.ravel() for a in np.meshgrid([1.0, 4.0, 16.0], [1.0, 4.0, 16.0], indexing="ij"))
    keep = (x != 4) | (y != 4)
    grid = fit_log_grid((x[keep], y[keep]), np.log(x * y)[keep])
    value, exact, inside = grid(np.array([4.0]), np.array([4.0]))
    np.testing.assert_allclose(np.exp(value), 16)
    assert not exact[0]
    assert inside[0]
