"""Matrix products by constant weights, read into :class:`Stage` or refused with the reason; what follows them grows into their epilogue as for convolutions.

The rows are all axes but the last, in the model's own layout, so that nothing changes at the border of such a region.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ...graph.shapes import Shapes
from ...graph.view import Node, Variable, constant_value, is_constant
from ...records import Refusal
from ..regions.anchors import COMPUTE, Refused, constant_tensor, element_type
from ..regions.region import Stage

RULE = "matmul"


def matmul_stage(node: Node, shapes: Shapes, precision: str) -> Stage | Refusal | None:
    """The stage that begins at a MatMul or Gemm, None for any other node, a refusal where something about it is out of reach."""
    if not node.standard("MatMul", "Gemm"):
        return None
    try:
        return _stage(node, shapes, precision)
    except Refused as reason:
        return Refusal(RULE, str(reason), (node.label,))


def _stage(node: Node, shapes: Shapes, precision: str) -> Stage:
    source, weights = node.inputs[0], constant_tensor(node.inputs[1])
    if not isinstance(source, Variable) or is_constant(source):
        raise Refused("its first factor is a constant")
    if weights is None:
        raise Refused("its second factor is no constant; run-time factors have no kernel yet")
    if len(weights.shape) != 2:
        raise Refused(f"its weights have rank {len(weights.shape)}; matrices are supported")
    dtype = element_type(weights, shapes)
    if dtype == TensorProto.FLOAT and precision == "fp32":
        raise Refused("precision fp32: no kernel without TF32 yet")
    transposed = bool(node.attrs.get("transB", 0))
    depth, columns = (int(d) for d in (reversed(weights.shape) if transposed else weights.shape))
    if not depth or not columns:
        raise Refused("its weights have no elements")
    if depth % 2 and COMPUTE[dtype] == "f16":
        raise Refused(f"its depth {depth} is odd; the float16 kernel copies pairs")
    shape = shapes.shape(source)
    if shape is None:
        raise Refused("the shape of its input is not known")
    if len(shape) < 2:
        raise Refused("its input is a vector")
    return Stage("matmul", source, node.outputs[0], depth, columns, (node,), weights=weights, bias=_gemm_bias(node, columns))


def _gemm_bias(node: Node, columns: int) -> np.ndarray | None:
    """The addend of a Gemm, float32, one a column; its scalars must be 1, as canonicalization leaves them."""
    if node.op != "Gemm":
        return None
    if node.attrs.get("transA", 0):
        raise Refused("its first factor is transposed")
    if node.attrs.get("alpha", 1.0) != 1.0:
        raise Refused("it scales the product")
    if len(node.inputs) < 3 or not node.inputs[2].name:
        return None
    if node.attrs.get("beta", 1.0) != 1.0:
        raise Refused("it scales the addend")
    bias = constant_value(node.inputs[2])
    if bias is None or bias.size not in (1, columns) or (bias.ndim and bias.shape[-1] not in (1, columns)):
        raise Refused("its addend is not one constant a column")
    return np.broadcast_to(np.asarray(bias, dtype=np.float32).reshape(-1), (columns,)).copy()
