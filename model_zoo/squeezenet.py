"""SqueezeNet 1.1 (Iandola et al., 2016), torchvision's layout: fire modules without batch norm, a convolution as classifier."""

from __future__ import annotations

from .layers import OFFSET, Network
from .samples import Value

# (squeezed channels, channels of each expand half); None is a max pool
_FEATURES = (None, (16, 64), (16, 64), None, (32, 128), (32, 128), None, (48, 192), (48, 192), (64, 256), (64, 256))


def squeezenet1_1(net: Network) -> Value:
    """Eight fire modules; pools round sizes up."""
    x = net.act(net.conv(net.image(), 64, 3, stride=2, bias=OFFSET, name="features.0"), "relu")
    for i, fire in enumerate(_FEATURES):
        x = _fire(net, x, f"features.{i + 2}", *fire) if fire else net.max_pool(x, 3, 2, ceil=True)
    x = net.act(net.conv(x, 1000, 1, bias=OFFSET, name="classifier.1"), "relu")
    return net.flatten(net.global_pool(x))


def _fire(net: Network, x: Value, name: str, squeezed: int, half: int) -> Value:
    with net.scope(name):
        x = net.act(net.conv(x, squeezed, 1, bias=OFFSET, name="squeeze"), "relu")
        small = net.act(net.conv(x, half, 1, bias=OFFSET, name="expand1x1"), "relu")
        large = net.act(net.conv(x, half, 3, padding=1, bias=OFFSET, name="expand3x3"), "relu")
        return net.concat([small, large])
