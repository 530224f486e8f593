"""TF32 weights whose rounding errors cancel: a few of them are moved across the nearest rounding boundary, by less than rounding itself does.

The tensor core rounds every weight to 11 bits. Inputs that come from a ReLU have a positive mean, so the sum of a row's rounding errors is multiplied
by that mean and does not average out: on ResNet-18 the weights' share of the error is twice the activations'. Which way a weight is rounded is
free where it lies next to the boundary, so for every row (one output channel) as many of those are moved across as bring the sum of the row's errors
next to zero; weights in the middle of their intervals take the opposite of what was moved, so that the float32 result stays as it was.
"""

from __future__ import annotations

import numpy as np

_INTERVAL = 0x2000  # float32 values between two TF32 values; the low half of them is rounded down, the high half up
_BOUNDARY = 0x1000
REACH = _INTERVAL // 32  # how far from the boundary a weight may be moved, in units of its own last float32 bit
SHARES = 32  # weights that take the opposite of what was moved
MIN_DEPTH = 128  # shorter rows have too few weights next to a boundary
_BLOCK = 1 << 20  # elements that are worked on at a time


def balance(rows: np.ndarray) -> np.ndarray:
    """float32 weights [rows, depth] next to ``rows`` whose TF32 rounding errors nearly cancel in every row.

    Zeros stay, and so do rows with numbers that are not finite or fewer than ``MIN_DEPTH``. A weight is moved by 2**-15 of itself at most.
    """
    result = np.array(rows, np.float32, order="C")
    if result.shape[1] < MIN_DEPTH:
        return result
    step = max(1, _BLOCK // max(1, result.shape[1]))
    for first in range(0, result.shape[0], step):
        _balance(result[first : first + step])
    return result


def _balance(rows: np.ndarray) -> None:
    bits = rows.view(np.uint32)
    low = (bits & np.uint32(_INTERVAL - 1)).astype(np.int32)
    up = low >= _BOUNDARY
    exponent = (bits >> np.uint32(23) & np.uint32(0xFF)).astype(np.int32)
    usable = (exponent > 0) & (exponent < 0xFF).all(axis=1, keepdims=True)
    unit = np.copysign(np.ldexp(1.0, exponent - 150), rows)  # one last bit of the weight, with its sign
    errors = np.where(usable, np.where(up, _INTERVAL - low, -low) * unit, 0.0)
    totals = errors.sum(axis=1)
    distance = np.where(up, low - (_BOUNDARY - 1), _BOUNDARY - low)
    change = np.where(up, -_INTERVAL, _INTERVAL) * unit  # of the row's error, where the weight goes to the other side
    helps = usable & (distance <= REACH) & (change * totals[:, None] < 0)
    for row in np.flatnonzero(helps.any(axis=1)):
        candidates = np.flatnonzero(helps[row])
        candidates = candidates[np.argsort(distance[row, candidates], kind="stable")]
        moved, total = [], totals[row]
        for index, by in zip(candidates.tolist(), change[row, candidates].tolist(), strict=True):
            if abs(total + by) < abs(total):
                total += by
                moved.append(index)
        if not moved:
            continue
        shift = np.where(up[row, moved], -distance[row, moved], distance[row, moved])
        surplus = float((shift * unit[row, moved]).sum())
        bits[row, moved] = (bits[row, moved].astype(np.int64) + shift).astype(np.uint32)
        _give_back(rows[row], surplus, np.where(usable[row], (np.abs(low[row] - _BOUNDARY) - 1) * np.abs(unit[row]), 0.0), moved)


def _give_back(row: np.ndarray, surplus: float, room: np.ndarray, moved: list[int]) -> None:
    """Takes ``surplus`` from weights that are far from their boundaries, a little from each."""
    room[moved] = 0.0
    far = np.flatnonzero(room > room.mean())[:SHARES]
    each = surplus / max(1, len(far))
    if far.size and abs(each) < room[far].min():
        row[far] = (row[far].astype(np.float64) - each).astype(np.float32)
