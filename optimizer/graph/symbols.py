"""Arithmetic of tensor dims: integers, or sympy expressions over nonnegative integer symbols.

Every expression is kept in one canonical form, so that equal sizes compare equal: a sum of integer multiples of products of atoms. An
atom is a symbol, ``floor(a/b)`` (:class:`FloorDiv`) or ``max(a, 0)`` (:class:`Positive`); min, max, mod and rounded-up division
are spelt with these. Quotients of quotients collapse, so the size behind any number of strided layers stays one ``floor``.

Static sizes are plain Python ints and never meet sympy. This file holds the atoms, sums, products and evaluation; bounds.py
bounds expressions and dims.py divides, rounds and compares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeAlias, cast

import sympy

from ..errors import TilewrightError

Dim: TypeAlias = int | sympy.Expr

MAX_TERMS = 64  # a product of sums longer than this is left as it is


class DimError(TilewrightError):
    """A dim that cannot be evaluated: a symbol without a value, or division by zero."""


class FloorDiv(sympy.Function):  # type: ignore[misc]
    """``floor(a/b)`` over the integers; made by :func:`floordiv`."""

    nargs = 2
    is_integer = True

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        """Folds where both are numbers, so that ``subs`` works."""
        return a // b if a.is_Integer and b.is_Integer and b != 0 else None

    def _sympystr(self, printer: Any) -> str:
        a, b = (printer.doprint(x) for x in self.args)
        return f"floor({f'({a})' if self.args[0].is_Add else a}/{b if self.args[1].is_Atom else f'({b})'})"


class Positive(sympy.Function):  # type: ignore[misc]
    """``max(a, 0)``; made by :func:`maximum` and :func:`minimum`."""

    nargs = 1
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, a: sympy.Expr) -> sympy.Expr | None:
        """Folds numbers, so that ``subs`` works."""
        return sympy.Max(a, 0) if a.is_Integer else None

    def _sympystr(self, printer: Any) -> str:
        return f"max({printer.doprint(self.args[0])}, 0)"


def size_symbol(name: str) -> sympy.Symbol:
    """The symbol of a dim: an integer that is not negative (it may be 0)."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def value_symbol(name: str) -> sympy.Symbol:
    """The symbol of an integer that a tensor holds, of either sign."""
    return sympy.Symbol(name, integer=True)


def symbols_of(dim: Dim) -> set[sympy.Symbol]:
    """The symbols in ``dim``."""
    return set() if isinstance(dim, int) else set(dim.free_symbols)


def tidy(expression: sympy.Expr) -> Dim:
    """``expression``, as an int where it is one."""
    return int(expression) if expression.is_Integer else expression


def terms(dim: Dim) -> list[tuple[Fraction, sympy.Expr]]:
    """``dim`` as ``sum(c * m)``: a list of (coefficient, product of atoms), the product being 1 for the constant."""
    result = []
    for term in sympy.Add.make_args(sympy.sympify(dim)):
        coefficient, product = term.as_coeff_Mul()
        result.append((Fraction(int(coefficient.p), int(coefficient.q)), product))
    return result


def build(parts: list[tuple[Fraction, sympy.Expr]]) -> Dim:
    """The sum of (coefficient, product) pairs: what :func:`terms` takes apart."""
    return tidy(sympy.Add(*(sympy.Rational(c.numerator, c.denominator) * m for c, m in parts)))


def is_whole(dim: Dim) -> bool:
    """Whether every coefficient is an integer (shape values that passed through float tensors may have fractions)."""
    return isinstance(dim, int) or all(c.denominator == 1 for c, _ in terms(dim))


def add(*dims: Dim) -> Dim:
    """The sum."""
    if all(isinstance(d, int) for d in dims):
        return sum(cast(tuple[int, ...], dims))
    return tidy(sympy.Add(*dims))


def sub(a: Dim, b: Dim) -> Dim:
    """``a - b``."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return add(a, mul(-1, b))


def mul(*dims: Dim) -> Dim:
    """The product, multiplied out."""
    number = math.prod(d for d in dims if isinstance(d, int))
    rest = [d for d in dims if not isinstance(d, int)]
    if not rest or number == 0:
        return number
    parts = [sympy.Integer(number)]
    for factor in rest:
        new = sympy.Add.make_args(factor)
        parts = [p * n for p in parts for n in new] if len(parts) * len(new) <= MAX_TERMS else [sympy.Add(*parts) * factor]
    return tidy(sympy.Add(*parts))


def scale(dim: Dim, factor: Fraction) -> Dim:
    """``dim * factor``, which may have fractions as coefficients."""
    return build([(c * factor, m) for c, m in terms(dim)])


def number(value: float) -> Dim:
    """The exact value of a finite float."""
    top, bottom = float(value).as_integer_ratio()
    return top if bottom == 1 else sympy.Rational(top, bottom)


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    """The product of all ``dims``; 1 for none."""
    return mul(1, *dims)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The size for given symbol values.

    Raises:
        DimError: a symbol has no value, or a division by zero.
    """
    if isinstance(dim, int):
        return dim
    result = Fraction(0)
    for c, m in terms(dim):
        number = 1
        for factor in sympy.Mul.make_args(m):
            base, power = factor.as_base_exp()
            number *= _evaluate_atom(base, values) ** int(power)
        result += c * number
    if result.denominator != 1:
        raise DimError(f"{dim} is not an integer for {dict(values)}")
    return int(result)


def _evaluate_atom(atom: sympy.Expr, values: Mapping[str, int]) -> int:
    if atom.is_Integer:
        return int(atom)
    if atom.is_Symbol:
        if atom.name not in values:
            raise DimError(f"no value is given for the dim {atom.name}")
        return values[atom.name]
    args = [evaluate(tidy(a), values) for a in atom.args]
    if isinstance(atom, Positive):
        return max(args[0], 0)
    if isinstance(atom, FloorDiv):
        if args[1] == 0:
            raise DimError(f"{atom} divides by zero for {dict(values)}")
        return args[0] // args[1]
    return evaluate(tidy(sympy.expand(atom)), values)
