"""VGG-16 without batch norm (Simonyan and Zisserman, 2014), torchvision's layout."""

from __future__ import annotations

from .builder import ZooError
from .layers import OFFSET, Network
from .samples import Value

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_GRID = 7  # the classifier reads 7x7 pixels, what is left of 224


def vgg16(net: Network) -> Value:
    """Thirteen 3x3 convolutions, then three linear layers on 7x7 pixels; the adaptive pool before these is an AveragePool of one pixel.

    Raises:
        ZooError: the image is not 224x224; the adaptive pool has no ONNX form for others.
    """
    if (net.dims.height, net.dims.width) != (32 * _GRID, 32 * _GRID):
        raise ZooError(f"vgg16 needs images of 224x224, not {net.dims.height}x{net.dims.width}")
    x, layer = net.image(), 0
    for channels, depth in _STAGES:
        for _ in range(depth):
            x = net.act(net.conv(x, channels, 3, padding=1, bias=OFFSET, name=f"features.{layer}"), "relu")
            layer += 2
        x = net.max_pool(x, 2, 2)
        layer += 1
    x = net.flatten(net.average_pool(x, 1, 1), _GRID**2)
    x = net.act(net.gemm(x, 4096, bias=OFFSET, name="classifier.0"), "relu")
    x = net.act(net.gemm(x, 4096, bias=OFFSET, name="classifier.3"), "relu")
    return net.gemm(x, 1000, name="classifier.6")
