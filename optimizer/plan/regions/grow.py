"""How a stage grows: the pointwise work that follows is taken into its epilogue while nothing else reads what lies between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ...graph.activations import ActivationMatch, match_activation
from ...graph.shapes import Shapes
from ...graph.view import Node, Tensor, Variable, constant_value, consumers, is_constant, is_output
from .region import EpilogueOp, Stage

MAX_OPERANDS = 3  # tensors and per-channel vectors that one epilogue may read, the bias apart

Activations = Mapping[Tensor, Sequence[ActivationMatch]]


def find_activations(graph: gs.Graph) -> Activations:
    """Every activation idiom of ``graph`` by the tensor that it reads, larger idioms first; nodes in the graph's order."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    found: dict[Tensor, list[ActivationMatch]] = {}
    for node in graph.nodes:
        match = match_activation(graph, node)
        if match is not None:
            found.setdefault(match.x, []).append(replace(match, nodes=tuple(sorted(match.nodes, key=order.__getitem__))))
    return {x: sorted(matches, key=lambda m: -len(m.nodes)) for x, matches in found.items()}


def grow(stage: Stage, graph: gs.Graph, shapes: Shapes, activations: Activations, taken: Set[Node] = frozenset()) -> Stage:
    """``stage`` with every following step that fits into its epilogue and that nobody has ``taken``."""
    local = set(graph.nodes) - taken
    while True:
        longer = _step(stage, graph, shapes, activations)
        if longer is None or any(n not in local for n in longer.nodes[len(stage.nodes) :]) or _operands(longer) > MAX_OPERANDS:
            return stage
        stage = longer


def _operands(stage: Stage) -> int:
    return sum(op.tensor is not None or op.vector is not None for op in stage.epilogue)


def _step(stage: Stage, graph: gs.Graph, shapes: Shapes, activations: Activations) -> Stage | None:
    tensor = stage.result
    if is_output(graph, tensor):
        return None
    readers = set(consumers(tensor))
    for match in activations.get(tensor, ()):
        if readers <= set(match.nodes) and match.rank <= (shapes.rank(tensor) or 0):
            vector = None if match.slope is None else channel_vector(match.slope, stage, shapes.rank(tensor))
            if match.slope is not None and vector is None:
                continue
            return stage.extended(EpilogueOp("act", match.activation, vector, nodes=match.nodes), match.nodes, match.nodes[-1].outputs[0])
    if len(readers) != 1 or len(consumers(tensor)) != 1:
        return None
    node = readers.pop()
    ops = pointwise_ops(stage, node, shapes)
    if not ops:
        return None
    for op in ops:
        stage = stage.extended(op, (node,) if op is ops[-1] else (), node.outputs[0])
    return stage


def pointwise_ops(stage: Stage, node: Node, shapes: Shapes) -> list[EpilogueOp] | None:
    """What ``node`` does to the result of ``stage`` as epilogue steps; None where that cannot be said (activations are found elsewhere)."""
    if node.standard("BatchNormalization"):
        return _batchnorm(node, stage.result) if stage.axis == 1 else None
    return _binary(stage, node, shapes)


def _batchnorm(node: Node, tensor: Tensor) -> list[EpilogueOp] | None:
    if node.inputs[0] is not tensor or node.attrs.get("training_mode", 0) or any(t.name for t in node.outputs[1:]):
        return None
    values = [constant_value(t) for t in node.inputs[1:5]]
    if any(v is None for v in values):
        return None
    gamma, beta, mean, variance = (np.asarray(v, dtype=np.float64) for v in values)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        vectors = [v.astype(np.float32) for v in (scale, beta - mean * scale)]
    if not all(np.isfinite(v).all() for v in vectors):
        return None
    return [EpilogueOp("scale", vector=vectors[0]), EpilogueOp("shift", vector=vectors[1])]


def channel_vector(tensor: Tensor, stage: Stage, rank: int | None) -> np.ndarray | None:
    """A constant that varies along the channels of what ``stage`` computes alone, as float32 of shape [channels]; None where it does not."""
    channels = stage.channels_out
    value = constant_value(tensor)
    if value is None or rank is None or value.ndim > rank:
        return None
    shape = (1,) * (rank - value.ndim) + value.shape
    axis = stage.axis % rank
    if shape[axis] not in (1, channels) or any(d != 1 for i, d in enumerate(shape) if i != axis):
        return None
    return np.broadcast_to(np.asarray(value, dtype=np.float32).reshape(-1), (channels,)).copy()


def _binary(stage: Stage, node: Node, shapes: Shapes) -> list[EpilogueOp] | None:
    if not node.standard("Add", "Mul", "Sub", "Div") or len(node.inputs) != 2:
        return None
    first = node.inputs[0] is stage.result
    other = node.inputs[1] if first else node.inputs[0]
    if is_constant(other):
        return _constant_operand(node.op, first, other, stage, shapes)
    if node.op == "Div" or not isinstance(other, Variable) or shapes.dtype(other) != shapes.dtype(stage.result):
        return None
    kind = _operand_kind(stage, other, shapes)
    if kind is None or (kind == "gate" and node.op == "Sub"):
        return None
    op = {"Add": "add", "Mul": "mul", "Sub": "sub" if first else "rsub"}[node.op]
    return [EpilogueOp(op, tensor=other, gate=kind == "gate")]


def _constant_operand(op: str, first: bool, other: Tensor, stage: Stage, shapes: Shapes) -> list[EpilogueOp] | None:
    vector = channel_vector(other, stage, shapes.rank(stage.result))
    if vector is None or not np.isfinite(vector).all() or (op == "Div" and not first):
        return None
    one = np.ones_like(vector)
    with np.errstate(over="ignore", divide="ignore"):
        scale, shift = {
            "Add": (one, vector),
            "Mul": (vector, 0 * one),
            "Div": (1 / vector if op == "Div" else one, 0 * one),
            "Sub": (one, -vector) if first else (-one, vector),
        }[op]
    if not np.isfinite(scale).all():
        return None
    if (scale == scale[0]).all() and (shift == shift[0]).all():
        return [EpilogueOp("affine", a=float(scale[0]), b=float(shift[0]))]
    return [EpilogueOp(kind, vector=v) for kind, v, neutral in (("scale", scale, 1), ("shift", shift, 0)) if (v != neutral).any()]


def _operand_kind(stage: Stage, other: Tensor, shapes: Shapes) -> str | None:
    """How ``other`` joins the result of ``stage`` pointwise without changing its shape: ``full``, ``gate`` ([N, C, 1, 1]) or None."""
    mine, theirs = shapes.shape(stage.result), shapes.shape(other)
    if mine is None or theirs is None or len(mine) != len(theirs):
        return None
    if all(shapes.equal(a, b) for a, b in zip(mine, theirs, strict=True)):
        return "full"
    if stage.axis == 1 and shapes.equal(mine[0], theirs[0]) and shapes.equal(mine[1], theirs[1]) and all(d == 1 for d in theirs[2:]):
        return "gate"
    return None
