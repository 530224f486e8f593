"""One normal form for matrix products: Gemm with its scalars and the transposition of its weight in the constants."""

from __future__ import annotations

import numpy as np

from ..view import Node, constant_bytes, consumers, is_constant, producer
from .base import require, rule
from .channels import fit
from .context import FLOATS, Context, folded_name, optional

LARGEST_COPY = 256 * 1024 * 1024
"""Weights above this size, bytes, are not rewritten for the sake of form."""


@rule("matmul-add-to-gemm", "Add")
def matmul_add_to_gemm(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``MatMul(a, b) + c``, a and b matrices, c a constant for each column, with ``Gemm(a, b, c)``."""
    sides = [(producer(node.inputs[i]), node.inputs[1 - i]) for i in (0, 1)]
    found = next(((p, c) for p, c in sides if p is not None and p.standard("MatMul") and ctx.builtin(p) and is_constant(c)), None)
    if found is None:
        return None
    product, bias = found
    left, right = (ctx.shape(t) for t in product.inputs)
    require(left is not None and right is not None and len(left) == len(right) == 2, "the factors are not known to be matrices")
    shape = ctx.shape(bias) or ()
    require(len(shape) == 1, "the constant is no vector")
    require(shape[0] == 1 or (right is not None and shape[0] == right[1]), "the constant does not hold one value for each column")
    require(ctx.dtype(bias) in FLOATS, "the data type is no floating-point one")
    require(product.outputs[0] not in ctx.pinned, "the intermediate result is a graph output")
    require(ctx.only_reader(product.outputs[0], node), "the intermediate result is used elsewhere")
    labels = [product.label, node.label]
    ctx.become(node, "matmul-add-to-gemm", "Gemm", [*product.inputs, bias])
    return labels


@rule("fold-gemm-alpha", "Gemm")
def fold_alpha(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``alpha`` of a Gemm with a scaled weight."""
    alpha = float(node.attrs.get("alpha", 1.0))
    if alpha == 1.0:
        return None
    require(_is_own(ctx, node, 1), "the weight is not a constant of this node alone, or is large")
    weight = ctx.known(node.inputs[1], "the weight")
    require(weight.dtype.itemsize >= 4, f"the scaled weight may be too small for {weight.dtype}")
    return _replace(ctx, node, 1, fit(weight.astype(np.float64) * alpha, weight.dtype, "weight"), "alpha", "fold-gemm-alpha")


@rule("fold-gemm-beta", "Gemm")
def fold_beta(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``beta`` of a Gemm with a scaled bias."""
    beta, bias = float(node.attrs.get("beta", 1.0)), optional(node, 2)
    if beta == 1.0 or bias is None:
        return None
    values = ctx.known(bias, "the bias")
    return _replace(ctx, node, 2, fit(values.astype(np.float64) * beta, values.dtype, "bias"), "beta", "fold-gemm-beta")


@rule("fold-gemm-transpose", "Gemm")
def fold_transpose(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``transA`` or ``transB`` of a Gemm whose operand is constant with the transposed constant."""
    for index, attribute in ((0, "transA"), (1, "transB")):
        if node.attrs.get(attribute, 0) and is_constant(node.inputs[index]):
            require(_is_own(ctx, node, index), "the weight is not a constant of this node alone, or is large")
            values = ctx.known(node.inputs[index], "the weight")
            return _replace(ctx, node, index, np.array(values.T, order="C"), attribute, "fold-gemm-transpose")
    return None


def _is_own(ctx: Context, node: Node, index: int) -> bool:
    """Whether an operand is a constant that ``node`` alone reads, and not too large to rewrite."""
    tensor = node.inputs[index]
    alone = len(consumers(tensor)) == 1 and tensor not in ctx.pinned
    return is_constant(tensor) and alone and constant_bytes(tensor) <= LARGEST_COPY


def _replace(ctx: Context, node: Node, index: int, values: np.ndarray, attribute: str, rule_name: str) -> list[str]:
    inputs = list(node.inputs)
    inputs[index] = ctx.constant(folded_name(inputs[index]), values)
    ctx.rewire(node, inputs)
    node.attrs.pop(attribute)
    node.rule = rule_name
    return [node.label]


rules = (matmul_add_to_gemm, fold_alpha, fold_beta, fold_transpose)
