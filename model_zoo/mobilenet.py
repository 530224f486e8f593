"""MobileNet V2 (Sandler et al., 2018) and V3-Large (Howard et al., 2019), torchvision's layout."""

from __future__ import annotations

from .layers import Network
from .samples import Value

_BRANCH = 0.5  # scale of the last batch norm of a residual branch

# expansion factor, channels, repeats, stride of the first
_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

# kernel, expanded channels, channels, squeeze-and-excite, activation, stride
_V3_LARGE = (
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hard_swish", 2),
    (3, 200, 80, False, "hard_swish", 1),
    (3, 184, 80, False, "hard_swish", 1),
    (3, 184, 80, False, "hard_swish", 1),
    (3, 480, 112, True, "hard_swish", 1),
    (3, 672, 112, True, "hard_swish", 1),
    (5, 672, 160, True, "hard_swish", 2),
    (5, 960, 160, True, "hard_swish", 1),
    (5, 960, 160, True, "hard_swish", 1),
)


def mobilenet_v2(net: Network) -> Value:
    """Inverted residuals with linear bottlenecks, ReLU6."""
    x = net.conv_bn(net.image(), 32, 3, stride=2, act="relu6", conv="features.0.0", bn="features.0.1")
    index = 1
    for factor, channels, repeats, first in _V2:
        for repeat in range(repeats):
            with net.scope(f"features.{index}.conv"):
                x = _inverted_residual(net, x, factor, channels, stride=1 if repeat else first)
            index += 1
    x = net.conv_bn(x, 1280, 1, act="relu6", conv=f"features.{index}.0", bn=f"features.{index}.1")
    return net.classifier(x, 1000, name="classifier.1")


def _inverted_residual(net: Network, x: Value, factor: int, channels: int, stride: int) -> Value:
    residual = stride == 1 and x.channels == channels
    y, layer = x, 0
    if factor != 1:
        y = net.conv_bn(y, x.channels * factor, 1, act="relu6", conv="0.0", bn="0.1")
        layer = 1
    y = net.conv_bn(y, y.channels, 3, stride=stride, groups=y.channels, act="relu6", conv=f"{layer}.0", bn=f"{layer}.1")
    y = net.conv_bn(y, channels, 1, act="", conv=f"{layer + 1}", bn=f"{layer + 2}", gain=_BRANCH if residual else 1.0)
    return net.add(x, y) if residual else y


def mobilenet_v3_large(net: Network) -> Value:
    """Inverted residuals, some gated, with ReLU early and hard-swish late."""
    x = net.conv_bn(net.image(), 16, 3, stride=2, act="hard_swish", conv="features.0.0", bn="features.0.1", eps=1e-3)
    for index, (kernel, expanded, channels, gated, act, stride) in enumerate(_V3_LARGE, 1):
        with net.scope(f"features.{index}.block"):
            x = _v3_block(net, x, kernel, expanded, channels, gated, act, stride)
    x = net.conv_bn(x, 960, 1, act="hard_swish", conv="features.16.0", bn="features.16.1", eps=1e-3)
    x = net.act(net.gemm(net.flatten(net.global_pool(x)), 1280, name="classifier.0"), "hard_swish")
    return net.gemm(x, 1000, name="classifier.3")


def _v3_block(net: Network, x: Value, kernel: int, expanded: int, channels: int, gated: bool, act: str, stride: int) -> Value:
    residual = stride == 1 and x.channels == channels
    y, layer = x, 0
    if expanded != x.channels:
        y = net.conv_bn(y, expanded, 1, act=act, conv="0.0", bn="0.1", eps=1e-3)
        layer = 1
    y = net.conv_bn(y, expanded, kernel, stride=stride, groups=expanded, act=act, conv=f"{layer}.0", bn=f"{layer}.1", eps=1e-3)
    if gated:
        layer += 1
        with net.scope(f"{layer}"):
            y = net.squeeze_excite(y, _divisible(expanded / 4), act="relu", gate="hard_sigmoid")
    y = net.conv_bn(y, channels, 1, act="", conv=f"{layer + 1}.0", bn=f"{layer + 1}.1", eps=1e-3, gain=_BRANCH if residual else 1.0)
    return net.add(y, x) if residual else y


def _divisible(channels: float) -> int:
    """The nearest multiple of 8, one more if that is below nine tenths of ``channels``."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
