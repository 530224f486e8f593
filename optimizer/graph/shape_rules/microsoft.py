"""Shape rules of ONNX Runtime's own ops whose output has the shape of an input; the others stay unknown."""

from __future__ import annotations

from onnx import TensorProto

from ..view import MICROSOFT
from .matmul import product_of
from .registry import Call, Fact, rule


@rule("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "SimplifiedLayerNormalization", "QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def same(call: Call) -> list[Fact]:
    """Shape and dtype of input 0."""
    return [Fact(call.shape(0), dtype=call.dtype(0))]


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(call: Call) -> list[Fact]:
    """The data; mean and inverse deviation are not followed; the sum has the shape of the data."""
    fact = Fact(call.shape(0), dtype=call.dtype(0))
    return [fact, Fact(), Fact(), fact]


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(call: Call) -> list[Fact]:
    """``[batch, queries, heads * size]``, the last of the values where they are given like that; keys and values of the past are not followed."""
    query = call.need(0)
    value = call.shape(2) if call.has(2) else None
    known = len(query) == 3 and value is not None and len(value) == 3
    return [Fact((*query[:2], value[2]) if known and value is not None else None, dtype=call.dtype(0))]


@rule("BiasAdd", "QLinearAdd", "QLinearMul", domain=MICROSOFT)
def broadcast(call: Call) -> list[Fact]:
    """Both operands broadcast; the second one of the quantized ops is input 3."""
    other = 1 if call.node.op == "BiasAdd" else 3
    return [Fact(call.broadcast(call.shape(0), call.shape(other)), dtype=call.dtype(0))]


@rule("FusedMatMul", domain=MICROSOFT)
def fused_matmul(call: Call) -> list[Fact]:
    """MatMul where no operand is transposed."""
    if any(call.attr(a, 0) for a in ("transA", "transB", "transBatchA", "transBatchB")):
        return [Fact(dtype=call.dtype(0))]
    return [Fact(product_of(call, 0, 1)[0].shape, dtype=call.dtype(0))]


@rule("DynamicQuantizeMatMul", "MatMulIntegerToFloat", domain=MICROSOFT)
def quantized_matmul(call: Call) -> list[Fact]:
    """A matrix product in float32."""
    return [Fact(product_of(call, 0, 1)[0].shape, dtype=TensorProto.FLOAT)]


@rule("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(call: Call) -> list[Fact]:
    """Same shape; dtype of the scale."""
    return [Fact(call.shape(0), dtype=call.dtype(1))]


@rule("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(call: Call) -> list[Fact]:
    """Same shape; dtype of the zero point."""
    return [Fact(call.shape(0), dtype=call.dtype(2) if call.has(2) else TensorProto.UINT8)]


@rule("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(call: Call) -> list[Fact]:
    """``[N, C, ...] -> [N, C, 1, ...]``."""
    image = call.need(0)
    last = bool(call.attr("channels_last", 0))
    ones = [1] * (len(image) - 2)
    return [Fact((image[0], *ones, image[-1]) if last else (*image[:2], *ones), dtype=call.dtype(0))]
