"""ResNet-18 and ResNet-50 (He et al., 2015) in torchvision's layout: in the bottleneck, the 3x3 convolution carries the stride."""

from __future__ import annotations

from .layers import Network
from .samples import Value

_BRANCH = 0.5  # scale of the last batch norm of a residual branch


def resnet18(net: Network) -> Value:
    """Four stages of two basic blocks."""
    return _resnet(net, (2, 2, 2, 2), bottleneck=False)


def resnet50(net: Network) -> Value:
    """Four stages of 3, 4, 6 and 3 bottlenecks."""
    return _resnet(net, (3, 4, 6, 3), bottleneck=True)


def _resnet(net: Network, depths: tuple[int, ...], bottleneck: bool) -> Value:
    x = net.conv_bn(net.image(), 64, 7, stride=2, conv="conv1", bn="bn1")
    x = net.max_pool(x, 3, 2, padding=1)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            with net.scope(f"layer{stage + 1}.{block}"):
                x = _block(net, x, 64 << stage, stride=2 if stage and not block else 1, bottleneck=bottleneck)
    return net.classifier(x, 1000, name="fc")


def _block(net: Network, x: Value, width: int, stride: int, bottleneck: bool) -> Value:
    if bottleneck:
        out = width * 4
        y = net.conv_bn(x, width, 1, conv="conv1", bn="bn1")
        y = net.conv_bn(y, width, 3, stride=stride, conv="conv2", bn="bn2")
        y = net.conv_bn(y, out, 1, conv="conv3", bn="bn3", act="", gain=_BRANCH)
    else:
        out = width
        y = net.conv_bn(x, width, 3, stride=stride, conv="conv1", bn="bn1")
        y = net.conv_bn(y, out, 3, conv="conv2", bn="bn2", act="", gain=_BRANCH)
    if stride != 1 or x.channels != out:
        x = net.conv_bn(x, out, 1, stride=stride, conv="downsample.0", bn="downsample.1", act="")
    return net.act(net.add(y, x), "relu")
