"""What float16 means for each op: which ones ONNX Runtime's CUDA provider runs in it, and which keep the range."""

from __future__ import annotations

from functools import cache

from .shape_rules.signatures import schema
from .view import MICROSOFT

# Where the time goes: conversion starts from these, and what lies between or around them follows.
HEAVY = frozenset({("", "Conv"), ("", "ConvTranspose"), ("", "Gemm"), ("", "MatMul"), ("", "Einsum"), (MICROSOFT, "FusedMatMul")})

# NOTE: left out because a result may leave the range where the operands do not: Exp, Pow, ReduceSum, ReduceL1, ReduceL2, ReduceSumSquare, ReduceProd,
# ReduceLogSumExp, CumSum; because small errors of the operand matter: Sin, Cos, Mod; because there is no kernel: LpPool, GridSample, RoiAlign, Mean.
_STANDARD = """
    Add Sub Mul Div Max Min Sum Neg Abs Sqrt Reciprocal Floor Ceil Round Erf Log Where Identity Cast
    Relu LeakyRelu PRelu Elu Selu Celu ThresholdedRelu Sigmoid Tanh HardSigmoid HardSwish Softplus Softsign Clip Gelu Mish Swish
    MaxPool AveragePool GlobalMaxPool GlobalAveragePool Resize Upsample
    Softmax LogSoftmax LayerNormalization InstanceNormalization BatchNormalization GroupNormalization RMSNormalization LRN
    ReduceMean ReduceMax ReduceMin Equal Less Greater LessOrEqual GreaterOrEqual
    Concat Split Slice Transpose Reshape Squeeze Unsqueeze Flatten Expand Tile Gather GatherElements GatherND ScatterElements ScatterND Pad
    DepthToSpace SpaceToDepth Dropout Trilu ReverseSequence Compress ConstantOfShape
"""
LIGHT = frozenset(("", op) for op in _STANDARD.split()) | {
    (MICROSOFT, op) for op in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "SkipLayerNormalization", "MultiHeadAttention")
}

# Read a tensor of any float type and make no float tensor of it: they take what is there.
READERS = frozenset({"Shape", "Size", "Cast", "ArgMax", "ArgMin", "IsNaN"})

# Their result stays in range whatever the operands are.
BOUNDED = frozenset({
    "Softmax", "Sigmoid", "Tanh", "HardSigmoid", "Softsign", "Erf", "LayerNormalization", "InstanceNormalization", "BatchNormalization",
    "GroupNormalization", "RMSNormalization", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
})  # fmt: skip

# First opset whose kernel of the CUDA provider takes float16, where that is not the op's first.
_SINCE = {"Clip": 12, "Max": 12, "Min": 12}

# Inputs that carry data, where others are scales, regions or ratios that stay float32.
_DATA_INPUTS = {"Resize": (0,), "Upsample": (0,), "Dropout": (0,)}


def data_input(op: str, index: int) -> bool:
    """Whether input ``index`` of ``op`` changes its type with the op."""
    return op not in _DATA_INPUTS or index in _DATA_INPUTS[op]


def data_output(op: str, index: int) -> bool:
    """Whether output ``index`` of ``op`` changes its type with the op; the statistics of a normalization do not."""
    return index == 0 or op not in ("LayerNormalization", "SkipLayerNormalization")


@cache
def runs_in_half(domain: str, op: str, opset: int) -> bool:
    """Whether the CUDA provider has a float16 kernel for ``op`` as of ``opset``, and the op's schema allows the type."""
    if (domain, op) not in HEAVY and (domain, op) not in LIGHT:
        return False
    if domain:
        return True
    return opset >= _SINCE.get(op, 0) and takes_half(op, opset)


@cache
def takes_half(op: str, opset: int) -> bool:
    """Whether the schema of the standard ``op`` allows float16 for its data."""
    found = schema("", op, opset)
    if found is None:
        return False
    parameter = found.outputs[0] if op in ("Where", "ConstantOfShape", "Cast") else found.inputs[0]
    return any("tensor(float16)" in c.allowed_type_strs for c in found.type_constraints if c.type_param_str == parameter.type_str)
