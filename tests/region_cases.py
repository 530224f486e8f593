"""Seeded random models of a few regions each: every kind of convolution, pooling, epilogue, residual, gate and concat that the planner takes.

A case makes the same model in float32 and in float16: all its constants are exact in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from rule_harness import model, node

Attrs = dict[str, Any]
CHANNELS = (1, 3, 4, 5, 8, 12, 16, 20)
SIDES = (7, 16, 23)  # of images; every window fits in the smallest


@dataclass
class Case:
    """One model in the making.

    Attributes:
        rank: 4 for images, 3 for sequences.
        channels: Of every tensor so far.
    """

    seed: int
    rank: int
    rng: np.random.Generator
    opset: int = 17
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, list[int | str]] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)

    def model(self, dtype: type = np.float32, extra_outputs: Sequence[str] = ()) -> ModelProto:
        """The model; tensors that nothing reads are its outputs."""
        elem = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16}[dtype]
        constants = {k: v if v.dtype == np.int64 else v.astype(dtype) for k, v in self.constants.items()}
        read = {i for n in self.nodes for i in n.input}
        outputs = [o for n in self.nodes for o in n.output if o not in read]
        return model(self.nodes, self.inputs, [*outputs, *extra_outputs], constants, opset=self.opset, dtype=elem)

    def feeds(self, batch: int, sides: Sequence[int]) -> dict[str, np.ndarray]:
        """Inputs exact in float16, for a batch and image sides ``h`` and ``w``."""
        sizes = {"n": batch, "h": sides[0], "w": sides[-1]}
        rng = np.random.default_rng((self.seed, batch, *sides))
        return {k: half(rng.standard_normal([sizes[d] if isinstance(d, str) else d for d in dims])) for k, dims in self.inputs.items()}

    # Building blocks; each returns the name of its result

    def choice(self, *of: Any) -> Any:
        return of[int(self.rng.integers(len(of)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def op(self, kind: str, *inputs: str, channels: int | None = None, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(kind, inputs, name, **attrs))
        self.channels[name] = self.channels[next(i for i in inputs if i in self.channels)] if channels is None else channels
        return name

    def const(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values) if np.asarray(values).dtype == np.int64 else half(np.asarray(values))
        return name

    def input(self, channels: int, flat: bool = False) -> str:
        name = f"in{len(self.inputs)}"
        self.inputs[name] = ["n", channels, *([1] * (self.rank - 2) if flat else ["h", "w"][4 - self.rank :])]
        self.channels[name] = channels
        return name

    def vector(self, channels: int, low: float = -1.0, high: float = 1.0) -> str:
        return self.const(self.rng.uniform(low, high, (channels, *[1] * (self.rank - 2))))

    def conv(self, x: str, window: Attrs, kernel: Sequence[int], to: int, groups: int = 1) -> str:
        depth = self.channels[x] // groups
        weights = self.rng.standard_normal((to, depth, *kernel)) / np.sqrt(depth * np.prod(kernel))
        bias = [self.const(self.rng.uniform(-1, 1, to))] if self.chance(0.7) else []
        return self.op("Conv", x, self.const(weights), *bias, channels=to, group=groups, **window)


def half(values: np.ndarray) -> np.ndarray:
    """``values`` as float32 that are exact in float16."""
    return values.astype(np.float16).astype(np.float32)


def case(seed: int) -> Case:
    """The case of ``seed``."""
    rng = np.random.default_rng(seed)
    made = Case(seed, 4 if rng.random() < 0.8 else 3, rng)
    form: Callable[[Case], None] = [_single, _single, _pooled, _residual, _residual, _concat, _between][int(rng.integers(7))]
    form(made)
    return made


def _single(case: Case) -> None:
    """One anchor and its epilogue."""
    x = case.input(case.choice(*CHANNELS))
    _tail(case, _anchor(case, x, _window(case)), case.rng.integers(0, 4))


def _pooled(case: Case) -> None:
    """A pooling that rounds its size up, and its epilogue."""
    x = case.input(case.choice(*CHANNELS))
    kernel = [int(k) for k in case.rng.integers(1, 5, case.rank - 2)]
    attrs = {"strides": [int(s) for s in case.rng.integers(1, 4, len(kernel))], "pads": [int(case.rng.integers(0, k)) for k in kernel * 2]}
    _tail(case, _pool(case, x, (attrs | {"ceil_mode": 1}, kernel)), case.rng.integers(0, 2))


def _residual(case: Case) -> None:
    """A convolution that meets another tensor of its own shape, and a gate."""
    x = case.input(case.choice(*CHANNELS))
    window = _window(case)
    y, other = _conv(case, x, window), _conv(case, x, window)
    if case.channels[y] != case.channels[other]:
        other = case.conv(x, window[0], window[1], case.channels[y])
    y = _tail(case, y, case.rng.integers(0, 2))
    y = case.op(case.choice("Add", "Add", "Mul", "Sub"), *case.choice((y, other), (other, y)))
    if case.chance(0.5):
        gate = case.op("Sigmoid", case.op("GlobalAveragePool", y)) if case.chance(0.5) else case.input(case.channels[y], flat=True)
        y = case.op(case.choice("Mul", "Mul", "Add"), *case.choice((y, gate), (gate, y)))
    _tail(case, y, case.rng.integers(0, 2))


def _concat(case: Case) -> None:
    """Branches side by side; some of them are read by another node too, so that the concat copies them."""
    x = case.input(case.choice(*CHANNELS))
    window = _window(case)
    parts = []
    for _ in range(int(case.rng.integers(2, 5))):
        parts.append(_tail(case, _anchor(case, x, window), case.rng.integers(0, 2)))
        if case.chance(0.4):
            case.op("Neg", parts[-1])
    parts += [parts[0]] if case.chance(0.2) else []
    y = case.op("Concat", *parts, axis=1, channels=sum(case.channels[p] for p in parts))
    if case.chance(0.5):
        y = case.choice(_batchnorm, _scale, _relu)(case, y)
    _conv(case, y, ({}, [1] * (case.rank - 2)))


def _between(case: Case) -> None:
    """Pointwise work between regions: its operands have other readers, so that it is a region of its own."""
    x = case.input(case.choice(*CHANNELS))
    window = _window(case)
    a, b = _conv(case, x, window), _conv(case, x, window)
    case.op("Neg", a)
    case.op("Neg", b)
    y = case.op(case.choice("Add", "Sub", "Mul"), a, b) if case.channels[a] == case.channels[b] else _batchnorm(case, a)
    y = _tail(case, y, case.rng.integers(0, 3))
    _conv(case, y, ({}, [1] * (case.rank - 2)))


# Anchors


def _window(case: Case) -> tuple[Attrs, list[int]]:
    """Attributes of a window, and its kernel."""
    axes = case.rank - 2
    kernel = [int(k) for k in case.rng.integers(1, 5, axes)] if case.chance(0.4) else [case.choice(1, 3, 5)] * axes
    attrs: Attrs = {}
    if case.chance(0.5):
        attrs["strides"] = [int(s) for s in case.rng.integers(1, 4, axes)]
    kind = case.choice("none", "pads", "pads", "uneven", "SAME_UPPER", "SAME_LOWER", "VALID")
    if kind.isupper():
        attrs["auto_pad"] = kind
    elif kind == "pads":
        attrs["pads"] = [k // 2 for k in kernel] * 2
    elif kind == "uneven":
        attrs["pads"] = [int(case.rng.integers(0, k)) for k in kernel * 2]
    if not kind.startswith("SAME") and case.chance(0.2):  # ONNX Runtime's CPU refuses the two together
        attrs["dilations"] = [1 if k > 3 else int(case.rng.integers(1, 4)) for k in kernel]
    return attrs, kernel


def _anchor(case: Case, x: str, window: tuple[Attrs, list[int]]) -> str:
    """A convolution or a pooling with a window, or, where the window leaves the size alone or nothing depends on it, something else."""
    return _pool(case, x, window) if case.chance(0.35) else _conv(case, x, window)


def _conv(case: Case, x: str, window: tuple[Attrs, list[int]]) -> str:
    attrs, kernel = window
    inputs = case.channels[x]
    kind = case.choice("plain", "plain", "depthwise", "multiplier", "grouped")
    divisors = [g for g in range(2, inputs) if inputs % g == 0]
    if kind == "grouped" and divisors:
        groups = case.choice(*divisors)
        return case.conv(x, attrs, kernel, groups * case.choice(1, 2, 5, 8), groups)
    if kind in ("depthwise", "multiplier") and inputs > 1:
        return case.conv(x, attrs, kernel, inputs * (1 if kind == "depthwise" else case.choice(2, 3)), inputs)
    return case.conv(x, attrs, kernel, case.choice(*CHANNELS))


def _pool(case: Case, x: str, window: tuple[Attrs, list[int]]) -> str:
    attrs, kernel = dict(window[0]), window[1]
    if case.chance(0.15) and not attrs:
        return case.op(case.choice("GlobalAveragePool", "GlobalMaxPool"), x)
    same = attrs.get("auto_pad", "").startswith("SAME")
    # NOTE: ONNX Runtime takes no poolings with padding as wide as the window, nor SAME with a stride above it.
    if (same and any(s > k for s, k in zip(attrs.get("strides", kernel), kernel, strict=True))) or "dilations" in attrs:
        return case.conv(x, attrs, kernel, case.channels[x])
    if case.chance(0.5):
        return case.op("MaxPool", x, kernel_shape=kernel, **attrs)
    return case.op("AveragePool", x, kernel_shape=kernel, count_include_pad=int(case.chance(0.4)), **attrs)


# Epilogues


def _scalar(case: Case, x: str) -> str:
    kind = case.choice("Mul", "Add", "Sub", "Div")
    value = case.const(case.choice(0.5, -1.5, 2.0))
    return case.op(kind, x, value) if kind == "Div" or case.chance(0.5) else case.op(kind, value, x)


def _scale(case: Case, x: str) -> str:
    kind = case.choice("Mul", "Add", "Sub", "Div")
    value = case.vector(case.channels[x], 0.5, 2.0)
    return case.op(kind, x, value) if kind == "Div" or case.chance(0.5) else case.op(kind, value, x)


def _batchnorm(case: Case, x: str) -> str:
    channels = case.channels[x]
    parameters = [case.const(case.rng.uniform(low, high, channels)) for low, high in ((0.5, 2), (-1, 1), (-1, 1), (0.5, 2))]
    return case.op("BatchNormalization", x, *parameters, epsilon=0.01)


def _relu(case: Case, x: str) -> str:
    return case.op("Relu", x)


def _clip(case: Case, x: str) -> str:
    return case.op("Clip", x, case.const(case.choice(0.0, -0.5)), *([case.const(1.5)] if case.chance(0.7) else []))


def _leaky(case: Case, x: str) -> str:
    return case.op("LeakyRelu", x, alpha=0.25)


def _prelu(case: Case, x: str) -> str:
    return case.op("PRelu", x, case.vector(case.channels[x]) if case.chance(0.7) else case.const([0.25]))


def _smooth(case: Case, x: str) -> str:
    return case.op(case.choice("Sigmoid", "Tanh", "HardSigmoid", "HardSwish"), x)


def _silu(case: Case, x: str) -> str:
    return case.op("Mul", x, case.op("Sigmoid", x))


def _gelu(case: Case, x: str) -> str:
    erf = case.op("Erf", case.op("Div", x, case.const(np.sqrt(2.0))))
    return case.op("Mul", case.op("Mul", x, case.op("Add", erf, case.const(1.0))), case.const(0.5))


def _gelu_tanh(case: Case, x: str) -> str:
    cubed = case.op("Mul", case.op("Pow", x, case.const(3.0)), case.const(0.044715))
    inner = case.op("Tanh", case.op("Mul", case.op("Add", x, cubed), case.const(np.sqrt(2 / np.pi))))
    return case.op("Mul", case.op("Mul", x, case.op("Add", inner, case.const(1.0))), case.const(0.5))


def _mish(case: Case, x: str) -> str:
    return case.op("Mul", x, case.op("Tanh", case.op("Softplus", x)))


EPILOGUES = (_scalar, _scale, _batchnorm, _relu, _clip, _leaky, _prelu, _smooth, _silu, _gelu, _gelu_tanh, _mish)


def _tail(case: Case, x: str, steps: int) -> str:
    for _ in range(int(steps)):
        x = case.choice(*EPILOGUES)(case, x)
    return x
