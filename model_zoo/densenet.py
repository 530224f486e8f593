"""DenseNet-121 (Huang et al., 2016), torchvision's layout: batch norm and ReLU come before each convolution."""

from __future__ import annotations

from .layers import Network
from .samples import Value

_GROWTH = 32
_BOTTLENECK = 4 * _GROWTH


def densenet121(net: Network) -> Value:
    """Dense blocks of 6, 12, 24 and 16 layers."""
    with net.scope("features"):
        x = net.conv_bn(net.image(), 64, 7, stride=2, conv="conv0", bn="norm0")
        x = net.max_pool(x, 3, 2, padding=1)
        for block, depth in enumerate((6, 12, 24, 16), 1):
            parts = [x]
            for layer in range(1, depth + 1):
                with net.scope(f"denseblock{block}.denselayer{layer}"):
                    parts.append(_layer(net, net.concat(parts)))
            x = net.concat(parts)
            if block < 4:
                with net.scope(f"transition{block}"):
                    x = net.act(net.batch_norm(x, name="norm"), "relu")
                    x = net.average_pool(net.conv(x, x.channels // 2, 1, name="conv"), 2, 2)
        x = net.act(net.batch_norm(x, name="norm5"), "relu")
    return net.classifier(x, 1000, name="classifier")


def _layer(net: Network, x: Value) -> Value:
    x = net.act(net.batch_norm(x, name="norm1"), "relu")
    x = net.conv_bn(x, _BOTTLENECK, 1, conv="conv1", bn="norm2")
    return net.conv(x, _GROWTH, 3, padding=1, name="conv2")
