"""Small encoders in the spellings that exporters have for attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from rule_harness import model, node

WIDTH, HEADS = 32, 4
HEAD = WIDTH // HEADS
KINDS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64}


@dataclass
class Encoder:
    """Nodes and constants of a model while it is written; names are made unique by ``prefix``."""

    dtype: int = TensorProto.FLOAT
    opset: int = 17
    seed: int = 0
    prefix: str = ""
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def op(self, op: str, *inputs: str, outputs: int = 1, out: str = "", **attrs: object) -> str:
        """A node; returns its first output, the others are called the same with ``_1``, ``_2``."""
        name = out or f"{self.prefix}t{len(self.nodes)}"
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(node(op, inputs, names, name=f"{self.prefix}{op}_{len(self.nodes)}", **attrs))
        return name

    def value(self, array: object, dtype: int | None = None) -> str:
        """A constant of the model's type, or an integer or boolean one."""
        values = np.array(array)
        if values.dtype.kind == "f":
            values = values.astype(KINDS[dtype or self.dtype])
        name = f"{self.prefix}c{len(self.constants)}"
        self.constants[name] = values
        return name

    def random(self, *shape: int, scale: float = 1.0) -> str:
        """A random weight."""
        self.seed += 1
        return self.value(np.random.default_rng(self.seed).standard_normal(shape) * scale / max(1, shape[0]) ** 0.5)

    def linear(self, x: str, columns: int, rows: int = WIDTH, bias: bool = True) -> str:
        """A MatMul, and the Add of a bias."""
        product = self.op("MatMul", x, self.random(rows, columns, scale=1.5))
        return self.op("Add", product, self.random(columns, scale=0.5)) if bias else product

    def heads(self, x: str, perm: Sequence[int] = (0, 2, 1, 3)) -> str:
        """``[batch, sequence, width]`` as ``[batch, heads, sequence, size]``, or as ``perm`` says."""
        return self.op("Transpose", self.op("Reshape", x, self.value([0, 0, HEADS, HEAD])), perm=list(perm))

    def joined(self, mixed: str) -> str:
        """Heads side by side again."""
        return self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.value([0, 0, WIDTH]))

    def norm(self, x: str) -> str:
        """A LayerNormalization over the last axis."""
        return self.op("LayerNormalization", x, self.random(WIDTH), self.random(WIDTH), axis=-1, epsilon=1e-5)

    def gelu(self, x: str) -> str:
        """The erf spelling of PyTorch's exporter."""
        inner = self.op("Add", self.op("Erf", self.op("Div", x, self.value(np.sqrt(2.0)))), self.value(1.0))
        return self.op("Mul", self.op("Mul", x, inner), self.value(0.5))

    def split(self, x: str, parts: int = 3) -> list[str]:
        """Equal parts along the last axis, by Split."""
        sizes = [WIDTH] * parts
        old = self.opset < 13
        first = self.op("Split", x, *([] if old else [self.value(sizes)]), outputs=parts, axis=2, **({"split": sizes} if old else {}))
        return [first, *(f"{first}_{i}" for i in range(1, parts))]

    def build(self, inputs: Mapping[str, Sequence[int | str]], outputs: Sequence[str], dtypes: Mapping[str, int] | None = None) -> ModelProto:
        """The model."""
        return model(self.nodes, inputs, outputs, self.constants, opset=self.opset, dtype=self.dtype, dtypes=dtypes)


@dataclass(frozen=True)
class Spelling:
    """How one attention is written.

    Attributes:
        packed: ``separate``, ``split``, ``slices``, ``gather`` (one product, taken apart) or ``interleaved`` (that too, each head's three together).
        scale: Where the factor is: ``div``, ``mul``, ``query``, ``key``, ``both``, ``none``, ``late`` (after the mask) or ``vector`` (no scalar).
        mask: ``none``, ``add`` [batch, 1, 1, keys], ``wide`` [1, heads, queries, keys], ``rank3``, ``two``, ``where``, ``where_soft``, ``where_inverted``,
            ``tril``, ``triu``, ``range`` (causal over a Range), ``add_tril``, ``strict`` (the diagonal hidden too).
        cast: Whether the softmax is in float32.
        key_once: Whether one Transpose makes the keys.
        batch, length: Sizes, symbols by default.
    """

    packed: str = "separate"
    scale: str = "div"
    mask: str = "none"
    cast: bool = False
    key_once: bool = False
    dtype: int = TensorProto.FLOAT
    opset: int = 17
    batch: int | str = "batch"
    length: int | str = "length"


