"""U-Net (Ronneberger et al., 2015) with padded convolutions and batch norm: four levels, 64 channels at the top, 1024 at the bottom.

Convolutions before batch norm have no bias; the upsampling convolutions and the head have one. That makes 31,037,698 parameters with 3 input
channels and 2 classes.
"""

from __future__ import annotations

from .builder import ZooError
from .layers import Network
from .samples import Value

_BASE = 64
_LEVELS = 4
_CLASSES = 2


def unet(net: Network) -> Value:
    """Contracting path, expanding path with concatenated skips, per-pixel logits.

    Raises:
        ZooError: a static height or width is no multiple of 16, so that the skips would not fit.
    """
    for side in (net.dims.height, net.dims.width):
        if isinstance(side, int) and side % (1 << _LEVELS):
            raise ZooError(f"unet needs sides that are multiples of {1 << _LEVELS}, not {side}")
    x = _double(net, net.image(), _BASE, "inc")
    skips = []
    for level in range(_LEVELS):
        skips.append(x)
        x = _double(net, net.max_pool(x, 2, 2), _BASE << (level + 1), f"down{level + 1}")
    for level in reversed(range(_LEVELS)):
        up = net.conv_transpose(x, _BASE << level, 2, name=f"up{_LEVELS - level}.up")
        x = _double(net, net.concat([skips[level], up]), _BASE << level, f"up{_LEVELS - level}.conv")
    return net.conv(x, _CLASSES, 1, bias=0.0, name="outc")


def _double(net: Network, x: Value, channels: int, name: str) -> Value:
    with net.scope(name):
        x = net.conv_bn(x, channels, 3, conv="0", bn="1")
        return net.conv_bn(x, channels, 3, conv="3", bn="4")
