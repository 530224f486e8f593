"""Launch expressions: the same answers from optimizer.launch and from the op library."""

from __future__ import annotations

import json
import random
import secrets

import pytest

from oplib import REPOSITORY, library
from tilewright.optimizer.launch import (
    MAX_OPS,
    SMS,
    Expr,
    LaunchExprError,
    align,
    binary,
    ceildiv,
    const,
    dim,
    function,
    maximum,
    minimum,
    parse,
)

CASES = json.loads((REPOSITORY / "tests/vectors/launch_expr.json").read_text())["cases"]
KINDS = {"division by zero": "division by zero", "64-bit overflow": "overflow", "no such dim": "dim"}


def evaluate(text: str, dims: list[list[int]], sms: int = 1) -> int | str:
    """The value by optimizer.launch, or the kind of its error."""
    try:
        expression = parse(text)
    except LaunchExprError:
        return "syntax"
    try:
        return expression.evaluate(dims, sms)
    except LaunchExprError as error:
        return next(kind for words, kind in KINDS.items() if words in str(error))


def expected(case: dict[str, object]) -> object:
    return case["error"] if "error" in case else case["result"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["expr"][:40])
def test_vectors_python(case):
    assert evaluate(case["expr"], case.get("dims", []), case.get("sms", 1)) == expected(case)


def test_vectors_library():
    for case in CASES:
        assert library().evaluate(case["expr"], case.get("dims", []), case.get("sms", 1)) == expected(case), case


def random_expr(rng: random.Random, depth: int) -> Expr:
    """A random expression, built as planners build them (with folding)."""
    if depth == 0 or rng.random() < 0.15:
        small, large = const(rng.randint(-4, 9)), const(rng.choice([1, -1]) * rng.randrange(2**62))
        return rng.choice([small, small, large, dim(rng.randrange(2), rng.randrange(4)), dim(0, 1), SMS])
    a, b = random_expr(rng, depth - 1), random_expr(rng, depth - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice([ceildiv, align, maximum, minimum])(a, b)
    if kind == 1:
        return function("select", a, b, random_expr(rng, depth - 1))
    return binary(rng.choice(["+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!="]), a, b)


def test_random_expressions_agree():
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    outcomes: dict[object, int] = {}
    for _ in range(3000):
        try:
            text = str(random_expr(rng, rng.randint(1, 5)))
        except LaunchExprError:
            continue  # folding divided by zero
        dims = [[rng.choice([0, 1, 2, 7, 224, -3, 2**40]) for _ in range(4)] for _ in range(2)]
        here = evaluate(text, dims, 132)
        assert library().evaluate(text, dims, 132) == here, (text, dims)
        outcomes[here if isinstance(here, str) else "value"] = outcomes.get(here if isinstance(here, str) else "value", 0) + 1
    assert outcomes["value"] > 500 and outcomes["overflow"] > 50 and outcomes["division by zero"] > 50
    assert "dim" not in outcomes


def test_random_texts_agree():
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    tokens = [
        "1",
        "0",
        "23",
        "i0.0",
        "i1.3",
        "i2.0",
        "sms",
        "+",
        "-",
        "*",
        "//",
        "%",
        "<",
        "<=",
        "==",
        "!=",
        "(",
        ")",
        ",",
        "min(",
        "select(",
        "align(",
        "i",
        "/",
        " ",
    ]
    accepted = 0
    for _ in range(5000):
        text = "".join(rng.choice(tokens) for _ in range(rng.randint(1, 9)))
        here = evaluate(text, [[2, 3], [4, 5, 6, 7]], 132)
        assert library().evaluate(text, [[2, 3], [4, 5, 6, 7]], 132) == here, text
        accepted += here != "syntax"
    assert accepted > 50


def test_text_form_round_trips():
    rng = random.Random(5)
    for _ in range(500):
        try:
            text = str(random_expr(rng, 4))
        except LaunchExprError:
            continue
        if evaluate(text, [], 1) != "syntax":  # folding can go beyond the limits
            assert str(parse(text)) == text


def test_longest_chain_evaluates_within_the_recursion_limit():
    assert parse("+".join(["i0.0"] * (MAX_OPS + 1))).evaluate([[3]]) == 3 * (MAX_OPS + 1)


def test_constants_that_have_no_text_are_refused():
    for value in (2**63, -(2**63)):
        with pytest.raises(LaunchExprError, match="overflow"):
            const(value)
