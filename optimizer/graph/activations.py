"""Recognises activations in all their spellings: one op, or the idiom that a framework exported in its place.

Idioms are matched as arithmetic, not as fixed trees: a product is a scalar times factors in any order, an argument is a polynomial in x. So
``x * clip(x + 3, 0, 6) / 6``, ``clip(x + 3, 0, 6) * 0.1667 * x`` and ``x * hard_sigmoid(x)`` are one case.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import TypeAlias

import onnx_graphsurgeon as gs

from ..records import Activation
from .arithmetic import Trail, factors_of, maker, polynomial, strip
from .view import Node, Tensor, consumers, is_constant, is_output

_INF = math.inf
_GELU_TANH = {1: math.sqrt(2 / math.pi), 3: 0.044715 * math.sqrt(2 / math.pi)}
_LARGEST = 3.402823e38


@dataclass(frozen=True)
class ActivationMatch:
    """An activation and the nodes that compute it.

    Attributes:
        activation: What is computed.
        x: Its argument.
        nodes: The nodes of the idiom, the last one first; nothing else reads what they pass to one another.
        slope: The slopes of ``prelu``, a constant, broadcast to x; None for the others.
        rank: Highest rank of a constant in the idiom; the result has the shape of x only where x has that rank at least.
    """

    activation: Activation
    x: Tensor
    nodes: tuple[Node, ...]
    slope: Tensor | None = None
    rank: int = 0


def match_activation(graph: gs.Graph, node: Node, members: Container[Node] | None = None) -> ActivationMatch | None:
    """The activation of ``graph`` whose result is the output of ``node``, the longest idiom that ends there; None where there is none.

    Args:
        graph: The graph that ``node`` stands in.
        node: The node to start from.
        members: The nodes of ``graph``, where the caller has them as a set.
    """
    inside = set(graph.nodes) if members is None else members
    found = _search(node, Trail(graph, inside, strict=True))
    return found if found is not None and not _leaks(graph, found, inside) else None


def near_match(graph: gs.Graph, node: Node, members: Container[Node]) -> ActivationMatch | None:
    """An idiom of several nodes that ends at ``node`` but has an intermediate result that is used elsewhere, else None."""
    found = _search(node, Trail(graph, members, strict=False))
    return found if found is not None and len(found.nodes) > 1 and _leaks(graph, found, members) else None


def _leaks(graph: gs.Graph, match: ActivationMatch, members: Container[Node]) -> bool:
    """Whether an intermediate result is used outside the idiom, or a node of it stands in another graph."""
    inside = set(match.nodes)
    inner = [t for n in match.nodes[1:] for t in n.outputs]
    return any(n not in members for n in match.nodes) or any(is_output(graph, t) or any(c not in inside for c in consumers(t)) for t in inner)


def _search(node: Node, start: Trail) -> ActivationMatch | None:
    for kind in (_single, _product, _bounded, _leaky):
        trail = start.branch()
        found = kind(node, trail)
        if found is not None:
            activation, x, slope = found
            return ActivationMatch(activation, x, (node, *(n for n in dict.fromkeys(trail.nodes) if n is not node)), slope, trail.rank)
    return None


_Found: TypeAlias = "tuple[Activation, Tensor, Tensor | None]"
_PLAIN = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Mish": "mish", "HardSwish": "hard_swish"}


def _single(node: Node, trail: Trail) -> _Found | None:
    """One op that is an activation (Relu and Clip: see :func:`_bounded`)."""
    attrs = node.attrs
    if node.standard(*_PLAIN):
        return Activation(_PLAIN[node.op]), node.inputs[0], None
    if node.standard("Gelu"):
        return Activation("gelu_tanh" if attrs.get("approximate", "none") == "tanh" else "gelu"), node.inputs[0], None
    if node.standard("Swish"):
        return (Activation("silu"), node.inputs[0], None) if attrs.get("alpha", 1.0) == 1.0 else None
    if node.standard("LeakyRelu"):
        return Activation("leaky_relu", float(attrs.get("alpha", 0.01))), node.inputs[0], None
    if node.standard("HardSigmoid"):
        return Activation("hard_sigmoid", float(attrs.get("alpha", 0.2)), float(attrs.get("beta", 0.5))), node.inputs[0], None
    if node.standard("PRelu") and is_constant(node.inputs[1]):
        return Activation("prelu"), node.inputs[0], node.inputs[1]
    return None


def _product(node: Node, trail: Trail) -> _Found | None:
    """``c * x * f(x)`` (silu, hard_swish, gelu, mish), or ``c * clip(...)`` (hard_sigmoid)."""
    product = factors_of(node, trail) if node.standard("Mul", "Div") else None
    if product is None:
        return None
    c, factors = product
    if len(factors) == 1:
        return _hard_sigmoid(c, factors[0], trail)
    if len(factors) != 2:
        return None
    for x, gate in (factors, factors[::-1]):
        for kind, matches in (("silu", _is_silu), ("hard_swish", _is_hard_swish), ("mish", _is_mish), ("gelu", _is_gelu), ("gelu_tanh", _is_gelu_tanh)):
            attempt = trail.branch()
            if matches(c, gate, x, attempt):
                trail.take(attempt)
                return Activation(kind), x, None
    return None


def _bounded(node: Node, trail: Trail) -> _Found | None:
    """``clip(x, a, b)``, also as Relu, Min and Max; ``clip(a * x + b, 0, 1)`` is hard_sigmoid."""
    bounds = _bounds(node, trail)
    if bounds is None or (bounds[1], bounds[2]) == (-_INF, _INF):
        return None
    inner, low, high = bounds
    if (low, high) == (0.0, 1.0):
        attempt = trail.branch()
        x, a, b = strip(inner, attempt)
        if x is not inner and a != 0.0:
            trail.take(attempt)
            return Activation("hard_sigmoid", a, b), x, None
    return Activation("relu") if (low, high) == (0.0, _INF) else Activation("clip", low, high), inner, None


def _leaky(node: Node, trail: Trail) -> _Found | None:
    """``max(x, a * x)`` with a between 0 and 1."""
    if not node.standard("Max") or len(node.inputs) != 2:
        return None
    for x, scaled in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        attempt = trail.branch()
        line = polynomial(scaled, x, attempt)
        if line is not None and set(line) == {1} and 0.0 < line[1] < 1.0:
            trail.take(attempt)
            return Activation("leaky_relu", line[1]), x, None
    return None


def _is_silu(c: float, gate: Tensor, x: Tensor, trail: Trail) -> bool:
    node = trail.step(gate, "Sigmoid")
    return node is not None and node.inputs[0] is x and trail.near(c, 1.0)


def _is_mish(c: float, gate: Tensor, x: Tensor, trail: Trail) -> bool:
    node = trail.step(gate, "Tanh")
    if node is None or not trail.near(c, 1.0):
        return False
    softplus = trail.step(node.inputs[0], "Softplus", "Log")
    if softplus is None or softplus.op == "Softplus":
        return softplus is not None and softplus.inputs[0] is x
    exponential, factor, offset = strip(softplus.inputs[0], trail)
    node = trail.step(exponential, "Exp")
    return node is not None and node.inputs[0] is x and trail.near(factor, 1.0) and trail.near(offset, 1.0)


def _is_hard_swish(c: float, gate: Tensor, x: Tensor, trail: Trail) -> bool:
    found = _hard_sigmoid(c, gate, trail, x)
    return found is not None and trail.near(found[0].a, 1 / 6) and trail.near(found[0].b, 0.5)


def _hard_sigmoid(c: float, gate: Tensor, trail: Trail, x: Tensor | None = None) -> _Found | None:
    """``c * clip(a * x + b, low, high)`` that spans 0 to 1, or ``c * HardSigmoid(x)``; x is whatever is found, if not given."""
    node = maker(gate)
    if node is None or not trail.owned(gate):
        return None
    trail.nodes.append(node)
    a, b, low, high = 1.0, 0.0, 0.0, 1.0
    if node.standard("HardSigmoid"):
        inner, a, b = node.inputs[0], float(node.attrs.get("alpha", 0.2)), float(node.attrs.get("beta", 0.5))
    else:
        bounds = _bounds(node, trail)
        if bounds is None:
            return None
        inner, low, high = bounds
    if not (trail.near(c * low, 0.0) and trail.near(c * high, 1.0)):
        return None
    if x is None:
        x, factor, offset = strip(inner, trail)
    else:
        line = polynomial(inner, x, trail)
        if line is None or not set(line) <= {0, 1}:
            return None
        factor, offset = line.get(1, 0.0), line.get(0, 0.0)
    return Activation("hard_sigmoid", c * a * factor, c * (a * offset + b)), x, None


def _is_gelu(c: float, gate: Tensor, x: Tensor, trail: Trail) -> bool:
    argument = _half_of_one_plus(c, gate, "Erf", trail)
    return argument is not None and _same(polynomial(argument, x, trail), {1: math.sqrt(0.5)}, trail)


def _is_gelu_tanh(c: float, gate: Tensor, x: Tensor, trail: Trail) -> bool:
    argument = _half_of_one_plus(c, gate, "Tanh", trail)
    return argument is not None and _same(polynomial(argument, x, trail), _GELU_TANH, trail)


def _half_of_one_plus(c: float, gate: Tensor, op: str, trail: Trail) -> Tensor | None:
    """The argument t where ``c * gate`` is ``0.5 * (1 + op(t))``."""
    inner, factor, offset = strip(gate, trail)
    node = trail.step(inner, op)
    return node.inputs[0] if node is not None and trail.near(c * factor, 0.5) and trail.near(c * offset, 0.5) else None


def _same(found: dict[int, float] | None, wanted: dict[int, float], trail: Trail) -> bool:
    return found is not None and all(trail.near(found.get(k, 0.0), wanted.get(k, 0.0)) for k in {*found, *wanted})


def _bounds(node: Node, trail: Trail) -> tuple[Tensor, float, float] | None:
    """``(x, low, high)`` where ``node`` and the likes of it in front compute ``clip(x, low, high)``."""
    first = _own_bounds(node, trail)
    if first is None:
        return None
    inner, low, high = first
    while (node_before := maker(inner)) is not None and trail.owned(inner):
        attempt = trail.branch()
        more = _own_bounds(node_before, attempt)
        if more is None:
            break
        attempt.nodes.append(node_before)
        trail.take(attempt)
        inner, low, high = more[0], min(max(more[1], low), high), min(max(more[2], low), high)
    return inner, low, high


def _own_bounds(node: Node, trail: Trail) -> tuple[Tensor, float, float] | None:
    low: float | None = -_INF
    high: float | None = _INF
    if node.standard("Relu"):
        return node.inputs[0], 0.0, _INF
    if node.standard("Clip"):
        inner, given, rank = node.inputs[0], [*node.inputs[1:], None, None][:2], trail.rank
        low, high = (node.attrs.get(k, d) if t is None or not t.name else trail.scalar(t) for t, k, d in zip(given, ("min", "max"), (-_INF, _INF), strict=True))
        trail.rank = rank  # bounds of Clip do not broadcast
    elif node.standard("Min", "Max") and len(node.inputs) == 2:
        values = [trail.scalar(t) for t in node.inputs]
        if (values[0] is None) == (values[1] is None):
            return None
        inner, value = (node.inputs[0], values[1]) if values[0] is None else (node.inputs[1], values[0])
        low, high = (value, _INF) if node.op == "Max" else (-_INF, value)
    else:
        return None
    if low is None or high is None:
        return None
    if trail.dtype == "float32":  # the largest float32 stands for "no bound" in the defaults of Clip
        low, high = (math.copysign(_INF, v) if abs(v) >= _LARGEST else v for v in (low, high))
    return (inner, low, high) if low <= high else None
