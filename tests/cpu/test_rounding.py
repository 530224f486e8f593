"""TF32 weights whose rounding errors cancel."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.optimizer.lower.rounding import REACH, balance


def round_tf32(values: np.ndarray) -> np.ndarray:
    """float32 ``values`` to the nearest TF32 value, halves away from zero, as ``cvt.rna.tf32.f32`` does."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def errors(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Sum of what rounding ``rows`` adds to ``weights``, by row."""
    return np.abs((round_tf32(rows).astype(np.float64) - weights).sum(axis=1))


@pytest.mark.parametrize("value", [1.0, -1.0, 3.0e-5, 1.0 + 2.0**-11, -(1.0 + 2.0**-11), 1.0 + 2.0**-12, 2.0 - 2.0**-20])
def test_nearest_value_halves_away_from_zero(value: float) -> None:
    ulp = 2.0 ** (np.floor(np.log2(abs(value))) - 10)
    expected = np.sign(value) * np.floor(abs(value) / ulp + 0.5) * ulp
    assert round_tf32(np.array([value], np.float32))[0] == np.float32(expected)


@pytest.mark.parametrize("depth", [128, 576, 4608])
def test_errors_of_a_row_cancel_and_its_float32_sum_stays(depth: int) -> None:
    weights = np.random.default_rng(depth).standard_normal((64, depth)).astype(np.float32)
    rows = balance(weights)
    before, after = errors(weights, weights), errors(weights, rows)
    assert (after <= before + 1e-6).all()
    assert after.mean() < before.mean() / {128: 3, 576: 10}.get(depth, 30)
    moved = rows != weights
    assert moved.any(axis=1).mean() > 0.8 and moved.mean() < 0.3
    assert (np.abs(rows - weights) <= REACH * 2.0**-23 * np.maximum(np.abs(weights), 0.1)).all(), "all stay next to where they were"
    assert np.abs((rows.astype(np.float64) - weights).sum(axis=1)).max() < 1e-6 * np.abs(weights).sum(axis=1).mean()


def test_products_of_positive_inputs_are_nearer() -> None:
    rng = np.random.default_rng(3)
    x, weights = np.maximum(rng.standard_normal((256, 1152)), 0.0), rng.standard_normal((64, 1152)).astype(np.float32)
    exact = x @ weights.astype(np.float64).T
    plain, balanced, float32 = (
        np.linalg.norm(x @ w.astype(np.float64).T - exact) for w in (round_tf32(weights), round_tf32(balance(weights)), balance(weights))
    )
    assert balanced < 0.9 * plain and float32 < 0.05 * plain


def test_what_is_left_alone() -> None:
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((5, 150)).astype(np.float32)
    weights[0] = 0.0
    weights[1, ::2] = 0.0
    weights[2, 7] = np.inf
    weights[3, 7] = np.nan
    weights[4] = 1e-41  # below the normal range
    rows = balance(weights)
    assert np.array_equal(rows[[0, 2, 3, 4]], weights[[0, 2, 3, 4]], equal_nan=True)
    assert not rows[1, ::2].any()
    assert np.array_equal(weights[1] == 0.0, rows[1] == 0.0)
    assert np.array_equal(balance(weights[:, :127]), weights[:, :127], equal_nan=True)
    exact = round_tf32(weights[1:2])
    assert np.array_equal(balance(exact), exact)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (3000, 700)])
def test_shapes(shape: tuple[int, int]) -> None:
    weights = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    rows = balance(weights)
    assert rows.shape == shape and rows.dtype == np.float32
    assert np.array_equal(rows, balance(weights))
