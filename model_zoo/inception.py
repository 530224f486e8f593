"""GoogLeNet (Szegedy et al., 2014) with batch norm and without auxiliary heads, torchvision's layout.

NOTE: torchvision's '5x5' branch has a 3x3 kernel, as in the TensorFlow port it came from; the published parameter count includes that.
"""

from __future__ import annotations

from .layers import Network
from .samples import Value

# name -> (1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection)
_CELLS = {
    "inception3a": (64, 96, 128, 16, 32, 32),
    "inception3b": (128, 128, 192, 32, 96, 64),
    "inception4a": (192, 96, 208, 16, 48, 64),
    "inception4b": (160, 112, 224, 24, 64, 64),
    "inception4c": (128, 128, 256, 24, 64, 64),
    "inception4d": (112, 144, 288, 32, 64, 64),
    "inception4e": (256, 160, 320, 32, 128, 128),
    "inception5a": (256, 160, 320, 32, 128, 128),
    "inception5b": (384, 192, 384, 48, 128, 128),
}
_POOLED = 0.5  # scale of the pooled branch, whose moments are the least certain
_POOL_AFTER = {"inception3b": 3, "inception4e": 2}  # kernel side of the max pool, stride 2


def googlenet(net: Network) -> Value:
    """Stem, nine inception cells, classifier."""
    x = _unit(net, net.image(), 64, 7, "conv1", stride=2)
    x = net.max_pool(x, 3, 2, ceil=True)
    x = _unit(net, x, 64, 1, "conv2")
    x = _unit(net, x, 192, 3, "conv3")
    x = net.max_pool(x, 3, 2, ceil=True)
    for name, widths in _CELLS.items():
        with net.scope(name):
            x = _cell(net, x, *widths)
        if name in _POOL_AFTER:
            x = net.max_pool(x, _POOL_AFTER[name], 2, ceil=True)
    return net.classifier(x, 1000, name="fc")


def _cell(net: Network, x: Value, one: int, reduce3: int, three: int, reduce5: int, five: int, projection: int) -> Value:
    return net.concat(
        [
            _unit(net, x, one, 1, "branch1"),
            _unit(net, _unit(net, x, reduce3, 1, "branch2.0"), three, 3, "branch2.1"),
            _unit(net, _unit(net, x, reduce5, 1, "branch3.0"), five, 3, "branch3.1"),
            _unit(net, net.max_pool(x, 3, 1, padding=1, ceil=True), projection, 1, "branch4.1", gain=_POOLED),
        ]
    )


def _unit(net: Network, x: Value, channels: int, kernel: int, name: str, stride: int = 1, gain: float = 1.0) -> Value:
    with net.scope(name):
        return net.conv_bn(x, channels, kernel, stride=stride, conv="conv", bn="bn", eps=1e-3, gain=gain)
