"""The spellings of activations that frameworks export, as nodes from ``x`` to ``y``; constants have names like ``c0.5``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from rule_harness import model, node

Spelling = tuple[str, list[NodeProto]]


def _swap(binary: NodeProto) -> NodeProto:
    return node(binary.op_type, list(binary.input)[::-1], binary.output)


def _gelu_argument(how: str) -> list[NodeProto]:
    return [node("Div", ["x", "c1.4142135623730951"], "t")] if how == "div" else [node("Mul", ["c0.7071067811865475", "x"], "t")]


def _gelu(argument: str, order: str) -> list[NodeProto]:
    nodes = [*_gelu_argument(argument), node("Erf", ["t"], "e")]
    if order == "halved":  # x * (erf / 2 + 0.5)
        return [*nodes, node("Mul", ["e", "c0.5"], "h"), node("Add", ["h", "c0.5"], "g"), node("Mul", ["x", "g"], "y")]
    nodes.append(node("Add", ["c1", "e"], "g"))
    tails = {
        "(x*g)*.5": [node("Mul", ["x", "g"], "m"), node("Mul", ["m", "c0.5"], "y")],
        "(x*.5)*g": [node("Mul", ["x", "c0.5"], "m"), node("Mul", ["m", "g"], "y")],
        "x*(.5*g)": [node("Mul", ["c0.5", "g"], "m"), node("Mul", ["x", "m"], "y")],
        "(g*x)/2": [node("Mul", ["g", "x"], "m"), node("Div", ["m", "c2"], "y")],
    }
    return nodes + tails[order]


def _gelu_tanh(inner: str, opset: int) -> list[NodeProto]:
    cubes = {
        "pow": [
            node("Pow", ["x", "c3"], "x3"),
            node("Mul", ["x3", "c0.044715"], "k"),
            node("Add", ["x", "k"], "s"),
            node("Mul", ["s", "c0.7978845608028654"], "t"),
        ],
        "products": [
            node("Mul", ["x", "x"], "x2"),
            node("Mul", ["x2", "x"], "x3"),
            node("Mul", ["c0.044715", "x3"], "k"),
            node("Add", ["k", "x"], "s"),
            node("Mul", ["c0.7978845608028654", "s"], "t"),
        ],
        "factored": [
            node("Mul", ["x", "x"], "x2"),
            node("Mul", ["x2", "c0.044715"], "k"),
            node("Add", ["k", "c1"], "s"),
            node("Mul", ["x", "c0.7978845608028654"], "f"),
            node("Mul", ["f", "s"], "t"),
        ],
        "pow2": [
            node("Pow", ["x", "i2" if opset >= 12 else "c2"], "x2"),
            node("Mul", ["c0.044715", "x2"], "k"),
            node("Add", ["c1", "k"], "s"),
            node("Mul", ["s", "x"], "f"),
            node("Mul", ["f", "c0.7978845608028654"], "t"),
        ],
    }
    return [*cubes[inner], node("Tanh", ["t"], "h"), node("Add", ["h", "c1"], "g"), node("Mul", ["x", "g"], "m"), node("Mul", ["m", "c0.5"], "y")]


def spellings(opset: int) -> dict[str, list[Spelling]]:
    """Spellings by canonical kind: ``(name, nodes)`` each."""

    def clip(source: str, out: str, low: float | None, high: float | None) -> NodeProto:
        if opset < 11:
            return node("Clip", [source], out, **{k: float(v) for k, v in (("min", low), ("max", high)) if v is not None})
        return node("Clip", [source, "" if low is None else f"c{low:g}", *([] if high is None else [f"c{high:g}"])], out)

    three, six = node("Add", ["x", "c3"], "a"), clip("a", "r", 0, 6)
    sixth = "c0.16666666666666666"
    hard = [node("HardSigmoid", ["x"], "s", alpha=1 / 6, beta=0.5)]
    min_max = [node("Max", ["x", "c-1"], "m"), node("Min", ["m", "c2"], "y")]
    relu6 = [node("Relu", ["a"], "q"), node("Min", ["q", "c6"], "r")]
    return {
        "relu": [("Relu", [node("Relu", ["x"], "y")]), ("Clip", [clip("x", "y", 0, None)]), ("Max", [node("Max", ["c0", "x"], "y")])],
        "clip(0,6)": [
            ("Clip", [clip("x", "y", 0, 6)]),
            ("Relu, Min", [node("Relu", ["x"], "m"), node("Min", ["c6", "m"], "y")]),
            ("Relu, Clip", [node("Relu", ["x"], "m"), clip("m", "y", 0, 6)]),
        ],
        "clip(-1,2)": [("Max, Min", min_max), ("Min, Max", [node("Min", ["x", "c2"], "m"), node("Max", ["m", "c-1"], "y")])],
        "leaky_relu(0.1,0)": [
            ("LeakyRelu", [node("LeakyRelu", ["x"], "y", alpha=0.1)]),
            ("Max", [node("Mul", ["x", "c0.1"], "m"), node("Max", ["x", "m"], "y")]),
            ("Max swapped", [node("Mul", ["c0.1", "x"], "m"), node("Max", ["m", "x"], "y")]),
        ],
        "prelu": [("PRelu", [node("PRelu", ["x", "slope"], "y")])],
        "sigmoid": [("Sigmoid", [node("Sigmoid", ["x"], "y")])],
        "tanh": [("Tanh", [node("Tanh", ["x"], "y")])],
        "hard_sigmoid(0.166667,0.5)": [
            ("HardSigmoid", [node("HardSigmoid", ["x"], "y", alpha=1 / 6, beta=0.5)]),
            ("clip / 6", [three, six, node("Div", ["r", "c6"], "y")]),
            ("clip * 1/6", [three, six, node("Mul", [sixth, "r"], "y")]),
            ("clip(x / 6 + .5)", [node("Mul", ["x", sixth], "a"), node("Add", ["a", "c0.5"], "b"), clip("b", "y", 0, 1)]),
            ("relu6 / 6", [three, *relu6, node("Div", ["r", "c6"], "y")]),
        ],
        "hard_swish": [
            ("x * (clip / 6)", [three, six, node("Div", ["r", "c6"], "d"), node("Mul", ["x", "d"], "y")]),
            ("(x * clip) / 6", [three, six, node("Mul", ["x", "r"], "d"), node("Div", ["d", "c6"], "y")]),
            ("(clip * x) * 1/6", [three, six, node("Mul", ["r", "x"], "d"), node("Mul", ["d", sixth], "y")]),
            ("clip * (x / 6)", [three, six, node("Div", ["x", "c6"], "d"), node("Mul", ["r", "d"], "y")]),
            ("x * HardSigmoid", [*hard, node("Mul", ["x", "s"], "y")]),
            ("HardSigmoid * x", [*hard, node("Mul", ["s", "x"], "y")]),
            ("x * clip(x / 6 + .5)", [node("Div", ["x", "c6"], "a"), node("Add", ["c0.5", "a"], "b"), clip("b", "r", 0, 1), node("Mul", ["r", "x"], "y")]),
            ("x * relu6 / 6", [three, *relu6, node("Mul", ["x", "r"], "d"), node("Div", ["d", "c6"], "y")]),
        ],
        "silu": [
            ("x * Sigmoid", [node("Sigmoid", ["x"], "s"), node("Mul", ["x", "s"], "y")]),
            ("Sigmoid * x", [node("Sigmoid", ["x"], "s"), node("Mul", ["s", "x"], "y")]),
        ],
        "gelu": [(f"{a}, {o}", _gelu(a, o)) for a in ("div", "mul") for o in ("(x*g)*.5", "(x*.5)*g", "x*(.5*g)", "(g*x)/2", "halved")],
        "gelu_tanh": [(i, _gelu_tanh(i, opset)) for i in ("pow", "products", "factored", "pow2")],
        "mish": [
            ("Softplus", [node("Softplus", ["x"], "p"), node("Tanh", ["p"], "t"), node("Mul", ["x", "t"], "y")]),
            ("Log", [node("Exp", ["x"], "e"), node("Add", ["e", "c1"], "o"), node("Log", ["o"], "p"), node("Tanh", ["p"], "t"), node("Mul", ["t", "x"], "y")]),
        ],
    }


def activation_model(
    nodes: list[NodeProto],
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    shape: tuple[int | str, ...] = ("n", 4, 5),
    constant: Callable[[float], np.ndarray] = np.array,
) -> ModelProto:
    """``y = activation(Exp(u) - 2)`` so that x is no graph input; ``constant`` gives the constants their shape."""
    kind = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64}[dtype]
    names = sorted({i for n in nodes for i in n.input if i[:1] == "c"})
    constants = {n: np.asarray(constant(float(n[1:])), kind) for n in names} | {
        "two": np.array(2, kind),
        "i2": np.array(2, np.int64),
        "slope": np.full((4, 1), 0.2, kind),
    }
    head = [node("Tanh", ["u"], "v"), node("Mul", ["v", "big"], "x")]
    return model([*head, *nodes], {"u": list(shape)}, ["y"], constants | {"big": np.full((4, 5), 4, kind)}, opset=opset, dtype=dtype)
