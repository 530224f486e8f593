"""Products by constant weights: random models with what follows them, how they are fed, and their lowered plans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from plan_harness import Planned
from rule_harness import model, node, weights
from tilewright.optimizer.lower.lowered import LoweredRegion

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
ROWS = [(1, 1), (3, 5), (2, 130)]  # of the two leading axes
STEPS = [("Add", "b"), ("Add", "r"), ("Mul", "r"), ("Relu", ""), ("Sigmoid", "")]


def linear(depth: int = 16, columns: int = 24, *, dtype: int = FLOAT, op: str = "MatMul", tail: tuple[NodeProto, ...] = (), **attrs: object) -> ModelProto:
    """x [N, L, depth] (a matrix for Gemm) times a constant, then ``tail``, which reads ``y`` and ends in ``out``."""
    numpy_type = np.float16 if dtype == HALF else np.float32
    shape = (columns, depth) if attrs.get("transB") else (depth, columns)
    constants = {"w": weights(*shape, dtype=numpy_type), "b": weights(columns, seed=1, dtype=numpy_type), "one": np.ones((), numpy_type)}
    x = ("N", depth) if op == "Gemm" else ("N", "L", depth)
    inputs = ["x", "w", "b"] if op == "Gemm" else ["x", "w"]
    nodes = [node(op, inputs, "y", **attrs), *(tail or (node("Identity", ["y"], "out"),))]
    extra = {"r": (*x[:-1], columns)} if any("r" in n.input for n in tail) else {}
    return model(nodes, {"x": x, **extra}, ["out"], constants, dtype=dtype)


@dataclass
class Product:
    """A random product with a random tail, and how it is fed."""

    made: ModelProto
    dtype: int
    depth: int
    columns: int
    operand: bool
    gemm: bool

    def feeds(self, rows: tuple[int, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
        lead = (rows[0] * rows[1],) if self.gemm else rows
        arrays = {"x": (*lead, self.depth)} | ({"r": (*lead, self.columns)} if self.operand else {})
        return {k: rng.standard_normal(s).astype(np.float16 if self.dtype == HALF else np.float32) for k, s in arrays.items()}


def random_product(seed: int) -> Product:
    rng = np.random.default_rng(seed)
    dtype = [HALF, FLOAT][seed % 2]
    depth = int(rng.choice([2, 6, 20, 64, 200, 1024])) + (int(rng.integers(0, 2)) if dtype == FLOAT else 0)
    columns = int(rng.choice([1, 3, 8, 30, 65, 128, 257]))
    gemm = bool(rng.random() < 0.3)
    tail, last = [], "y"
    for i in range(int(rng.integers(0, 4))):
        op, other = STEPS[int(rng.integers(len(STEPS)))]
        tail.append(node(op, [last, other] if other else [last], f"t{i}"))
        last = f"t{i}"
    tail.append(node("Identity", [last], "out"))
    made = linear(depth, columns, dtype=dtype, op="Gemm" if gemm else "MatMul", tail=tuple(tail), **({"transB": int(rng.integers(0, 2))} if gemm else {}))
    return Product(made, dtype, depth, columns, any("r" in n.input for n in tail), gemm)


def lower(planned: Planned) -> LoweredRegion:
    (lowered,) = planned.lower()
    return lowered


def inputs_of(lowered: LoweredRegion, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [*(feeds[p.tensor.name] for p in lowered.inputs), *(np.ascontiguousarray(p.values) for p in lowered.packed)]
