"""One figure for how far two results lie apart: the relative Frobenius error, with what it cannot say beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_ARITHMETIC = {np.dtype(np.float16), np.dtype(np.float32)}


@dataclass(frozen=True)
class OutputError:
    """How one output differs from its reference.

    Attributes:
        name: Output name.
        relative: ||value - reference|| / ||reference|| (see ``scale`` of :func:`compare`) over the finite elements, float64; for integers
            and strings the share that differs.
        max_abs: Largest absolute difference.
        problem: What no figure says (dtype, shape, NaN where there was none), or ''.
    """

    name: str
    relative: float
    max_abs: float
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}" if self.problem else f"{self.name}: relative {self.relative:.2e}, max {self.max_abs:.2e}"


def compare(name: str, reference: Any, value: Any, same_dtype: bool = True, scale: float = 0.0) -> OutputError:
    """How ``value`` differs from ``reference``: arrays, or lists of arrays for sequences, or None for an empty optional.

    ``scale`` is the root mean square below which a reference is not taken for the measure: probabilities that are all 1e-5 agree if they agree
    to 1e-5, since the sigmoid and softmax of ONNX Runtime's CPU provider are accurate on the scale of 1 and no finer. Without ``same_dtype``,
    float16 and float32 may stand for each other.
    """
    if isinstance(reference, list) or isinstance(value, list):
        return _compare_lists(name, reference, value, same_dtype, scale)
    if reference is None or value is None:
        return OutputError(name, 0.0, 0.0, "" if reference is value else "one of the two has no value")
    if not isinstance(reference, np.ndarray):
        return OutputError(name, float(reference != value), 0.0, "" if reference == value else "values differ")
    if reference.dtype != value.dtype and (same_dtype or not {reference.dtype, value.dtype} <= _ARITHMETIC):
        return OutputError(name, 1.0, 0.0, f"dtype {value.dtype}, expected {reference.dtype}")
    if reference.shape != value.shape:
        return OutputError(name, 1.0, 0.0, f"shape {value.shape}, expected {reference.shape}")
    if reference.dtype.kind not in "fcV":
        wrong = float(np.mean(reference != value)) if reference.size else 0.0
        return OutputError(name, wrong, wrong, f"{wrong:.2%} of its values differ" if wrong else "")
    wide = np.complex128 if reference.dtype.kind == "c" else np.float64
    a, b = reference.astype(wide), value.astype(wide)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return OutputError(name, 1.0, float("inf"), f"{int((np.isnan(a) != np.isnan(b)).sum())} elements are NaN on one side only")
    infinite = np.isinf(a) | np.isinf(b)
    if (a[infinite] != b[infinite]).any():
        return OutputError(name, 1.0, float("inf"), f"{int((a[infinite] != b[infinite]).sum())} elements are infinite on one side only")
    finite = np.isfinite(a)
    a, b = a[finite], b[finite]
    difference, norm = float(np.linalg.norm(a - b)), max(float(np.linalg.norm(a)), scale * a.size**0.5)
    relative = difference / norm if norm else (0.0 if difference == 0 else difference)
    return OutputError(name, relative, float(np.abs(a - b).max(initial=0.0)))


def _compare_lists(name: str, reference: Any, value: Any, same_dtype: bool, scale: float) -> OutputError:
    if not isinstance(reference, list) or not isinstance(value, list) or len(reference) != len(value):
        return OutputError(name, 1.0, 0.0, "sequences of different length")
    return worst([compare(f"{name}[{i}]", a, b, same_dtype, scale) for i, (a, b) in enumerate(zip(reference, value, strict=True))], name)


def worst(errors: Sequence[OutputError], name: str = "") -> OutputError:
    """The largest of ``errors``; one with a problem before all others."""
    return max(errors, key=lambda e: (bool(e.problem), e.relative), default=OutputError(name, 0.0, 0.0))
