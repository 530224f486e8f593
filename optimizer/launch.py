"""Launch plans: what a custom node does at run time, as expressions of its input dims (long because the op library shares all of it).

A :class:`LaunchPlan` is written into the model as text and evaluated by the op library (C++) at every run. The grammar
is shared: ``tests/vectors/launch_expr.json`` holds the cases that both sides evaluate.

Expression grammar, over 64-bit integers::

    expr    := sum (("<" | "<=" | ">" | ">=" | "==" | "!=") sum)?        comparison gives 1 or 0
    sum     := product (("+" | "-") product)*
    product := unary (("*" | "//" | "%") unary)*                        // and % round to minus infinity, as in Python
    unary   := "-" unary | primary
    primary := INT | "i" INT "." INT | "sms" | NAME "(" expr ("," expr)* ")" | "(" expr ")"
    NAME    := min | max | ceildiv | align | select

``i2.0`` is dim 0 of the node's input 2, ``sms`` the number of multiprocessors of the device, ``align(a, b)`` rounds
``a`` up to a multiple of ``b``, ``select(c, a, b)`` is ``a`` where ``c`` is not 0 and evaluates both. Overflow and division by zero are
errors. There is no white space in the text form. Limits: ``MAX_TEXT`` characters, ``MAX_DEPTH`` brackets and signs inside each other,
``MAX_OPS`` operators, signs and functions, an INT below 2**63, ``MAX_INPUT`` and ``MAX_AXIS`` in a dim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

from .errors import TilewrightError

ExprLike = Union["Expr", int]

_PRECEDENCE = {"<": 1, "<=": 1, ">": 1, ">=": 1, "==": 1, "!=": 1, "+": 2, "-": 2, "*": 3, "//": 3, "%": 3}
_ARITY = {"min": 2, "max": 2, "ceildiv": 2, "align": 2, "select": 3}
_TOKEN = re.compile(r"i([0-9]+)\.([0-9]+)|([0-9]+)|(sms)|(min|max|ceildiv|align|select)\(|(//|<=|>=|==|!=|[-+*%<>(),])")
_INT64 = 2**63
MAX_DEPTH = 64
MAX_TEXT = 4096
MAX_OPS = 256  # bounds the recursion of everything that walks an expression
MAX_INPUT = 9999
MAX_AXIS = 99


class LaunchExprError(TilewrightError):
    """A launch expression that cannot be parsed or evaluated; the text says which and why."""


@dataclass(frozen=True)
class Expr:
    """One node of a launch expression; build with :func:`dim`, integers and the usual operators."""

    op: str
    args: tuple[Expr, ...] = ()
    value: int = 0  # of a constant; of a dim: input index
    axis: int = 0

    def __add__(self, other: ExprLike) -> Expr:
        return binary("+", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("+", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("-", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("-", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("*", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("*", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return binary("//", self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary("%", self, other)

    def compare(self, op: str, other: ExprLike) -> Expr:
        """``self op other`` with ``op`` one of ``< <= > >= == !=``; 1 or 0."""
        return binary(op, self, other)

    def __str__(self) -> str:
        return self._text(0)

    def _text(self, outer: int) -> str:
        if self.op == "const":
            return str(self.value) if self.value >= 0 else f"({self.value})" if outer else str(self.value)
        if self.op == "dim":
            return f"i{self.value}.{self.axis}"
        if self.op == "sms":
            return "sms"
        if self.op in _ARITY:
            return f"{self.op}({','.join(a._text(0) for a in self.args)})"
        mine = _PRECEDENCE[self.op]
        # NOTE: every operator is written left-associative, so only the right operand needs brackets at equal precedence;
        # comparisons do not chain, so both of theirs do.
        text = self.args[0]._text(mine + (mine == 1)) + self.op + self.args[1]._text(mine + 1)
        return f"({text})" if outer > mine else text

    def evaluate(self, dims: Sequence[Sequence[int]], sms: int = 1) -> int:
        """The value for input shapes ``dims`` (one sequence of ints an input) on a device of ``sms`` multiprocessors.

        Raises:
            LaunchExprError: missing dim, division by zero or 64-bit overflow.
        """
        if self.op == "const":
            return self.value
        if self.op == "sms":
            return sms
        if self.op == "dim":
            try:
                return int(dims[self.value][self.axis])
            except IndexError:
                raise LaunchExprError(f"launch expression {self}: the node has no such dim") from None
        args = [a.evaluate(dims, sms) for a in self.args]
        return _apply(self.op, args, self)


def _checked_div(a: int, b: int) -> int:
    if b == 0:
        raise ZeroDivisionError
    return a // b


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": _checked_div,
    "%": lambda a, b: a - b * _checked_div(a, b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "min": min,
    "max": max,
    "ceildiv": lambda a, b: -_checked_div(-a, b),
    "align": lambda a, b: -_checked_div(-a, b) * b,
    "select": lambda c, a, b: a if c else b,
}


def _apply(op: str, args: Sequence[int], where: object) -> int:
    try:
        result = _FUNCTIONS[op](*args)
    except ZeroDivisionError:
        raise LaunchExprError(f"launch expression {where}: division by zero") from None
    if not -_INT64 <= result < _INT64:
        raise LaunchExprError(f"launch expression {where}: 64-bit overflow")
    return result


def const(value: int) -> Expr:
    """The integer ``value``.

    Raises:
        LaunchExprError: a value that the text form cannot spell; -2**63 is none either.
    """
    if not -_INT64 < value < _INT64:
        raise LaunchExprError(f"launch expression {value}: 64-bit overflow")
    return Expr("const", value=int(value))


def dim(input_index: int, axis: int) -> Expr:
    """Dim ``axis`` of the node's input ``input_index`` at run time."""
    return Expr("dim", value=input_index, axis=axis)