def attention(spelling: Spelling = Spelling(), **changes: object) -> ModelProto:
    """Attention with its projections, input ``x`` [batch, length, width] (and ``mask``), output ``y``."""
    s = replace(spelling, **changes)  # type: ignore[arg-type]
    e = Encoder(s.dtype, s.opset)
    query, key, value = _projections(e, s, "x")
    lowest = float(np.finfo(KINDS[s.dtype]).min)
    if s.scale in ("query", "both"):
        query = e.op("Mul", query, e.value(HEAD**-0.5 if s.scale == "query" else HEAD**-0.25))
    if s.scale == "vector":
        query = e.op("Mul", query, e.value(np.linspace(0.1, 0.5, HEAD)))
    if s.scale in ("key", "both"):
        key = e.op("Mul", key, e.value(HEAD**-0.5 if s.scale == "key" else HEAD**-0.25))
    scores = e.op("MatMul", query, key)
    if s.scale in ("div", "mul"):
        scores = e.op(s.scale.capitalize(), scores, e.value(HEAD**0.5 if s.scale == "div" else HEAD**-0.5))
    if s.cast:
        scores = e.op("Cast", scores, to=TensorProto.FLOAT)
    scores = _masked(e, s, scores, lowest)
    if s.scale == "late":
        scores = e.op("Mul", scores, e.value(HEAD**-0.5))
    weights = e.op("Softmax", scores, axis=3 if s.opset < 13 else -1)
    if s.cast:
        weights = e.op("Cast", weights, to=s.dtype)
    mixed = e.joined(e.op("MatMul", weights, value))
    e.op("Add", e.op("MatMul", mixed, e.random(WIDTH, WIDTH)), e.random(WIDTH), out="y")
    inputs: dict[str, Sequence[int | str]] = {"x": [s.batch, s.length, WIDTH]}
    shape = {"rank3": [HEADS, s.length, s.length], "wide": [1, HEADS, s.length, s.length]}.get(s.mask, [s.batch, 1, 1, s.length])
    if s.mask in ("add", "wide", "rank3", "two", "where", "where_soft", "where_inverted"):
        inputs["mask"] = shape
    return e.build(inputs, ["y"], {"mask": TensorProto.BOOL} if s.mask.startswith("where") else {})


def _projections(e: Encoder, s: Spelling, x: str) -> tuple[str, str, str]:
    """Queries and values as [batch, heads, length, size], keys as [batch, heads, size, length]."""
    if s.packed in ("gather", "interleaved"):
        shape, perm = ([0, 0, 3, HEADS, HEAD], [2, 0, 3, 1, 4]) if s.packed == "gather" else ([0, 0, HEADS, 3, HEAD], [3, 0, 2, 1, 4])
        packed = e.op("Transpose", e.op("Reshape", e.linear(x, 3 * WIDTH), e.value(shape)), perm=perm)
        query, key, value = (e.op("Gather", packed, e.value(i), axis=0) for i in range(3))
        return query, e.op("Transpose", key, perm=[0, 1, 3, 2]), value
    if s.packed == "separate":
        parts = [e.linear(x, WIDTH) for _ in range(3)]
    elif s.packed == "split":
        parts = e.split(e.linear(x, 3 * WIDTH))
    else:
        packed = e.linear(x, 3 * WIDTH)
        parts = [e.op("Slice", packed, e.value([i * WIDTH]), e.value([(i + 1) * WIDTH]), e.value([2])) for i in range(3)]
    key = e.heads(parts[1], (0, 2, 3, 1)) if s.key_once else e.op("Transpose", e.heads(parts[1]), perm=[0, 1, 3, 2])
    return e.heads(parts[0]), key, e.heads(parts[2])


def _masked(e: Encoder, s: Spelling, scores: str, lowest: float) -> str:
    if s.mask == "none":
        return scores
    kind = TensorProto.FLOAT if s.cast else s.dtype
    if s.mask in ("add", "wide", "rank3"):
        return e.op("Add", "mask", scores)
    if s.mask == "two":
        return e.op("Add", e.op("Add", scores, "mask"), "mask")
    if s.mask.startswith("where"):
        fill = e.value(-1e4 if s.mask == "where_soft" else lowest, kind)
        return e.op("Where", "mask", *((fill, scores) if s.mask == "where_inverted" else (scores, fill)))
    if s.mask == "range":
        return e.op("Where", _counted(e), scores, e.value(lowest, kind))
    assert isinstance(s.length, int)
    seen = np.tri(s.length, k=-1 if s.mask == "strict" else 0, dtype=bool)
    if s.mask == "add_tril":
        return e.op("Add", scores, e.value(np.where(seen, 0.0, -6e4), kind))
    if s.mask == "triu":
        return e.op("Where", e.value(~seen), e.value(lowest, kind), scores)
    return e.op("Where", e.value(seen[None, None]), scores, e.value(lowest, kind))


def _counted(e: Encoder) -> str:
    """Whether a key is not after a query, over positions that are counted at run time."""
    length = e.op("Gather", e.op("Shape", "x"), e.value(1), axis=0)
    positions = e.op("Range", e.value(0), length, e.value(1))
    keys, queries = (e.op("Unsqueeze", positions, e.value(axes)) for axes in ([0, 1, 2], [0, 1, 3]))
    return e.op("LessOrEqual", keys, queries)


def encoder(layers: int = 2, dtype: int = TensorProto.FLOAT, pre: bool = False, batch: int | str = "batch", length: int | str = "length") -> ModelProto:
    """An encoder of ``layers``: attention with an added mask, residual sums, layer norms (before what they serve with ``pre``), a GELU between products."""
    e = Encoder(dtype)
    x = e.norm("x")
    for layer in range(layers):
        e.prefix = f"layer{layer}/"
        y = e.norm(x) if pre else x
        query, key, value = _projections(e, Spelling(), y)
        scores = e.op("Add", e.op("Div", e.op("MatMul", query, key), e.value(HEAD**0.5)), "mask")
        mixed = e.joined(e.op("MatMul", e.op("Softmax", scores, axis=-1), value))
        x = e.op("Add", e.linear(mixed, WIDTH), x)
        y = e.norm(x)
        x = x if pre else y
        z = e.op("Add", e.linear(e.gelu(e.linear(y, 2 * WIDTH)), WIDTH, 2 * WIDTH), x)
        x = z if pre else e.norm(z)
    e.nodes[-1].output[0] = "y"
    made = e.build({"x": [batch, length, WIDTH], "mask": [batch, 1, 1, length]}, ["y"])
    made.doc_string = "an encoder"
    helper.set_model_props(made, {"vocabulary": "a b c"})
    made.graph.node[0].doc_string = "stays"
    return made
