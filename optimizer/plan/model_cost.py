"""Expected time of the nodes that no region takes, so that the speed-up of regions can be put in proportion to the whole model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from onnx import TensorProto

from ..graph.shapes import Shapes
from ..graph.view import MICROSOFT, Constant, Node, Tensor, View
from ..target import DeviceSpec
from .cost import ELEMENT_BYTES, GemmShape, streaming_us, vendor_attention_us, vendor_conv_us, vendor_matmul_us
from .sizes import Sizes

# Ops that ONNX Runtime runs without a kernel of their own: views, constants, host-side shape arithmetic.
FREE_OPS = (
    "Constant",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Identity",
    "Shape",
    "Size",
    "Range",
    "If",
    "Loop",
    "Scan",
    "DequantizeLinear",
    "QuantizeLinear",
)
MATMULS = ("MatMul", "Gemm")


def nodes_us(device: DeviceSpec, view: View, shapes: Shapes, sizes: Sizes, taken: Iterable[Node]) -> float:
    """Microseconds that the nodes of ``view`` outside ``taken`` are expected to need, by the same roofline as the regions."""
    skip = set(taken)
    return sum(_node_us(device, node, shapes, sizes) for node in view.nodes() if node not in skip and node.op not in FREE_OPS)


def _node_us(device: DeviceSpec, node: Node, shapes: Shapes, sizes: Sizes) -> float:
    elements = [math.prod(sizes.of(t, shapes.rank(t) or 1)) for t in (*node.inputs, *node.outputs) if t.name]
    compute = _compute(node.inputs, shapes)
    nbytes = float(ELEMENT_BYTES[compute] * sum(elements))
    if node.standard(*MATMULS) and len(node.inputs) >= 2:
        return vendor_matmul_us(device, compute, _matmul(node, shapes, sizes), nbytes)
    if node.standard("Conv", "ConvTranspose") and len(node.inputs) >= 2 and isinstance(node.inputs[1], Constant):
        return vendor_conv_us(device, compute, _conv(node, shapes, sizes), nbytes)
    if node.domain == MICROSOFT and node.op == "MultiHeadAttention" and len(node.inputs) >= 3:
        return vendor_attention_us(device, compute, _attention_flops(node, shapes, sizes), nbytes)
    return streaming_us(device, nbytes)


def merging_pays(device: DeviceSpec, shapes: Shapes, sizes: Sizes, source: Tensor, columns: Sequence[int], depth: int) -> bool:
    """Whether one product of ``source`` [..., depth] by all ``columns`` and a Split of its result are faster than a product for each."""
    compute, rows = _compute((source,), shapes), math.prod(_size(source, shapes, sizes)[:-1])
    width = float(ELEMENT_BYTES[compute])

    def product(n: int) -> float:
        return vendor_matmul_us(device, compute, GemmShape(rows, n, depth), width * (rows * n + rows * depth + n * depth))

    total = sum(columns)
    return product(total) + streaming_us(device, 2.0 * width * rows * total) < sum(map(product, columns))


def _compute(inputs: Sequence[Tensor], shapes: Shapes) -> str:
    return "f16" if any(shapes.dtype(t) == TensorProto.FLOAT16 for t in inputs) else "tf32"


def _attention_flops(node: Node, shapes: Shapes, sizes: Sizes) -> float:
    """Of both products, ``queries x keys x width`` multiply-adds each."""
    batch, queries, width = sizes.of(node.inputs[0], 3)
    keys = sizes.of(node.inputs[1], 3)[1]
    return 4.0 * batch * queries * keys * width


def _conv(node: Node, shapes: Shapes, sizes: Sizes) -> GemmShape:
    """A convolution over its output's pixels; a transposed one, the gradient of that, over its input's."""
    first, second, *window = node.inputs[1].shape
    groups = int(node.attrs.get("group", 1))
    tensor = node.outputs[0] if node.op == "Conv" else node.inputs[0]
    pixels = math.prod(sizes.of(tensor, shapes.rank(tensor) or 4)) // max(1, first)
    columns, depth = first // groups, second * math.prod(window)
    return GemmShape(pixels, columns, depth, groups) if node.op == "Conv" else GemmShape(pixels, depth, columns, groups)


def _matmul(node: Node, shapes: Shapes, sizes: Sizes) -> GemmShape:
    out = _size(node.outputs[0], shapes, sizes)
    left = _size(node.inputs[0], shapes, sizes)
    depth = left[-2] if node.attrs.get("transA") and len(left) > 1 else left[-1]
    rows = math.prod(out[:-1]) if len(out) > 1 else 1
    return GemmShape(rows, out[-1], depth)


def _size(tensor: Tensor, shapes: Shapes, sizes: Sizes) -> tuple[int, ...]:
    return sizes.of(tensor, shapes.rank(tensor) or 2)
