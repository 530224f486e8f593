"""ConvNeXt-Tiny (Liu et al., 2022), torchvision's layout: layer norm over channels between transposes, linear layers in NHWC."""

from __future__ import annotations

from .layers import Network
from .samples import Value

_WIDTHS = (96, 192, 384, 768)
_DEPTHS = (3, 3, 9, 3)
_EPS = 1e-6
_SCALE = 0.3  # layer scale; training starts at 1e-6, where the blocks would do nothing


def convnext_tiny(net: Network) -> Value:
    """Patch stem, four stages, downsampling between them."""
    x = net.conv(net.image(), _WIDTHS[0], 4, stride=4, bias=0.0, name="features.0.0")
    x = _norm2d(net, x, "features.0.1")
    for stage, (width, depth) in enumerate(zip(_WIDTHS, _DEPTHS, strict=True)):
        if stage:
            x = _norm2d(net, x, f"features.{2 * stage}.0")
            x = net.conv(x, width, 2, stride=2, bias=0.0, name=f"features.{2 * stage}.1")
        for block in range(depth):
            with net.scope(f"features.{2 * stage + 1}.{block}"):
                x = _block(net, x)
    x = net.flatten(_norm2d(net, net.global_pool(x), "classifier.0"))
    return net.gemm(x, 1000, name="classifier.2")


def _norm2d(net: Network, x: Value, name: str) -> Value:
    x = net.transpose(x, 0, 2, 3, 1)
    return net.transpose(net.layer_norm(x, name=name, eps=_EPS), 0, 3, 1, 2)


def _block(net: Network, x: Value) -> Value:
    width = x.channels
    with net.scope("block"):
        y = net.conv(x, width, 7, padding=3, groups=width, bias=0.0, name="0")
        y = net.layer_norm(net.transpose(y, 0, 2, 3, 1), name="2", eps=_EPS)
        y = net.act(net.linear(y, 4 * width, name="3"), "gelu")
        y = net.transpose(net.linear(y, width, name="5"), 0, 3, 1, 2)
    scale = net.draw("layer_scale", (width, 1, 1), _SCALE / 4, _SCALE)
    scaled = net.op("Mul", net.state("layer_scale", scale), y.name)
    return net.add(Value(scaled, y.samples * scale[:, :, 0]), x)
