"""NASNet-A Mobile, 4 @ 1056 (Zoph et al., 2017), in the layout of the PyTorch port of Cadene's pretrainedmodels.

Stride-2 layers of the later cells imitate TensorFlow's padding: a row and a column of zeros in front, and the first row and column of the result cut
away. The last pooling is written as a global one, so that other image sizes work too.
"""

from __future__ import annotations

import numpy as np

from .layers import Network
from .samples import Value

_EPS = 1e-3
_STEM = 32
_FILTERS = 1056 // 24
_END = np.iinfo(np.int64).max


def nasnetamobile(net: Network) -> Value:
    """Two stem cells, then three stages of four normal cells with reduction cells between them."""
    f = _FILTERS
    conv0 = net.conv_bn(net.image(), _STEM, 3, stride=2, padding=0, act="", conv="conv0.conv", bn="conv0.bn", eps=_EPS)
    with net.scope("cell_stem_0"):
        before = _reduction(net, _relu_conv_bn(net, conv0, f // 4, "conv_1x1"), conv0, shifted=False)
    with net.scope("cell_stem_1"):
        left = _relu_conv_bn(net, before, f // 2, "conv_1x1")
        x = _reduction(net, left, _factorized(net, conv0, f // 2), shifted=True)
    x, before = _stage(net, x, before, f, first=0)
    x, before = _reduce(net, x, before, 2 * f, "reduction_cell_0")
    x, before = _stage(net, x, before, 2 * f, first=6)
    x, before = _reduce(net, x, before, 4 * f, "reduction_cell_1")
    x, _ = _stage(net, x, before, 4 * f, first=12)
    return net.classifier(net.act(x, "relu"), 1000, name="last_linear")


def _stage(net: Network, x: Value, before: Value, filters: int, first: int) -> tuple[Value, Value]:
    """Four normal cells; the first one halves the resolution of the earlier tensor."""
    for index in range(4):
        with net.scope(f"cell_{first + index}"):
            left = _relu_conv_bn(net, before, filters, "conv_prev_1x1") if index else _factorized(net, before, filters)
            x, before = _normal(net, left, _relu_conv_bn(net, x, filters, "conv_1x1")), x
    return x, before


def _reduce(net: Network, x: Value, before: Value, filters: int, name: str) -> tuple[Value, Value]:
    """A reduction cell; the next cell reads its result and ``x``."""
    with net.scope(name):
        left = _relu_conv_bn(net, before, filters, "conv_prev_1x1")
        return _reduction(net, _relu_conv_bn(net, x, filters, "conv_1x1"), left, shifted=True), x


def _normal(net: Network, left: Value, right: Value) -> Value:
    width = right.channels
    parts = [
        left,
        net.add(_separable(net, right, width, 5, "comb_iter_0_left"), _separable(net, left, width, 3, "comb_iter_0_right")),
        net.add(_separable(net, left, width, 5, "comb_iter_1_left"), _separable(net, left, width, 3, "comb_iter_1_right")),
        net.add(_average(net, right), left),
        net.add(_average(net, left), _average(net, left)),
        net.add(_separable(net, right, width, 3, "comb_iter_4_left"), right),
    ]
    return net.concat(parts)


def _reduction(net: Network, left: Value, right: Value, shifted: bool) -> Value:
    """``left`` feeds pools and the first branch, ``right`` the other separable branches; in the first stem cell ``right`` has other channels."""
    width = left.channels

    def separable(x: Value, kernel: int, name: str, stride: int = 2) -> Value:
        return _separable(net, x, width, kernel, name, stride=stride, shifted=shifted, early=x.channels != width)

    first = net.add(separable(left, 5, "comb_iter_0_left"), separable(right, 7, "comb_iter_0_right"))
    second = net.add(_pool(net, left, "max", shifted), separable(right, 7, "comb_iter_1_right"))
    third = net.add(_pool(net, left, "average", shifted), separable(right, 5, "comb_iter_2_right"))
    fourth = net.add(_average(net, first), second)
    fifth = net.add(separable(first, 3, "comb_iter_4_left", stride=1), _pool(net, left, "max", shifted))
    return net.concat([second, third, fourth, fifth])


def _separable(net: Network, x: Value, channels: int, kernel: int, name: str, stride: int = 1, shifted: bool = False, early: bool = False) -> Value:
    """ReLU, separable convolution, batch norm, twice; ``early`` changes the channels in the first convolution instead of the second."""
    middle = channels if early else x.channels
    with net.scope(name):
        x = net.act(x, "relu")
        x = _pad(net, x, 1, 0) if shifted else x
        x = net.conv(x, x.channels, kernel, stride=stride, padding=kernel // 2, groups=x.channels, name="separable_1.depthwise_conv2d")
        x = net.conv(x, middle, 1, name="separable_1.pointwise_conv2d")
        x = _cut(net, x) if shifted else x
        x = net.act(net.batch_norm(x, name="bn_sep_1", eps=_EPS), "relu")
        x = net.conv(x, middle, kernel, padding=kernel // 2, groups=middle, name="separable_2.depthwise_conv2d")
        return net.batch_norm(net.conv(x, channels, 1, name="separable_2.pointwise_conv2d"), name="bn_sep_2", eps=_EPS)


def _factorized(net: Network, x: Value, channels: int) -> Value:
    """Halves the resolution: two 1x1 convolutions on every other pixel, the second on pixels one to the right and below."""
    x = net.act(x, "relu")
    one = net.conv(net.average_pool(x, 1, 2, count_include_pad=False), channels // 2, 1, name="path_1.conv")
    shift = _cut(net, _pad(net, x, 0, 1))
    two = net.conv(net.average_pool(shift, 1, 2, count_include_pad=False), channels // 2, 1, name="path_2.conv")
    return net.batch_norm(net.concat([one, two]), name="final_path_bn", eps=_EPS)


def _relu_conv_bn(net: Network, x: Value, channels: int, name: str) -> Value:
    with net.scope(name):
        return net.conv_bn(net.act(x, "relu"), channels, 1, act="", conv="conv", bn="bn", eps=_EPS)


def _average(net: Network, x: Value) -> Value:
    return net.average_pool(x, 3, 1, padding=1, count_include_pad=False)


def _pool(net: Network, x: Value, kind: str, shifted: bool) -> Value:
    x = _pad(net, x, 1, 0) if shifted else x
    x = net.max_pool(x, 3, 2, padding=1) if kind == "max" else net.average_pool(x, 3, 2, padding=1, count_include_pad=False)
    return _cut(net, x) if shifted else x


def _pad(net: Network, x: Value, before: int, after: int) -> Value:
    """Zero rows and columns in front and behind."""
    return Value(net.op("Pad", x.name, net.ints(0, 0, before, before, 0, 0, after, after), net.const(0.0), mode="constant"), x.samples)


def _cut(net: Network, x: Value) -> Value:
    """Without the first row and column: one Slice for each axis, as indexing is exported."""
    rows = net.op("Slice", x.name, net.ints(1), net.ints(_END), net.ints(2), net.ints(1))
    return Value(net.op("Slice", rows, net.ints(1), net.ints(_END), net.ints(3), net.ints(1)), x.samples)
