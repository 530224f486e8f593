"""Where a stage begins: convolutions, poolings and pointwise nodes, read into :class:`Stage` or refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from ...graph.shapes import Shapes
from ...graph.view import Constant, Node, Tensor, Variable, constant_value, is_constant, producer
from ...records import Refusal
from .region import Stage, Window

RULE = "conv regions"
COMPUTE: dict[int, str] = {TensorProto.FLOAT16: "f16", TensorProto.FLOAT: "tf32"}
_POOLS = {"MaxPool": "max_pool", "AveragePool": "average_pool"}
_GLOBAL_POOLS = {"GlobalAveragePool": "global_average_pool", "GlobalMaxPool": "global_max_pool"}


class Refused(Exception):
    """Raised deep inside for a node that looks like an anchor and cannot be one; caught where the reading begins."""


def anchor_stage(node: Node, shapes: Shapes, precision: str) -> Stage | Refusal | None:
    """The stage that begins at ``node``, None where its op begins none, a refusal where something about it is out of reach."""
    if not node.standard("Conv", "ReduceMean", *_POOLS, *_GLOBAL_POOLS):
        return None
    try:
        if node.op == "Conv":
            return _conv(node, shapes, precision)
        if node.op in _POOLS:
            return _pool(node, shapes)
        return _global_pool(node, shapes)
    except Refused as reason:
        return Refusal(RULE, str(reason), (node.label,))


def _variable(tensor: Tensor) -> Variable:
    if not isinstance(tensor, Variable) or is_constant(tensor):
        raise Refused("its input is a constant")
    return tensor


def element_type(tensor: Tensor, shapes: Shapes) -> int:
    """The element type of ``tensor``, one that kernels exist for.

    Raises:
        Refused: it is another one, or not known.
    """
    dtype = shapes.dtype(tensor)
    if dtype not in COMPUTE:
        name = TensorProto.DataType.Name(dtype) if dtype else "unknown"
        raise Refused(f"element type {name.lower()}; kernels exist for float16 and float")
    return int(dtype)


def _channels(tensor: Tensor, shapes: Shapes) -> int:
    shape = shapes.shape(tensor)
    if shape is None:
        raise Refused("the shape of its input is not known")
    if len(shape) not in (3, 4):
        raise Refused(f"its input has rank {len(shape)}; 1-D and 2-D are supported")
    if not isinstance(shape[1], int):
        raise Refused("the number of its channels is not known")
    if any(d == 0 for d in shape if isinstance(d, int)):
        raise Refused("its input has no elements")
    return shape[1]


def _two(values: Sequence[int] | None, rank: int, default: int) -> tuple[int, int]:
    """Spatial attribute of 1-D or 2-D ops as (height, width)."""
    values = [default] * (rank - 2) if not values else list(values)
    if len(values) != rank - 2:
        raise Refused(f"an attribute has {len(values)} values for {rank - 2} spatial dims")
    return (default, values[0]) if rank == 3 else (values[0], values[1])


def _window(node: Node, rank: int, kernel: tuple[int, int]) -> Window:
    strides = _two(node.attrs.get("strides"), rank, 1)
    dilations = _two(node.attrs.get("dilations"), rank, 1)
    ceil_mode, include = bool(node.attrs.get("ceil_mode", 0)), bool(node.attrs.get("count_include_pad", 0))
    auto_pad = node.attrs.get("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        if ceil_mode:
            raise Refused("ceil_mode with auto_pad")
        if strides != (1, 1):
            return Window(kernel, strides, (0, 0, 0, 0), dilations, auto_pad.lower(), ceil_mode, include)
        total = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        begin, end = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        pads = (begin[0], begin[1], end[0], end[1])
    elif auto_pad == "VALID":
        pads = (0, 0, 0, 0)
    else:
        given = list(node.attrs.get("pads") or [0] * 2 * (rank - 2))
        if len(given) != 2 * (rank - 2):
            raise Refused(f"pads has {len(given)} values")
        pads = (0, given[0], 0, given[1]) if rank == 3 else (given[0], given[1], given[2], given[3])
    if min(pads) < 0:
        raise Refused("negative pads")
    return Window(kernel, strides, pads, dilations, "", ceil_mode, include)


def _conv(node: Node, shapes: Shapes, precision: str) -> Stage:
    source = _variable(node.inputs[0])
    weights = constant_tensor(node.inputs[1])
    if weights is None:
        raise Refused("its weights are not constant")
    rank = len(weights.shape)
    if rank not in (3, 4):
        raise Refused(f"{rank - 2}-D convolution; 1-D and 2-D are supported")
    dtype = element_type(weights, shapes)
    if shapes.dtype(source) not in (None, dtype):
        raise Refused("its input and weights differ in element type")
    if dtype == TensorProto.FLOAT and precision == "fp32":
        raise Refused("precision fp32: no convolution kernel without TF32 yet")
    shape = shapes.shape(source)
    if shape is not None and len(shape) != rank:
        raise Refused(f"its input has rank {len(shape)}, its weights rank {rank}")
    if 0 in weights.shape:
        raise Refused("its weights have no elements")
    if shape is not None:
        _channels(source, shapes)
    groups = int(node.attrs.get("group", 1))
    kernel = _two(list(weights.shape[2:]), rank, 1)
    channels_out, channels_in = int(weights.shape[0]), int(weights.shape[1]) * groups
    if channels_out % groups:
        raise Refused(f"{channels_out} output channels in {groups} groups")
    bias = None
    if len(node.inputs) > 2 and node.inputs[2].name:
        bias = constant_value(node.inputs[2])
        if bias is None:
            raise Refused("its bias is not constant")
        bias = np.asarray(bias, dtype=np.float32).reshape(-1)
    return Stage("conv", source, node.outputs[0], channels_in, channels_out, (node,), _window(node, rank, kernel), groups, weights, bias)


def constant_tensor(tensor: Tensor) -> Constant | None:
    """The constant that holds the values of ``tensor``: itself, or the value of the Constant node that makes it."""
    if isinstance(tensor, Constant):
        return tensor
    node = producer(tensor)
    value = node.attrs.get("value") if node is not None and node.standard("Constant") else None
    return value if isinstance(value, Constant) else None


def _pool(node: Node, shapes: Shapes) -> Stage:
    source = _variable(node.inputs[0])
    element_type(source, shapes)
    channels = _channels(source, shapes)
    rank = shapes.rank(source) or 0
    if len(node.outputs) > 1 and node.outputs[1].name:
        raise Refused("its indices are used")
    kernel = _two(node.attrs.get("kernel_shape"), rank, 1)
    window = _window(node, rank, kernel)
    if window.dilations != (1, 1) and node.op == "AveragePool":
        raise Refused("average pooling with dilation")
    if window.dilations != (1, 1) and node.attrs.get("auto_pad", "").startswith("SAME"):
        raise Refused("auto_pad with dilation")  # ONNX Runtime pads a pooling as if it had none
    return Stage(_POOLS[node.op], source, node.outputs[0], channels, channels, (node,), window)


def _global_pool(node: Node, shapes: Shapes) -> Stage | None:
    source = node.inputs[0]
    kind = _GLOBAL_POOLS.get(node.op, "global_average_pool")
    if node.op == "ReduceMean":
        shape = shapes.shape(source)
        axes = node.attrs.get("axes")
        if axes is None and len(node.inputs) > 1:
            known = constant_value(node.inputs[1])
            axes = None if known is None else [int(a) for a in known.reshape(-1)]
        if shape is None or len(shape) not in (3, 4) or axes is None or not node.attrs.get("keepdims", 1):
            return None
        if sorted(a % len(shape) for a in axes) != list(range(2, len(shape))):
            return None
    source = _variable(source)
    element_type(source, shapes)
    channels = _channels(source, shapes)
    return Stage(kind, source, node.outputs[0], channels, channels, (node,))
