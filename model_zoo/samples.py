"""Tensors with samples of the values they will take, which layers carry along while a network is built.

Random networks with arbitrary batch-norm statistics answer nearly the same whatever the input: means pile up behind rectifiers until the constant
part of an activation drowns the part that the input makes. The zoo therefore sets running statistics (and the biases of networks without batch
norm) to the moments expected for standard normal inputs, from a few hundred samples for each channel. Weights are independent with zero mean, so
what leaves a convolution is near normal, and its variance is the weighted sum of the variances that enter, whatever correlations they have.
Activations, sums and gates act on the samples; a pool takes as many independent ones as the window is worth.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .builder import Array

_COUNT = 256
_QUANTILES = np.array([statistics.NormalDist().inv_cdf((i + 0.5) / _COUNT) for i in range(_COUNT)])
_QUANTILES /= _QUANTILES.std()
_ROWS = 256


@dataclass(frozen=True)
class Value:
    """A tensor of the graph and, for each of its channels, values that its elements take: float64 ``[channels, samples]``."""

    name: str
    samples: Array

    @property
    def channels(self) -> int:
        """Size of the channel axis."""
        return len(self.samples)

    @cached_property
    def mean(self) -> Array:
        """Mean of each channel."""
        return np.asarray(self.samples.mean(axis=1))

    @cached_property
    def var(self) -> Array:
        """Variance of each channel."""
        return np.asarray(self.samples.var(axis=1))


def normal(rng: np.random.Generator, mean: Array, var: Array) -> Array:
    """Samples of independent normal channels; mean and variance are met exactly."""
    order = rng.permuted(np.broadcast_to(_QUANTILES, (len(mean), _COUNT)), axis=1)
    return order * np.sqrt(var)[:, None] + mean[:, None]


def neighbours(rng: np.random.Generator, samples: Array, count: int) -> list[Array]:
    """``count`` independent sets of samples with the distribution of ``samples``, that one included."""
    return [samples, *(samples[:, rng.permutation(samples.shape[1])] for _ in range(count - 1))]


def _gelu(x: Array) -> Array:
    """The tanh form, which is near enough to the erf form for samples."""
    return np.asarray(x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2)


ACTIVATIONS: dict[str, Callable[[Array], Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu,
}


def weighted(weight: Array, mean: Array, var: Array) -> tuple[Array, Array]:
    """Mean and variance of ``weight @ x``; weight float32 ``[out, in]``, taken in slices so that no float64 copy of a big one is made."""
    firsts, seconds = [], []
    for start in range(0, len(weight), _ROWS):
        rows = weight[start : start + _ROWS].astype(np.float64)
        firsts.append(rows @ mean)
        seconds.append(np.square(rows, out=rows) @ var)
    return np.concatenate(firsts), np.concatenate(seconds)


def rounded(x: Array) -> Array:
    """``x`` to 11 significant bits: exact in fp16, and free of last-bit differences between the summation orders of numpy builds."""
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.round(mantissa * 2048) / 2048, exponent))
