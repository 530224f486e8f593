"""Small models of every kind that a valid ONNX file may hold, by name: what `optimize` must pass through, and what it must get right.

`CASES` holds them all; the modules beside this one build them, one a kind.
"""

from __future__ import annotations

from . import control, convs, headers, names, quantized, tensor_types
from .case import CASES, Case

__all__ = ["CASES", "Case", "control", "convs", "headers", "names", "quantized", "tensor_types"]
