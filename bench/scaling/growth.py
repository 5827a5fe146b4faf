"""Says how fast figures grow, and whether that is faster than it should be.

Owns the rule and its margins. Knows nothing of what is measured. Called by `run`.
"""

import math
from dataclasses import dataclass

STEEPER = 1.5  # so much steeper than before counts
SHARE = 0.10  # and only if it makes up this part of the last value


@dataclass
class Growth:
    """What became of one figure from the first number of ranks to the last."""

    per_peer: float  # by least squares
    early: float  # slope over the first half of the ranks
    late: float  # slope over the rest
    excess: float  # what the last value has above the early line

    def is_superlinear(self):
        return self.excess > 0


def linear(points, noise=0.0):
    """Judges figures that may grow by the same for each rank more; `points`: (ranks, value).

    Superlinear: from the middle on they grow by over STEEPER times as much for a rank, and the last
    value is by over SHARE of it, and by over `noise`, above the line through the first half.
    """
    points = sorted(points)
    if len(points) < 3:
        raise ValueError("growth takes three points")
    middle = (len(points) + 1) // 2  # of 2, 4, 8, 16: 8
    (x0, y0), (x1, y1), (x2, y2) = points[0], points[middle], points[-1]
    if middle == len(points) - 1:
        (x1, y1) = points[middle - 1]
    early, late = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    excess = y2 - (y0 + max(early, 0.0) * (x2 - x0))
    is_steeper = late > STEEPER * max(early, 0.0) and excess > max(SHARE * abs(y2), noise)
    return Growth(slope(points), early, late, excess if is_steeper else 0.0)


def slope(points):
    """Least squares."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    square = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / square


def exponents(points):
    """(x, k) for each step: between it and the one before, the figure grew like x to the k."""
    points = sorted(points)
    return [
        (x1, math.log(y1 / y0) / math.log(x1 / x0))
        for (x0, y0), (x1, y1) in zip(points, points[1:])
    ]
