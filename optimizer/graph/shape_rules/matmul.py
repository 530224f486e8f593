"""Shape rules of matrix products."""

from __future__ import annotations

from ..dims import floordiv
from ..symbols import Dim, add, mul
from .registry import Call, CannotInfer, Fact, rule


def product_of(call: Call, a: int, b: int) -> list[Fact]:
    """The ``matmul`` of numpy on inputs ``a`` and ``b``, batch dims broadcast."""
    left, right = call.need(a), call.need(b)
    if not left or not right:
        raise CannotInfer("a matrix product needs at least one dim")
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    return [Fact((*call.broadcast(left[:-2], right[:-2]), *rows, *columns))]


@rule("MatMul", "MatMulInteger")
def matmul(call: Call) -> list[Fact]:
    """``[..., M, K] @ [..., K, N] -> [..., M, N]``; a vector counts as a row on the left and a column on the right."""
    return product_of(call, 0, 1)


@rule("QLinearMatMul")
def qlinear_matmul(call: Call) -> list[Fact]:
    """As MatMul; the right operand is input 3."""
    return product_of(call, 0, 3)


@rule("Gemm")
def gemm(call: Call) -> list[Fact]:
    """``[M, K] @ [K, N] -> [M, N]``, either side transposed on request."""
    a, b = call.shape(0), call.shape(1)
    if (a is not None and len(a) != 2) or (b is not None and len(b) != 2):
        raise CannotInfer("Gemm takes matrices")
    m = a[1 if call.attr("transA", 0) else 0] if a else call.engine.fresh()
    n = b[0 if call.attr("transB", 0) else 1] if b else call.engine.fresh()
    return [Fact((m, n))]


@rule("Einsum")
def einsum(call: Call) -> list[Fact]:
    """Equations without an ellipsis: every letter is one size."""
    equation = str(call.attr("equation")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    if "." in equation:
        raise CannotInfer("an equation with an ellipsis")
    if not arrow:
        letters = left.replace(",", "")
        right = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    sizes: dict[str, Dim] = {}
    for i, term in enumerate(left.split(",")):
        shape = call.shape(i)
        if shape is None:
            return [Fact(call.fresh(len(right)))]
        if len(shape) != len(term):
            raise CannotInfer(f"operand {i} has rank {len(shape)} and the equation says {term!r}")
        for letter, dim in zip(term, shape, strict=True):
            sizes[letter] = call.broadcast((sizes.get(letter, 1),), (dim,))[0]
    return [Fact(tuple(sizes[c] for c in right))]


@rule("Attention")
def attention(call: Call) -> list[Fact]:
    """Scaled dot products of ``[B, heads, S, D]`` or ``[B, S, heads*D]``: result, present keys and values, and the products themselves."""
    q, k, v = call.need(0), call.need(1), call.need(2)
    if len(q) == 3:
        heads, groups = int(call.attr("q_num_heads")), int(call.attr("kv_num_heads"))
        q = (q[0], heads, q[1], floordiv(q[2], heads))
        k = (k[0], groups, k[1], floordiv(k[2], groups))
        v = (v[0], groups, v[1], floordiv(v[2], groups))
    past = call.shape(4) if call.has(4) else None
    length = add(k[2], past[2]) if past is not None else k[2] if not call.has(4) else call.engine.fresh()
    result = (*q[:3], v[3]) if len(call.need(0)) == 4 else (q[0], q[2], mul(q[1], v[3]))
    return [Fact(result), Fact((*k[:2], length, k[3])), Fact((*v[:2], length, v[3])), Fact((*q[:3], length))]
