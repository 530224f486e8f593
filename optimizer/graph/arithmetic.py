"""Reads scalar arithmetic around a tensor: products, linear forms and polynomials, whatever order the nodes write them in."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from .view import Constant, Node, Tensor, constant_bytes, constant_value, consumers, is_constant, is_output, producer

_TOLERANCE = {"float16": 2e-3, "bfloat16": 1.5e-2, "float64": 1e-7}
_FLOAT_TOLERANCE = 1e-5


@dataclass
class Trail:
    """What a search went through.

    Attributes:
        graph: The graph that it stays in.
        members: The nodes of the graph.
        strict: Whether it steps only through results that one node reads.
        nodes: Nodes of the idiom so far.
        rank: Highest rank of a constant seen.
        dtype: Type of the constants seen.
    """

    graph: gs.Graph
    members: Container[Node]
    strict: bool
    nodes: list[Node] = field(default_factory=list)
    rank: int = 0
    dtype: str = "float32"

    def scalar(self, tensor: Tensor) -> float | None:
        """The value of a floating-point constant of one element."""
        if not is_constant(tensor) or constant_bytes(tensor) > 8:
            return None
        values = constant_value(tensor)
        if values is None or values.size != 1 or str(values.dtype) not in ("float16", "bfloat16", "float32", "float64"):
            return None
        self.rank, self.dtype = max(self.rank, values.ndim), str(values.dtype)
        return float(values.astype(np.float64).ravel()[0])

    def near(self, value: float, wanted: float) -> bool:
        """Whether ``value`` is what ``wanted`` became in the type of the constants."""
        return abs(value - wanted) <= _TOLERANCE.get(self.dtype, _FLOAT_TOLERANCE) * max(abs(wanted), 0.1)

    def step(self, tensor: Tensor, *ops: str) -> Node | None:
        """Goes to the node that makes ``tensor``, if it is one of ``ops``."""
        node = maker(tensor)
        if node is None or not node.standard(*ops):
            return None
        self.nodes.append(node)
        return node

    def owned(self, tensor: Tensor) -> bool:
        """Whether one node alone reads ``tensor``, which this graph makes; always so where the search is not strict."""
        return not self.strict or self.alone(tensor)

    def alone(self, tensor: Tensor) -> bool:
        """Whether one node alone reads ``tensor``, which this graph makes."""
        return len(set(consumers(tensor))) == 1 and not is_output(self.graph, tensor) and producer(tensor) in self.members

    def branch(self) -> Trail:
        """A copy to try something with."""
        return Trail(self.graph, self.members, self.strict, list(self.nodes), self.rank, self.dtype)

    def take(self, other: Trail) -> None:
        """Keeps what a copy found."""
        self.nodes, self.rank, self.dtype = other.nodes, other.rank, other.dtype


def factors_of(node: Node, trail: Trail) -> tuple[float, list[Tensor]] | None:
    """A scalar and the tensors whose product with it ``node``, a Mul or Div, computes."""
    operands, constants = list(node.inputs), [trail.scalar(t) for t in node.inputs]
    if len(operands) != 2 or (node.op == "Div" and not constants[1]):
        return None
    c, factors = 1.0, []
    for index, (tensor, value) in enumerate(zip(operands, constants, strict=True)):
        if value is not None:
            c = c / value if node.op == "Div" and index == 1 else c * value
            continue
        inner = maker(tensor)
        nested = factors_of(inner, trail) if inner is not None and inner.standard("Mul", "Div") and trail.alone(tensor) else None
        if nested is None or inner is None:
            factors.append(tensor)
        else:
            trail.nodes.append(inner)
            c, factors = c * nested[0], factors + nested[1]
    return c, factors


def strip(tensor: Tensor, trail: Trail) -> tuple[Tensor, float, float]:
    """``(x, a, b)`` with ``tensor = a * x + b``, x as far up as scalars reach."""
    a, b = 1.0, 0.0
    while (node := maker(tensor)) is not None and trail.owned(tensor) and node.standard("Add", "Sub", "Mul", "Div", "Neg"):
        attempt = trail.branch()
        values = [attempt.scalar(t) for t in node.inputs]
        if node.op == "Neg":
            a, tensor = -a, node.inputs[0]
        elif len(values) != 2 or (values[0] is None) == (values[1] is None) or (node.op == "Div" and not values[1]):
            break
        else:
            index = 0 if values[0] is None else 1
            value = values[1 - index] or 0.0
            tensor = node.inputs[index]
            if node.op == "Add":
                b += a * value
            elif node.op == "Sub":
                a, b = (a, b - a * value) if index == 0 else (-a, b + a * value)
            else:
                a = a / value if node.op == "Div" else a * value
        attempt.nodes.append(node)
        trail.take(attempt)
    return tensor, a, b


def polynomial(tensor: Tensor, x: Tensor, trail: Trail, depth: int = 8) -> dict[int, float] | None:
    """Coefficients by power where ``tensor`` is a polynomial in ``x`` of degree 3 at most."""
    if tensor is x:
        return {1: 1.0}
    value = trail.scalar(tensor)
    if value is not None:
        return {0: value}
    node = trail.step(tensor, "Add", "Sub", "Mul", "Div", "Neg", "Pow") if depth else None
    if node is None:
        return None
    parts = [polynomial(t, x, trail, depth - 1) for t in node.inputs] if node.op != "Pow" else [polynomial(node.inputs[0], x, trail, depth - 1)]
    if node.op == "Pow":
        return _power(parts[0], node.inputs[1], trail)
    if any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    if node.op == "Neg":
        return {k: -v for k, v in known[0].items()}
    left, right = known
    if node.op in ("Add", "Sub"):
        sign = 1.0 if node.op == "Add" else -1.0
        return {k: left.get(k, 0.0) + sign * right.get(k, 0.0) for k in sorted({*left, *right})}
    if node.op == "Div":
        return {k: v / right[0] for k, v in left.items()} if set(right) == {0} and right[0] else None
    return _multiply(left, right)


def _power(base: dict[int, float] | None, exponent: Tensor, trail: Trail) -> dict[int, float] | None:
    values = constant_value(exponent) if is_constant(exponent) else None
    if base is None or values is None or values.size != 1 or float(values.ravel()[0]) not in (1.0, 2.0, 3.0):
        return None
    trail.rank = max(trail.rank, values.ndim)
    result: dict[int, float] | None = {0: 1.0}
    for _ in range(int(values.ravel()[0])):
        result = None if result is None else _multiply(result, base)
    return result


def _multiply(left: dict[int, float], right: dict[int, float]) -> dict[int, float] | None:
    result: dict[int, float] = {}
    for i, a in left.items():
        for j, b in right.items():
            result[i + j] = result.get(i + j, 0.0) + a * b
    return result if max(result) <= 3 else None


def maker(tensor: Tensor) -> Node | None:
    """The node that makes ``tensor``, a constant aside."""
    return None if isinstance(tensor, Constant) else producer(tensor)
