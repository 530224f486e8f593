"""Activations that a framework spelt as several ops become the one op, where the opset has it.

:mod:`..activations` says what is an activation; SiLU stays ``x * Sigmoid(x)``, which ONNX had no op for before opset 24.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ..activations import ActivationMatch, match_activation, near_match
from ..view import Node, Tensor
from .base import require, rule
from .context import Context, missing

_OPS = {
    "relu": ("Relu", 7),
    "clip": ("Clip", 7),
    "leaky_relu": ("LeakyRelu", 7),
    "hard_sigmoid": ("HardSigmoid", 7),
    "hard_swish": ("HardSwish", 14),
    "mish": ("Mish", 18),
    "gelu": ("Gelu", 20),
    "gelu_tanh": ("Gelu", 20),
}
"""Op of each kind and the first opset that has it (7 is the first that any rule sees)."""

_ANY_FLOAT = ("relu", "clip")


@rule("spell-activation", "Clip", "Div", "Max", "Min", "Mul", "Relu")
def spell_activation(ctx: Context, node: Node) -> list[str] | None:
    """Replaces the ops that compute an activation with ``Relu``, ``Clip``, ``LeakyRelu``, ``HardSigmoid``, ``HardSwish``, ``Mish`` or ``Gelu``."""
    match = match_activation(ctx.graph, node, ctx.members)
    if match is None:
        almost = near_match(ctx.graph, node, ctx.members)
        require(almost is None or not _wanted(ctx, node, almost), f"an intermediate result of {almost and almost.activation} is used elsewhere")
        return None
    if not _wanted(ctx, node, match):
        return None
    kind, dtype = match.activation.kind, ctx.dtype(match.x)
    require(all(ctx.builtin(n) for n in match.nodes), "an op of it is a local function of the model")
    require(
        dtype in (TensorProto.FLOAT, TensorProto.FLOAT16) or (dtype == TensorProto.DOUBLE and kind in _ANY_FLOAT), "its data type is unknown or has no such op"
    )
    require(match.rank == 0 or match.rank <= (ctx.rank(match.x) or 0), "a constant may add dims to the result")
    labels = [n.label for n in match.nodes]
    inputs, attrs = _arguments(ctx, match, dtype or 0)
    ctx.become(node, "spell-activation", _OPS[kind][0], inputs, attrs)
    return labels


def _wanted(ctx: Context, node: Node, match: ActivationMatch) -> bool:
    """Whether the opset has the op and it is another spelling than the present one; a bound on one side may stay Min or Max."""
    op, opset = _OPS.get(match.activation.kind, ("", math.inf))
    one_sided = match.activation.kind == "clip" and len(match.nodes) == 1
    return ctx.opset >= opset and (len(match.nodes) > 1 or node.op != op) and not one_sided


def _arguments(ctx: Context, match: ActivationMatch, dtype: int) -> tuple[list[Tensor], dict[str, Any]]:
    """Inputs and attributes of the op."""
    kind, a, b = match.activation.kind, match.activation.a, match.activation.b
    if kind == "leaky_relu":
        return [match.x], {"alpha": a}
    if kind == "hard_sigmoid":
        return [match.x], {"alpha": a, "beta": b}
    if kind == "gelu_tanh":
        return [match.x], {"approximate": "tanh"}
    if kind == "clip" and ctx.opset < 11:
        return [match.x], {k: v for k, v in (("min", a), ("max", b)) if math.isfinite(v)}
    if kind == "clip":
        numpy_type = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        bounds: list[Tensor] = [ctx.constant("clip_bound", np.array(v, numpy_type)) if math.isfinite(v) else missing() for v in (a, b)]
        return [match.x, *(bounds if math.isfinite(b) else bounds[:1])], {}
    return [match.x], {}


rules = (spell_activation,)