SMS = Expr("sms")


def expr(value: ExprLike) -> Expr:
    """``value`` as an expression."""
    return value if isinstance(value, Expr) else const(value)


def binary(op: str, left: ExprLike, right: ExprLike) -> Expr:
    """``left op right``, folded where both are constants and where a neutral element is involved."""
    return function(op, left, right)


def function(name: str, *args: ExprLike) -> Expr:
    """``name(args...)``, folded where it is known without the dims."""
    nodes = tuple(expr(a) for a in args)
    if all(n.op == "const" for n in nodes):
        return const(_apply(name, [n.value for n in nodes], name))
    a, b = nodes[0], nodes[-1]
    zero, one = const(0), const(1)
    if (name == "+" and b == zero) or (name == "-" and b == zero) or (name in ("*", "//", "ceildiv", "align") and b == one):
        return a
    if (name == "+" and a == zero) or (name == "*" and a == one):
        return b
    if name == "*" and zero in (a, b):
        return zero
    if name in ("min", "max") and a == b:
        return a
    if b.op == "const" and a.args and a.args[-1].op == "const":  # (x + 2) - 3 is x - 1, (x * 2) * 3 is x * 6
        inner = a.args[-1].value
        if name in ("+", "-") and a.op in ("+", "-"):
            total = (inner if a.op == "+" else -inner) + (b.value if name == "+" else -b.value)
            return function("+", a.args[0], total) if total >= 0 else function("-", a.args[0], -total)
        if name == a.op == "*":
            return function("*", a.args[0], inner * b.value)
    return Expr(name, nodes)


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """``a / b`` rounded up."""
    return function("ceildiv", a, b)


