"""EfficientNet-B0 (Tan and Le, 2019), torchvision's layout; stochastic depth does nothing in inference."""

from __future__ import annotations

from .layers import Network
from .samples import Value

_BRANCH = 0.5  # scale of the last batch norm of a residual branch

# expansion factor, kernel, stride of the first, channels, repeats
_STAGES = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1))


def efficientnet_b0(net: Network) -> Value:
    """Gated inverted residuals with SiLU."""
    x = net.conv_bn(net.image(), 32, 3, stride=2, act="silu", conv="features.0.0", bn="features.0.1")
    for stage, (factor, kernel, first, channels, repeats) in enumerate(_STAGES, 1):
        for repeat in range(repeats):
            with net.scope(f"features.{stage}.{repeat}.block"):
                x = _block(net, x, factor, kernel, 1 if repeat else first, channels)
    x = net.conv_bn(x, 1280, 1, act="silu", conv="features.8.0", bn="features.8.1")
    return net.classifier(x, 1000, name="classifier.1")


def _block(net: Network, x: Value, factor: int, kernel: int, stride: int, channels: int) -> Value:
    residual = stride == 1 and x.channels == channels
    y, layer = x, 0
    if factor != 1:
        y = net.conv_bn(y, x.channels * factor, 1, act="silu", conv="0.0", bn="0.1")
        layer = 1
    y = net.conv_bn(y, y.channels, kernel, stride=stride, groups=y.channels, act="silu", conv=f"{layer}.0", bn=f"{layer}.1")
    with net.scope(f"{layer + 1}"):
        y = net.squeeze_excite(y, x.channels // 4, act="silu", gate="sigmoid")
    y = net.conv_bn(y, channels, 1, act="", conv=f"{layer + 2}.0", bn=f"{layer + 2}.1", gain=_BRANCH if residual else 1.0)
    return net.add(y, x) if residual else y
