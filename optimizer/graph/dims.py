"""Division, rounding, minimum and proofs on dims, in the canonical form of symbols.py."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import cast

import sympy

from .bounds import interval
from .symbols import MAX_TERMS, Dim, FloorDiv, Positive, add, build, is_whole, mul, sub, terms, tidy


def floordiv(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded to minus infinity. ``a`` may have fractions as coefficients.

    Raises:
        ZeroDivisionError: ``b`` is 0.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, int):
        return _floordiv_by_int(a, b)
    if isinstance(a, int) and a == 0:
        return 0
    whole: list[tuple[Fraction, sympy.Expr]] = []
    rest: list[tuple[Fraction, sympy.Expr]] = []
    divisor = terms(b)
    if len(divisor) == 1:
        for c, m in terms(a):
            quotient = m / divisor[0][1]
            fits = _denominator(quotient) == 1 and c % divisor[0][0] == 0
            (whole if fits else rest).append((c / divisor[0][0], quotient) if fits else (c, m))
    else:
        exact = divide(a, b)
        if exact is not None:
            return exact
        rest = terms(a)
    left = build(rest) if rest else 0
    return add(build(whole) if whole else 0, 0 if left == 0 else FloorDiv(left, b))


def _denominator(expression: sympy.Expr) -> sympy.Expr:
    return expression.as_numer_denom()[1]


def _floordiv_by_int(a: Dim, b: int) -> Dim:
    parts = terms(a)
    scale = math.lcm(*(c.denominator for c, _ in parts))
    if b < 0:
        parts, b = [(-c, m) for c, m in parts], -b
    b *= scale
    numerators = [(int(c * scale), m) for c, m in parts]
    whole = [(Fraction(c // b), m) for c, m in numerators if c // b]
    rest = [(c % b, m) for c, m in numerators if c % b]
    constant = sum(c for c, m in rest if m == 1)
    variable = [(c, m) for c, m in rest if m != 1]
    common = math.gcd(b, *(c for c, _ in variable))
    if common > 1:  # floor((g*x + c) / (g*k)) is floor((x + floor(c/g)) / k)
        variable, constant, b = [(c // common, m) for c, m in variable], constant // common, b // common
    inner = [(i, m) for i, (c, m) in enumerate(variable) if c == 1 and isinstance(m, FloorDiv) and m.args[1].is_Integer]
    whole_part = build(whole) if whole else 0
    if not variable or b == 1:
        return add(whole_part, constant // b, *(mul(c, tidy(m)) for c, m in variable))
    if inner:  # floor((floor(x/m) + y) / n) is floor((x + m*y) / (m*n))
        index, quotient = inner[0]
        others = [(Fraction(c), m) for i, (c, m) in enumerate(variable) if i != index] + [(Fraction(constant), sympy.Integer(1))]
        factor = int(quotient.args[1])
        return add(whole_part, floordiv(add(quotient.args[0], mul(factor, build(others))), factor * b))
    rest_part = build([(Fraction(c), m) for c, m in variable] + [(Fraction(constant), sympy.Integer(1))])
    return add(whole_part, FloorDiv(rest_part, b))


def ceildiv(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up, for ``b`` above 0."""
    if isinstance(b, int) and not is_whole(a):
        return mul(-1, floordiv(mul(-1, a), b))
    return floordiv(add(a, b, -1), b)


def mod(a: Dim, b: Dim) -> Dim:
    """``a - b * floor(a / b)``: has the sign of ``b``, as in Python."""
    return sub(a, mul(b, floordiv(a, b)))


def truncdiv(a: Dim, b: Dim) -> Dim | None:
    """``a / b`` rounded towards zero, or None where the sign of ``b`` is open."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    low, high = interval(b)
    if high is not None and high < 0:
        a, b = mul(-1, a), mul(-1, b)
    elif low is None or low < 0:
        return None
    positive = maximum(a, 0)
    return sub(floordiv(positive, b), floordiv(sub(positive, a), b))


def divide(a: Dim, b: Dim) -> Dim | None:
    """``q`` with ``a == q * b``, or None where there is no such polynomial; where ``b`` may be 0 that case is left out."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    divisor = terms(b)
    if len(divisor) == 1:
        parts = [(c / divisor[0][0], m / divisor[0][1]) for c, m in terms(a)]
        return build(parts) if all(c.denominator == 1 and _denominator(m) == 1 for c, m in parts) else None
    if a == b:
        return 1
    if len(terms(a)) > MAX_TERMS or len(divisor) > MAX_TERMS:
        return None
    atoms = sorted({f.as_base_exp()[0] for d in (a, b) for _, m in terms(d) for f in sympy.Mul.make_args(m) if m != 1}, key=str)
    stand_in = {atom: sympy.Dummy() for atom in atoms}
    quotient, rest = sympy.div(sympy.sympify(a).xreplace(stand_in), sympy.sympify(b).xreplace(stand_in), *stand_in.values(), domain=sympy.QQ)
    if rest != 0:
        return None
    result = tidy(sympy.expand(quotient.xreplace({d: atom for atom, d in stand_in.items()})))
    return result if is_whole(result) else None


def _positive(a: Dim) -> Dim:
    if isinstance(a, int):
        return max(a, 0)
    low, high = interval(a)
    if low is not None and low >= 0:
        return a
    if high is not None and high <= 0:
        return 0
    parts = terms(a)
    common = math.gcd(*(int(c) for c, _ in parts)) if is_whole(a) else 1
    if common > 1:
        return mul(common, _positive(build([(c / common, m) for c, m in parts])))
    lead = min(((str(m), c) for c, m in parts if m != 1))[1]
    if lead < 0:
        return add(a, _positive(mul(-1, a)))
    return cast(sympy.Expr, Positive(a))


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger one."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else add(b, _positive(sub(a, b)))


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller one."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else sub(a, _positive(sub(a, b)))


def equal(a: Dim, b: Dim) -> bool:
    """Whether both are proved to be the same."""
    return a == b or (not (isinstance(a, int) and isinstance(b, int)) and sub(a, b) == 0)


def at_least(a: Dim, b: Dim) -> bool:
    """Whether ``a >= b`` is proved."""
    low = interval(sub(a, b))[0]
    return low is not None and low >= 0


def never_one(dim: Dim) -> bool:
    """Whether ``dim`` is proved to differ from 1."""
    if isinstance(dim, int):
        return dim != 1
    return math.gcd(*(int(c) for c, _ in terms(dim))) > 1 or at_least(dim, 2)


def divisible(dim: Dim, k: int) -> bool:
    """Whether ``dim`` is proved to be a multiple of ``k``."""
    if isinstance(dim, int):
        return dim % k == 0
    return all(c.denominator == 1 and _product_divisible(m, k // math.gcd(k, int(c))) for c, m in terms(dim))


def _product_divisible(factors: sympy.Expr, k: int) -> bool:
    return k == 1 or any(isinstance(f, Positive) and divisible(f.args[0], k) for f in sympy.Mul.make_args(factors))