def align(a: ExprLike, b: ExprLike) -> Expr:
    """``a`` rounded up to a multiple of ``b``."""
    return function("align", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The larger of two expressions."""
    return function("max", a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The smaller of two expressions."""
    return function("min", a, b)


def parse(text: str) -> Expr:
    """The expression that ``text`` spells.

    Raises:
        LaunchExprError: text outside the grammar or the limits.
    """
    if len(text) > MAX_TEXT:
        raise LaunchExprError(f"launch expression of {len(text)} characters; at most {MAX_TEXT} are allowed")
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise LaunchExprError(f"launch expression {text!r}: unexpected {text[position]!r} at {position}")
        tokens.append(match)
        position = match.end()
    return _Parser(text, tokens).run()


class _Parser:
    def __init__(self, text: str, tokens: list[re.Match[str]]) -> None:
        self.text, self.tokens, self.at, self.depth, self.ops = text, tokens, 0, 0, 0

    def run(self) -> Expr:
        result = self.level(1)
        if self.at != len(self.tokens):
            raise self.error(f"unexpected {self.tokens[self.at].group()!r}")
        return result

    def error(self, what: str) -> LaunchExprError:
        return LaunchExprError(f"launch expression {self.text!r}: {what}")

    def peek(self) -> str:
        return self.tokens[self.at].group() if self.at < len(self.tokens) else ""

    def take(self) -> re.Match[str]:
        if self.at == len(self.tokens):
            raise self.error("it ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def count(self) -> None:
        self.ops += 1
        if self.ops > MAX_OPS:
            raise self.error(f"more than {MAX_OPS} operations")

    def level(self, precedence: int) -> Expr:
        if precedence > 3:
            return self.unary()
        left = self.level(precedence + 1)
        while _PRECEDENCE.get(self.peek()) == precedence:
            op = self.take().group()
            left = Expr(op, (left, self.level(precedence + 1)))
            self.count()
            if precedence == 1:
                break
        return left

    def unary(self) -> Expr:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH}")
        if self.peek() == "-":
            self.take()
            inner = self.unary()
            self.count()
            result = const(-inner.value) if inner.op == "const" else Expr("-", (const(0), inner))
        else:
            result = self.primary()
        self.depth -= 1
        return result

    def primary(self) -> Expr:
        token = self.take()
        input_index, axis, number, sms, name, symbol = token.groups()
        if input_index is not None:
            if int(input_index) > MAX_INPUT or int(axis) > MAX_AXIS:
                raise self.error(f"{token.group()} is beyond i{MAX_INPUT}.{MAX_AXIS}")
            return dim(int(input_index), int(axis))
        if number is not None:
            if int(number) >= _INT64:
                raise self.error(f"{number} does not fit in 64 bits")
            return const(int(number))
        if sms:
            return SMS
        if name:
            args = [self.level(1)]
            while self.peek() == ",":
                self.take()
                args.append(self.level(1))
            self.expect(")")
            if len(args) != _ARITY[name]:
                raise self.error(f"{name} takes {_ARITY[name]} arguments, not {len(args)}")
            self.count()
            return Expr(name, tuple(args))
        if symbol == "(":
            inner = self.level(1)
            self.expect(")")
            return inner
        raise self.error(f"unexpected {symbol!r}")

    def expect(self, symbol: str) -> None:
        if self.peek() != symbol:
            raise self.error(f"{symbol!r} expected at {self.peek() or 'the end'!r}")
        self.take()


@dataclass(frozen=True)
class Arg:
    """One kernel argument: ``kind`` in/out/ws (device pointers, ``index`` and byte ``offset``), i32/i64 (``offset``), f32 (``number``) or null."""

    kind: str
    index: int = 0
    offset: Expr = const(0)
    number: float = 0.0

    def __str__(self) -> str:
        if self.kind == "null":
            return "null"
        if self.kind in ("i32", "i64"):
            return f"{self.kind} {self.offset}"
        if self.kind == "f32":
            return f"f32 {self.number!r}"
        return f"{self.kind} {self.index} {self.offset}"


def arg_in(index: int, offset: ExprLike = 0) -> Arg:
    """Device pointer of the node's input ``index`` plus ``offset`` bytes."""
    return Arg("in", index, expr(offset))


def arg_out(index: int, offset: ExprLike = 0) -> Arg:
    """Device pointer of the node's output ``index`` plus ``offset`` bytes."""
    return Arg("out", index, expr(offset))


def arg_scratch(slot: int, offset: ExprLike = 0) -> Arg:
    """Device pointer of workspace slot ``slot`` plus ``offset`` bytes."""
    return Arg("ws", slot, expr(offset))


def arg_i32(value: ExprLike) -> Arg:
    """A 32-bit integer; a value outside int32 is an error at run time that names the node."""
    return Arg("i32", offset=expr(value))


NULL = Arg("null")


@dataclass(frozen=True)
class Output:
    """Dtype name (f32, f16, ...) and dims of one output of the node."""

    dtype: str
    dims: tuple[Expr, ...]


@dataclass(frozen=True)
class Launch:
    """One kernel launch. It is skipped where ``when`` is 0 or a grid dim is 0. ``args`` are packed in order with natural alignment."""

    image: int
    kernel: str
    grid: tuple[Expr, Expr, Expr]
    block: int
    smem: Expr
    args: tuple[Arg, ...]
    when: Expr = const(1)
    pdl: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """What one custom node does: outputs to allocate, workspace slots in bytes, images by digest, launches in order."""

    outputs: tuple[Output, ...]
    scratch: tuple[Expr, ...]
    images: tuple[str, ...]
    launches: tuple[Launch, ...] = field(default=())

    def to_text(self) -> str:
        """The stable text form that the model carries; one statement a line, tokens separated by one space.

        ::

            tilewright 1
            output f16 i0.0 i0.1 64
            scratch i0.0*4096
            image <64 hex digits>
            launch <image index> <kernel name> <block threads> <smem bytes> <grid x> <grid y> <grid z>
            when i0.0>4
            pdl
            arg in 0 0
            arg i32 i0.0

        ``when``, ``pdl`` and ``arg`` lines belong to the launch above them.
        """
        lines = ["tilewright 1"]
        lines += [" ".join(["output", o.dtype, *map(str, o.dims)]) for o in self.outputs]
        lines += [f"scratch {s}" for s in self.scratch]
        lines += [f"image {digest}" for digest in self.images]
        for launch in self.launches:
            lines.append(" ".join(["launch", str(launch.image), launch.kernel, str(launch.block), str(launch.smem), *map(str, launch.grid)]))
            if launch.when != const(1):
                lines.append(f"when {launch.when}")
            if launch.pdl:
                lines.append("pdl")
            lines += [f"arg {a}" for a in launch.args]
        return "\n".join(lines) + "\n"

    def map_images(self, digests: Mapping[str, str]) -> LaunchPlan:
        """The same plan with every image name replaced by ``digests[name]``."""
        return LaunchPlan(self.outputs, self.scratch, tuple(digests[i] for i in self.images), self.launches)
