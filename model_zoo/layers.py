"""Layers on top of the graph writer: each writes its nodes, draws its weights and carries the samples of the activations along."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .builder import Array, Builder, Dim, Precision
from .samples import ACTIVATIONS, Value, neighbours, normal, rounded, weighted

_NOISE = 0.1  # relative spread of batch-norm and layer-norm scales, absolute spread of offsets and biases

# Mean before activations, in standard deviations. Around zero, a rectifier throws away so much variance that rounding errors grow by a fifth with each
# layer; random networks would then look far less accurate in half precision than trained ones are.
OFFSET = 0.5

# How many independent pixels a window is worth, found by measuring these networks
_MAX_POOL = {(2, 2): 4, (3, 2): 7, (3, 1): 6}  # (kernel, stride) -> count
_AVERAGE_POOL = {1: 1, 2: 3, 3: 5}  # kernel -> count
_GLOBAL_POOL = 64

# Scale of batch norms before smooth activations. At scale 1 these are so bent that every error in a variance grows from layer to layer.
_SMOOTH = ("silu", "hard_swish")
_SMOOTH_GAIN = 2.0


@dataclass(frozen=True)
class Dims:
    """The outer dimensions of a model, each a number or the name of a symbol."""

    batch: Dim
    height: Dim = 0
    width: Dim = 0
    sequence: Dim = 0


class Network(Builder):
    """A graph writer with layers. Parameter names follow PyTorch: ``<scope>.<layer>.weight``."""

    def __init__(self, name: str, dims: Dims, *, precision: Precision = "fp32", seed: int = 0) -> None:
        super().__init__(name, precision=precision, seed=seed)
        self.dims = dims
        self._rng = np.random.default_rng(0)

    def image(self) -> Value:
        """The input ``[batch, 3, height, width]``, standard normal."""
        name = self.input("input", (self.dims.batch, 3, self.dims.height, self.dims.width))
        return self.normal(name, np.zeros(3), np.ones(3))

    def normal(self, name: str, mean: Array, var: Array) -> Value:
        """A tensor with independent normal channels."""
        return Value(name, normal(self._rng, mean, var))

    # Layers with weights

    def conv(
        self,
        x: Value,
        channels: int,
        kernel: int,
        *,
        name: str,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: float | None = None,
        gain: float = 1.0,
    ) -> Value:
        """Conv. Weights are He-scaled by the variance that arrives, so that the result has variance ``gain**2``; a bias brings the mean to ``bias``."""
        depth = x.channels // groups
        with self.scope(name):
            weight = self.draw("weight", (channels, depth, kernel, kernel), gain / math.sqrt(depth * kernel**2 * x.var.mean()))
            inputs = [x.name, self.state("weight", weight)]
            mean, var = _grouped(weight.reshape(groups, channels // groups, depth, -1), x)
            if bias is not None:
                mean, shift = self._shift(mean, bias, gain)
                inputs.append(shift)
            out = self.op("Conv", *inputs, dilations=[1, 1], group=groups, kernel_shape=[kernel] * 2, pads=[padding] * 4, strides=[stride] * 2)
        return self.normal(out, mean, var)

    def conv_transpose(self, x: Value, channels: int, kernel: int, *, name: str) -> Value:
        """ConvTranspose with stride equal to the kernel and a bias: every output pixel sees one input pixel through one tap of the kernel."""
        with self.scope(name):
            weight = self.draw("weight", (x.channels, channels, kernel, kernel), 1 / math.sqrt(x.channels * x.var.mean()))
            mean, var = (m.reshape(channels, -1) for m in weighted(weight.reshape(x.channels, -1).T, x.mean, x.var))
            target, shift = self._shift(mean.mean(axis=1), 0.0, 1.0)
            inputs = [x.name, self.state("weight", weight), shift]
            out = self.op("ConvTranspose", *inputs, dilations=[1, 1], group=1, kernel_shape=[kernel] * 2, pads=[0] * 4, strides=[kernel] * 2)
        return self.normal(out, target, var.mean(axis=1) + mean.var(axis=1))

    def batch_norm(self, x: Value, *, name: str, eps: float = 1e-5, gain: float = 1.0) -> Value:
        """BatchNormalization in inference form; running statistics are the expected ones, ``gain`` below 1 damps a residual branch."""
        with self.scope(name):
            gamma = self.draw("weight", (x.channels,), _NOISE * gain, gain)
            beta = self.draw("bias", (x.channels,), _NOISE * gain, OFFSET * gain)
            states = [self.state(n, v) for n, v in (("weight", gamma), ("bias", beta), ("running_mean", rounded(x.mean)), ("running_var", rounded(x.var)))]
            out = self.op("BatchNormalization", x.name, *states, epsilon=eps, momentum=0.9)
        scale = gamma / np.sqrt(x.var + eps)
        return Value(out, (x.samples - x.mean[:, None]) * scale[:, None] + beta[:, None])

    def conv_bn(
        self,
        x: Value,
        channels: int,
        kernel: int,
        *,
        conv: str,
        bn: str,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        act: str = "relu",
        eps: float = 1e-5,
        gain: float = 1.0,
    ) -> Value:
        """Conv without bias, batch norm, activation ('' for none); padding defaults to 'same' for odd kernels."""
        pad = kernel // 2 if padding is None else padding
        y = self.conv(x, channels, kernel, name=conv, stride=stride, padding=pad, groups=groups)
        y = self.batch_norm(y, name=bn, eps=eps, gain=_SMOOTH_GAIN if act in _SMOOTH else gain)
        return self.act(y, act) if act else y

    def gemm(self, x: Value, features: int, *, name: str, bias: float = 0.0) -> Value:
        """A linear layer on a matrix, as exporters write it: Gemm with the weight ``[out, in]`` transposed; the bias brings the mean to ``bias``."""
        with self.scope(name):
            weight = self.draw("weight", (features, x.channels), 1 / math.sqrt(x.channels * x.var.mean()))
            mean, var = weighted(weight, x.mean, x.var)
            mean, shift = self._shift(mean, bias, 1.0)
            out = self.op("Gemm", x.name, self.state("weight", weight), shift, alpha=1.0, beta=1.0, transB=1)
        return self.normal(out, mean, var)

    def linear(self, x: Value, features: int, *, name: str, gain: float = 1.0) -> Value:
        """A linear layer on the last axis of a tensor of higher rank: MatMul with a weight ``[in, out]``, then Add with the bias first."""
        with self.scope(name):
            weight = self.draw("weight", (x.channels, features), gain / math.sqrt(x.channels * x.var.mean()))
            mean, var = weighted(weight.T, x.mean, x.var)
            mean, shift = self._shift(mean, 0.0, gain)
            out = self.op("Add", shift, self.op("MatMul", x.name, self.state("weight", weight)))
        return self.normal(out, mean, var)

    def layer_norm(self, x: Value, *, name: str, eps: float) -> Value:
        """LayerNormalization of the last axis."""
        with self.scope(name):
            gamma = self.draw("weight", (x.channels,), _NOISE, 1.0)
            beta = self.draw("bias", (x.channels,), _NOISE)
            out = self.op("LayerNormalization", x.name, self.state("weight", gamma), self.state("bias", beta), axis=-1, epsilon=eps)
        return self.normal(out, beta.astype(np.float64), np.square(gamma, dtype=np.float64))

    def squeeze_excite(self, x: Value, squeezed: int, *, act: str, gate: str) -> Value:
        """Channel gating: pool, 1x1 conv ``fc1``, ``act``, 1x1 conv ``fc2``, ``gate``, product.

        Gates stay near the middle, because pooled means are known only roughly here and an error in them would go on to whole channels.
        """
        y = self.conv(self.global_pool(x), squeezed, 1, name="fc1", bias=0.0, gain=0.5)
        y = self.conv(self.act(y, act), x.channels, 1, name="fc2", bias=0.0, gain=0.3)
        y = self.act(y, gate)
        return Value(self.op("Mul", y.name, x.name), y.samples * x.samples)

    # Layers without weights

    def act(self, x: Value, kind: str) -> Value:
        """An activation of :data:`samples.ACTIVATIONS`, spelt as exporters spell it at opset 17."""
        return Value(self._activation(x.name, kind), ACTIVATIONS[kind](x.samples))

    def add(self, x: Value, y: Value) -> Value:
        """Sum."""
        return Value(self.op("Add", x.name, y.name), x.samples + y.samples)

    def concat(self, values: Sequence[Value]) -> Value:
        """Concatenation of channels, axis 1."""
        out = self.op("Concat", *(v.name for v in values), axis=1)
        return Value(out, np.concatenate([v.samples for v in values]))

    def max_pool(self, x: Value, kernel: int, stride: int, *, padding: int = 0, ceil: bool = False) -> Value:
        """MaxPool."""
        out = self.op("MaxPool", x.name, ceil_mode=int(ceil), dilations=[1, 1], kernel_shape=[kernel] * 2, pads=[padding] * 4, strides=[stride] * 2)
        return Value(out, np.maximum.reduce(neighbours(self._rng, x.samples, _MAX_POOL[kernel, stride])))

    def average_pool(self, x: Value, kernel: int, stride: int, *, padding: int = 0, count_include_pad: bool = True) -> Value:
        """AveragePool."""
        out = self.op(
            "AveragePool", x.name, ceil_mode=0, count_include_pad=int(count_include_pad), kernel_shape=[kernel] * 2, pads=[padding] * 4, strides=[stride] * 2
        )
        return Value(out, np.mean(neighbours(self._rng, x.samples, _AVERAGE_POOL[kernel]), axis=0))

    def global_pool(self, x: Value) -> Value:
        """GlobalAveragePool, which adaptive pooling to one pixel becomes."""
        return self.normal(self.op("GlobalAveragePool", x.name), x.mean, x.var / _GLOBAL_POOL)

    def flatten(self, x: Value, pixels: int = 1) -> Value:
        """Flatten to a matrix; each channel holds ``pixels`` values."""
        return Value(self.op("Flatten", x.name, axis=1), np.repeat(x.samples, pixels, axis=0))

    def transpose(self, x: Value, *perm: int) -> Value:
        """Transpose; samples stay with the channels, wherever those go."""
        return Value(self.op("Transpose", x.name, perm=list(perm)), x.samples)

    def classifier(self, x: Value, classes: int, *, name: str) -> Value:
        """Global pool, Flatten, Gemm: logits with a standard deviation near 1."""
        return self.gemm(self.flatten(self.global_pool(x)), classes, name=name)

    # Helpers

    def _shift(self, mean: Array, target: float, gain: float) -> tuple[Array, str]:
        """A bias that brings ``mean`` near ``target``; returns the new mean too."""
        wanted = self.draw("bias", mean.shape, _NOISE * gain, target * gain)
        return wanted.astype(np.float64), self.state("bias", rounded(wanted - mean))

    def _activation(self, x: str, kind: str) -> str:
        match kind:
            case "relu":
                return self.op("Relu", x)
            case "relu6":
                return self.op("Clip", x, self.const(0.0), self.const(6.0))
            case "sigmoid":
                return self.op("Sigmoid", x)
            case "silu":
                return self.op("Mul", x, self.op("Sigmoid", x))
            case "hard_sigmoid":
                return self.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)
            case "hard_swish":
                return self.op("HardSwish", x)
            case "gelu":
                erf = self.op("Erf", self.op("Div", x, self.const(math.sqrt(2))))
                return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.const(1.0))), self.const(0.5))
            case "gelu_tanh":
                cubic = self.op("Mul", self.op("Pow", x, self.const(3.0)), self.const(0.044715))
                tanh = self.op("Tanh", self.op("Mul", self.op("Add", x, cubic), self.const(math.sqrt(2 / math.pi))))
                return self.op("Mul", self.op("Mul", x, self.const(0.5)), self.op("Add", tanh, self.const(1.0)))
            case "tanh":
                return self.op("Tanh", x)
        raise AssertionError(kind)


def _grouped(weight: Array, x: Value) -> tuple[Array, Array]:
    groups, out, depth, taps = weight.shape
    if groups == 1:
        return weighted(weight.reshape(out, depth * taps), np.repeat(x.mean, taps), np.repeat(x.var, taps))
    wide = weight.astype(np.float64)
    mean = np.einsum("godt,gd->go", wide, x.mean.reshape(groups, depth))
    return mean.reshape(-1), np.einsum("godt,gd->go", wide**2, x.var.reshape(groups, depth)).reshape(-1)
