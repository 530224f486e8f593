"""Queries, keys and values from one matrix product instead of three, where that is expected to be faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..rules.base import Rule, require
from ..rules.context import Context
from ..rules.matmul import LARGEST_COPY
from ..view import MICROSOFT, Constant, Node, Tensor, constant_value, is_constant, producer
from .attention import split

NAME = "merge-products"

Pays = Callable[[Tensor, tuple[int, ...], int], bool]
"""Whether one product of a tensor [..., depth] by all columns and a Split are faster than a product for each of the ``columns``; the last argument is depth."""


@dataclass(frozen=True)
class Linear:
    """``source * weight + bias``: its nodes, the last one last."""

    source: Tensor
    weight: Constant
    bias: Tensor | None
    nodes: tuple[Node, ...]

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return int(self.weight.shape[1])


@dataclass(frozen=True)
class Products:
    """The family of one rule, ``merge-products``, which ``pays`` prices."""

    pays: Pays

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rule."""
        return (Rule(NAME, (), self.merge),)

    def merge(self, ctx: Context, node: Node) -> list[str] | None:
        """Replaces the products that queries, keys and values of one tensor come from with one, and a Split."""
        if node.op != "MultiHeadAttention" or node.domain != MICROSOFT:
            return None
        parts = [_linear(ctx, t, node) for t in node.inputs[:3]]
        linears = [p for p in parts if p is not None]
        if len(linears) < 3 or any(p.source is not linears[0].source for p in linears):
            return None
        first = linears[0]
        require(len({p.bias is None for p in linears}) == 1, "only some of the products have a bias")
        require(len({(p.weight.shape[0], p.weight.dtype) for p in linears}) == 1, "the weights have different types")
        require(sum(p.weight.nbytes for p in linears) <= LARGEST_COPY, "the weights are large")
        columns = tuple(p.columns for p in linears)
        require(self.pays(first.source, columns, int(first.weight.shape[0])), "one product and a Split are not expected to be faster")
        labels = [n.label for p in linears for n in p.nodes]
        name = first.nodes[-1].outputs[0].name
        weight = _joined(ctx, f"{first.weight.name}_merged", [p.weight for p in linears], [p.weight.values for p in linears])
        (merged,) = ctx.insert(node, "MatMul", [first.source, weight], [f"{name}_merged"], NAME)
        biases = [p.bias for p in linears if p.bias is not None]
        if biases:
            values = [np.broadcast_to(np.asarray(constant_value(b)), p.columns) for b, p in zip(biases, linears, strict=True)]
            (merged,) = ctx.insert(node, "Add", [merged, _joined(ctx, f"{name}_bias", biases, values)], [f"{name}_all"], NAME)
        pieces = split(ctx, node, merged, columns, name, [t.name for t in node.inputs[:3]], NAME)
        ctx.rewire(node, [*pieces, *node.inputs[3:]])
        return labels


def _joined(ctx: Context, name: str, tensors: Sequence[Tensor], values: Sequence[np.ndarray]) -> Constant:
    """``values`` of the constants ``tensors`` side by side: one constant for all layers that share them."""
    if tuple(tensors) not in ctx.memo:
        ctx.memo[tuple(tensors)] = ctx.constant(name, np.concatenate(values, axis=-1))
    made: Constant = ctx.memo[tuple(tensors)]
    return made


def _linear(ctx: Context, tensor: Tensor, reader: Node) -> Linear | None:
    """The product with a constant matrix that ``tensor`` is, where ``reader`` alone reads it."""
    node, bias = producer(tensor), None
    if node is None or not ctx.only_reader(tensor, reader):
        return None
    nodes: tuple[Node, ...] = (node,)
    if node.standard("Add"):
        index = next((i for i in (0, 1) if is_constant(node.inputs[i])), None)
        bias = node.inputs[index] if index is not None else None
        inner = producer(node.inputs[1 - index]) if index is not None else None
        if bias is None or ctx.rank(bias) != 1 or inner is None or not ctx.only_reader(inner.outputs[0], node):
            return None
        node, nodes = inner, (inner, node)
    if not node.standard("MatMul") or ctx.rank(node.inputs[0]) != 3 or not isinstance(node.inputs[1], Constant):
        return None
    weight = node.inputs[1]
    if len(weight.shape) != 2 or (bias is not None and ctx.shape(bias) not in ((1,), (weight.shape[1],))):
        return None
    return Linear(node.inputs[0], weight, bias, nodes)
