"""Arithmetic of dims against plain integers, and the canonical form."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from tilewright.optimizer.graph import dims
from tilewright.optimizer.graph.bounds import Bounds, interval
from tilewright.optimizer.graph.symbols import DimError, FloorDiv, Positive, add, evaluate, mul, size_symbol, sub, value_symbol

H, W, N, U = size_symbol("H"), size_symbol("W"), size_symbol("N"), value_symbol("u")


def test_static_sizes_are_plain_ints() -> None:
    for value in (add(2, 3), sub(2, 3), mul(2, 3), dims.floordiv(7, 2), dims.ceildiv(7, 2), dims.mod(-7, 3), dims.maximum(1, 2), sub(H, H), mul(H, 0)):
        assert type(value) is int


def test_strided_layers_stay_one_floor() -> None:
    size = H
    for _ in range(5):
        size = add(dims.floordiv(sub(add(size, 2), 3), 2), 1)
    assert str(size) == "floor((H + 31)/32)"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (add(dims.floordiv(sub(H, 1), 2), 1), dims.ceildiv(H, 2)),
        (dims.floordiv(mul(4, H), 6), dims.floordiv(mul(2, H), 3)),
        (dims.floordiv(add(mul(6, H), W), 3), add(mul(2, H), dims.floordiv(W, 3))),
        (mul(add(H, 1), add(W, 1)), add(mul(H, W), H, W, 1)),
        (dims.minimum(H, W), sub(add(H, W), dims.maximum(W, H))),
        (dims.maximum(mul(2, H), mul(2, W)), mul(2, dims.maximum(W, H))),
        (add(mul(32, dims.floordiv(H, 32)), dims.mod(H, 32)), H),
        (dims.floordiv(mul(N, H, 768), mul(N, H, 12)), 64),
        (dims.floordiv(mul(add(N, 1), add(H, 3)), add(H, 3)), add(N, 1)),
        (dims.minimum(H, add(H, dims.mod(mul(-1, H), 32))), H),
        (dims.floordiv(dims.floordiv(H, W), 1), FloorDiv(H, W)),
    ],
)
def test_equal_sizes_have_one_form(a: object, b: object) -> None:
    assert a == b
    assert dims.equal(a, b)


def test_different_sizes_are_not_equal() -> None:
    assert not dims.equal(H, W)
    assert not dims.equal(dims.floordiv(H, 2), dims.ceildiv(H, 2))


def test_divisible() -> None:
    assert dims.divisible(mul(8, H), 4)
    assert dims.divisible(add(mul(8, H), 12), 4)
    assert dims.divisible(mul(3, dims.maximum(mul(4, H), 8)), 12)
    assert not dims.divisible(add(mul(8, H), 2), 4)
    assert not dims.divisible(H, 2)
    assert dims.divisible(H, 1)


def test_bounds() -> None:
    assert interval(dims.mod(H, 32)) == (0, 31)
    assert interval(sub(H, dims.ceildiv(H, 2))) == (0, None)
    assert interval(sub(H, 1)) == (-1, None)
    assert interval(U) == (None, None)
    assert Bounds({"H": (3, 9)}).interval(dims.floordiv(H, 2)) == (1, 4)
    assert Bounds({"H": (3, 9), "W": (0, 2)}).interval(sub(mul(H, W), W)) == (-2, 18)
    assert Positive(H - 3) == dims.maximum(sub(H, 3), 0)


def test_evaluate_names_the_symbol_it_lacks() -> None:
    with pytest.raises(DimError, match="no value is given for the dim H"):
        evaluate(add(H, 1), {"W": 1})


def test_truncated_division_needs_the_sign_of_the_divisor() -> None:
    assert dims.truncdiv(H, sub(W, 1)) is None
    assert dims.truncdiv(H, 2) == dims.floordiv(H, 2)


OPERATIONS: dict[str, tuple[Callable, Callable[[int, int], int]]] = {
    "add": (add, lambda x, y: x + y),
    "sub": (sub, lambda x, y: x - y),
    "mul": (mul, lambda x, y: x * y),
    "floordiv": (dims.floordiv, lambda x, y: x // y),
    "ceildiv": (dims.ceildiv, lambda x, y: -(-x // y)),
    "mod": (dims.mod, lambda x, y: x % y),
    "maximum": (dims.maximum, max),
    "minimum": (dims.minimum, min),
    "truncdiv": (dims.truncdiv, lambda x, y: int(Fraction(x, y))),
}


def _random_expression(rng: random.Random, depth: int) -> tuple[object, Callable[[dict[str, int]], int]]:
    if depth == 0:
        leaf = rng.choice([H, W, N, U, rng.randint(-4, 9)])
        return leaf, lambda values: leaf if isinstance(leaf, int) else values[leaf.name]
    name = rng.choice(list(OPERATIONS))
    symbolic, plain = OPERATIONS[name]
    a, eval_a = _random_expression(rng, depth - 1)
    if name in ("floordiv", "mod", "truncdiv", "ceildiv"):
        number = rng.choice([1, 2, 3, 4, 7, 8])
        b, eval_b = (number, lambda values: number) if name == "ceildiv" or rng.random() < 0.7 else _random_expression(rng, 0)
    else:
        b, eval_b = _random_expression(rng, depth - 1)
    result = symbolic(a, b)
    if result is None:
        return a, eval_a
    return result, lambda values: plain(eval_a(values), eval_b(values))


def test_random_expressions_agree_with_integers_and_stay_in_their_bounds() -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    checked = 0
    for _ in range(400):
        try:
            expression, plain = _random_expression(rng, 3)
        except ZeroDivisionError:
            continue
        ranges = {"H": (rng.randint(0, 3), 20), "W": (0, rng.choice([5, None])), "u": (-5, 5)}
        low, high = Bounds(ranges).interval(expression)
        for _ in range(8):
            values = {"H": rng.randint(ranges["H"][0], 20), "W": rng.randint(0, 5), "N": rng.randint(0, 40), "u": rng.randint(-5, 5)}
            try:
                expected, got = plain(values), evaluate(expression, values)
            except (ZeroDivisionError, DimError):
                continue
            checked += 1
            assert got == expected, f"seed {seed}: {expression} with {values}"
            assert (low is None or low <= got) and (high is None or got <= high), f"seed {seed}: {expression} is {got}, bounds {low}..{high}"
    assert checked > 2000
