"""Lower and upper bounds of dims, from what symbols can be and, where they are given, the user's ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TypeAlias, cast

import sympy

from .symbols import Dim, FloorDiv, Positive, add, mul, sub, terms, tidy

Bound: TypeAlias = int | None
Ranges: TypeAlias = Mapping[str, tuple[Bound, Bound]]
_Span: TypeAlias = tuple[Fraction | None, Fraction | None]

_MAX_RELAXATIONS = 4  # floor and max terms of one sum that a bound looks through
_MAX_MEMO = 20000


class Bounds:
    """Bounds of expressions whose symbols lie in ``ranges`` (by name); other symbols are at least 0 if they are sizes, else free."""

    def __init__(self, ranges: Ranges | None = None) -> None:
        self.ranges = dict(ranges or {})
        self._memo: dict[tuple[Dim, int], Fraction | None] = {}

    def interval(self, dim: Dim) -> tuple[Bound, Bound]:
        """The lowest and the highest value that ``dim`` may take, None where none is known.

        Terms of a sum count as independent, so the result may be wider than the truth, never narrower.
        """
        if isinstance(dim, int):
            return dim, dim
        low, high = self._lowest(dim, _MAX_RELAXATIONS), self._lowest(mul(-1, dim), _MAX_RELAXATIONS)
        return None if low is None else math.ceil(low), None if high is None else -math.ceil(high)

    def _lowest(self, dim: Dim, depth: int) -> Fraction | None:
        key = (dim, depth)
        if key not in self._memo:
            if len(self._memo) > _MAX_MEMO:
                self._memo.clear()
            self._memo[key] = self._find_lowest(dim, depth)
        return self._memo[key]

    def _find_lowest(self, dim: Dim, depth: int) -> Fraction | None:
        """The better of: each term by itself; one floor or max replaced by a linear bound of it."""
        parts = terms(dim)
        best: Fraction | None = Fraction(0)
        for c, m in parts:
            low, high = self._span(m)
            end = low if c > 0 else high
            best = None if best is None or end is None else best + c * end
        choice = next(((c, m) for c, m in parts if isinstance(m, (FloorDiv, Positive))), None) if depth else None
        if choice is None:
            return best
        c, atom = choice
        rest = sub(dim, tidy(_rational(c) * atom))
        candidates = [best, *(self._lowest(add(rest, line), depth - 1) for line in self._lines_below(c, atom))]
        return max((b for b in candidates if b is not None), default=None)

    def _lines_below(self, c: Fraction, atom: sympy.Expr) -> list[Dim]:
        """Linear expressions that are at most ``c * atom``."""
        inner, factor = atom.args[0], _rational(c)
        if isinstance(atom, FloorDiv):
            if not atom.args[1].is_Integer:
                return []
            k = int(atom.args[1])
            return [tidy(sympy.expand(factor * (inner - (k - 1 if c > 0 else 0)) / k))]
        if c > 0:
            return [tidy(sympy.expand(factor * inner)), 0]
        low = self._lowest(inner, 1)  # max(x, 0) <= x - min(low, 0) where x >= low
        return [] if low is None else [tidy(sympy.expand(factor * (inner - _rational(min(low, Fraction(0))))))]

    def _span(self, factors: sympy.Expr) -> _Span:
        result: _Span = (Fraction(1), Fraction(1))
        for factor in sympy.Mul.make_args(factors):
            base, power = factor.as_base_exp()
            if not (power.is_Integer and power > 0):
                return None, None
            for _ in range(int(power)):
                result = _times(result, self._atom(base))
        return result

    def _atom(self, atom: sympy.Expr) -> _Span:
        low: Bound
        high: Bound
        if atom.is_Symbol:
            low, high = self.ranges.get(atom.name, (None, None))
            low = 0 if low is None and atom.is_nonnegative else low
        elif atom.is_Integer:
            low = high = int(atom)
        elif isinstance(atom, Positive):
            low, high = self.interval(tidy(atom.args[0]))
            low, high = max(low or 0, 0), None if high is None else max(high, 0)
        elif isinstance(atom, FloorDiv):
            low, high = _quotient(self.interval(tidy(atom.args[0])), self.interval(tidy(atom.args[1])))
        else:
            low = high = None
        return None if low is None else Fraction(low), None if high is None else Fraction(high)


def _rational(c: Fraction) -> sympy.Rational:
    return sympy.Rational(c.numerator, c.denominator)


def _quotient(top: tuple[Bound, Bound], bottom: tuple[Bound, Bound]) -> tuple[Bound, Bound]:
    if bottom[0] is None or bottom[0] < 0:
        return None, None
    least = max(bottom[0], 1)  # a divisor of 0 fails at run time
    low = None if top[0] is None else top[0] // least if top[0] < 0 else 0 if bottom[1] is None else top[0] // max(bottom[1], 1)
    high = None if top[1] is None else top[1] // least if top[1] >= 0 else -1 if bottom[1] is None else top[1] // max(bottom[1], 1)
    return low, high


def _times(a: _Span, b: _Span) -> _Span:
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        none = Fraction(0) if a[1] == 0 or b[1] == 0 else None
        return a[0] * b[0], none if a[1] is None or b[1] is None else a[1] * b[1]
    if None in a or None in b:
        return None, None
    corners = [cast(Fraction, x) * cast(Fraction, y) for x in a for y in b]
    return min(corners), max(corners)


_FREE = Bounds()


def interval(dim: Dim) -> tuple[Bound, Bound]:
    """Bounds that hold on every input of the model: nothing but the signs of sizes is used."""
    return _FREE.interval(dim)
