"""Regions by themselves: the nodes that a region replaced against its custom node, on small random inputs.

A whole network amplifies rounding, so that a wrong epilogue can hide in it and a right kernel can look wrong; a region by itself cannot.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import sympy
from onnx import TensorProto

from ..emit.nodes import EmittedNode
from ..graph.shapes import Shapes
from ..graph.view import Variable
from ..result import Check
from .compare import compare
from .inputs import random_array
from .observe import PROBABILITY_OPS, PROBABILITY_SCALE
from .session import cpu_session, gpu_available, gpu_session
from .upcast import upcast, upcast_inputs
from .verify import FLOAT_BOUND, KERNEL_FACTOR, KERNEL_FLOOR, first_line

MAX_BATCH = 2
UNKNOWN_DIM = 24


def check_region(emitted: EmittedNode, shapes: Shapes, seed: int = 0) -> list[Check]:
    """Compares one custom node with the nodes that it replaced; nothing where no consistent shapes of its inputs are known."""
    region = emitted.lowered.region
    rng = np.random.default_rng(seed)
    inputs = {}
    for port in emitted.lowered.inputs:
        unknown = (1, port.channels, *[UNKNOWN_DIM] * (region.rank - 2)) if region.axis == 1 else (*[UNKNOWN_DIM] * (region.rank - 1), port.channels)
        shape = _concrete(port.tensor, shapes) or unknown
        inputs[port.tensor.name] = random_array(rng, region.dtype, shape)
    half = region.dtype == TensorProto.FLOAT16
    scale = PROBABILITY_SCALE if emitted.models.last_op in PROBABILITY_OPS else 0.0
    try:
        reference = emitted.models.reference()
        truth_model = upcast(reference) if half else reference
        truth = cpu_session(truth_model, optimize=False).run(None, upcast_inputs(inputs) if half else inputs)[0]
    except Exception:
        return []
    standalone = emitted.standalone()
    bound = KERNEL_FLOOR if half else FLOAT_BOUND
    checks = [_check(region.label, "body, CPU", scale, truth, lambda: cpu_session(standalone).run(None, inputs)[0], bound)]
    if gpu_available():
        vendor = compare("", truth, gpu_session(reference, kernels=False).run(None, inputs)[0], same_dtype=False, scale=scale)
        bound = max(KERNEL_FLOOR, KERNEL_FACTOR * vendor.relative)
        checks.append(_check(region.label, "kernel, GPU", scale, truth, lambda: gpu_session(standalone, kernels=True).run(None, inputs)[0], bound))
    return checks


def _check(label: str, what: str, scale: float, truth: np.ndarray, run: Callable[[], np.ndarray], bound: float) -> Check:
    try:
        error = compare(what, truth, run(), same_dtype=False, scale=scale)
    except Exception as cause:  # NOTE: ONNX Runtime's errors share no base class.
        return Check(f"{label}: {what}", 1.0, 0.0, bound, f"it does not run ({first_line(cause)})", region=label)
    return Check(f"{label}: {what}", error.relative, error.max_abs, bound, error.problem, region=label)


def _concrete(tensor: Variable, shapes: Shapes) -> tuple[int, ...] | None:
    shape = shapes.shape(tensor)
    if shape is None:
        return None
    sizes = []
    for axis, dim in enumerate(shape):
        if isinstance(dim, sympy.Expr):
            value = dim.subs(dict.fromkeys(dim.free_symbols, UNKNOWN_DIM))
            if not value.is_Integer or value <= 0:
                return None
            dim = int(value)
        sizes.append(min(int(dim), MAX_BATCH) if axis == 0 else int(dim))
    return tuple(sizes)
