"""What regions leave of residual sums, layer norms and GELUs becomes the fused ops of ONNX Runtime."""

from __future__ import annotations

from onnx import TensorProto

from ..activations import match_activation
from ..rules.base import require, rule
from ..rules.context import Context, missing, optional
from ..view import MICROSOFT, Node, Tensor, consumers, is_constant, producer

_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
_GELUS = {"gelu": "Gelu", "gelu_tanh": "FastGelu"}


@rule("fuse-skip-layer-norm", "LayerNormalization")
def fuse_skip_layer_norm(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``LayerNormalization(a + b)`` with ``SkipLayerNormalization``, a constant vector that one of them adds taken in."""
    add = producer(node.inputs[0])
    if add is None or not add.standard("Add") or not ctx.has(add) or not ctx.builtin(add) or any(is_constant(t) for t in add.inputs):
        return None
    total, width = add.outputs[0], (ctx.shape(node.inputs[0]) or (None,))[-1]
    dtype, scale, bias = ctx.dtype(total), node.inputs[1], optional(node, 2)
    require(not any(t.name for t in node.outputs[1:]), "its mean or deviation is read")
    require(ctx.rank(total) == 3 and int(node.attrs.get("axis", -1)) % 3 == 2, "it is not over the last axis of [batch, sequence, width]")
    require(dtype in _TYPES and ctx.dtype(scale) == dtype, "its data type is unknown, or ONNX Runtime's op does not take it")
    require(ctx.same_shape(*add.inputs), "the two sums are not known to have one shape")
    require(all(t is None or ctx.shape(t) == (width,) for t in (scale, bias)), "its scale or bias is no vector")
    data, skip = add.inputs
    labels, vector = [add.label, node.label], None
    for own, other in ((data, skip), (skip, data)):
        found = _biased(ctx, own, add, width)
        if found is not None:
            inner, vector = found
            labels.insert(0, _label(own))
            data, skip = inner, other
            break
    inputs = [data, skip, scale, bias or missing(), *([vector] if vector is not None else [])]
    if not inputs[-1].name:
        inputs.pop()
    epsilon = float(node.attrs.get("epsilon", 1e-5))
    read = total in ctx.pinned or len(consumers(total)) > 1
    if read:  # the op makes the sum too
        add.outputs[0] = node.inputs[0] = ctx.view.variable(f"{total.name}_unused")
        node.outputs = [node.outputs[0], missing(), missing(), total]
    ctx.become(node, "fuse-skip-layer-norm", "SkipLayerNormalization", inputs, {"epsilon": epsilon}, MICROSOFT)
    return labels


def _biased(ctx: Context, tensor: Tensor, reader: Node, width: object) -> tuple[Tensor, Tensor] | None:
    """``x`` and the vector of ``tensor = x + vector``, where ``reader`` alone reads it."""
    node = producer(tensor)
    if node is None or not node.standard("Add") or not ctx.builtin(node) or not ctx.only_reader(tensor, reader):
        return None
    return _parted(ctx, node, width)


def _parted(ctx: Context, add: Node, width: object) -> tuple[Tensor, Tensor] | None:
    """What ``add`` adds a constant vector of ``width`` to, and the vector."""
    for x, vector in (add.inputs, add.inputs[::-1]):
        if is_constant(vector) and ctx.shape(vector) == (width,) and ctx.same_shape(x, add.outputs[0]):
            return x, vector
    return None


def _label(tensor: Tensor) -> str:
    node = producer(tensor)
    return node.label if node is not None else tensor.name


@rule("fuse-gelu", "Mul", "Div", "Gelu")
def fuse_gelu(ctx: Context, node: Node) -> list[str] | None:
    """Replaces the ops of a GELU with ``BiasGelu`` or ``Gelu``, of its tanh form with ``FastGelu``; a constant vector added before is taken in."""
    match = match_activation(ctx.graph, node, ctx.members)
    if match is None or match.activation.kind not in _GELUS or not all(ctx.builtin(n) for n in match.nodes):
        return None
    x, op = match.x, _GELUS[match.activation.kind]
    require(ctx.dtype(x) in _TYPES, "its data type is unknown, or ONNX Runtime's op does not take it")
    require(match.rank == 0 or match.rank <= (ctx.rank(x) or 0), "a constant may add dims to the result")
    labels, inputs = [n.label for n in match.nodes], [x]
    first = producer(x)
    readers = set(consumers(x))
    if first is not None and first.standard("Add") and ctx.has(first) and x not in ctx.pinned and readers <= set(match.nodes):
        parted = _parted(ctx, first, (ctx.shape(x) or (None,))[-1])
        if parted is not None:
            inputs, op = [*parted], "FastGelu" if op == "FastGelu" else "BiasGelu"
            labels.append(first.label)
    if len(inputs) == 1 and node.standard("Gelu"):
        return None
    ctx.become(node, "fuse-gelu", op, inputs, {}, MICROSOFT)
    return labels


rules = (fuse_skip_layer_norm, fuse_gelu)
