"""The convolutions of ResNet-50, MobileNetV2 and GoogLeNet at 224 x 224, each distinct shape once with its number of uses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One convolution: square input, filter and padding; ``groups`` is 1, or the channels for a depthwise one."""

    cin: int
    cout: int
    size: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def out(self) -> int:
        """Height and width of the output, with padding kernel // 2."""
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    def flops(self, batch: int) -> float:
        """Floating-point operations, a multiply-add counted twice."""
        return 2.0 * batch * self.out**2 * self.cout * self.kernel**2 * self.cin / self.groups

    def __str__(self) -> str:
        kind = "dw" if self.groups > 1 else ""
        return f"{kind}{self.kernel}x{self.kernel}{f's{self.stride}' if self.stride > 1 else ''} {self.cin}->{self.cout} @{self.size}"


def resnet50() -> list[Layer]:
    layers, cin, size = [Layer(3, 64, 224, 7, 2)], 64, 56
    for blocks, mid in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            stride = 2 if block == 0 and mid > 64 else 1
            layers += [Layer(cin, mid, size, 1), Layer(mid, mid, size, 3, stride), Layer(mid, 4 * mid, size // stride, 1)]
            if block == 0:
                layers.append(Layer(cin, 4 * mid, size, 1, stride))
            cin, size = 4 * mid, size // stride
    return layers


def mobilenet_v2() -> list[Layer]:
    layers, cin, size = [Layer(3, 32, 224, 3, 2)], 32, 112
    for expand, cout, blocks, first_stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(blocks):
            stride, mid = first_stride if block == 0 else 1, cin * expand
            layers += [Layer(cin, mid, size, 1)] if expand > 1 else []
            layers += [Layer(mid, mid, size, 3, stride, mid), Layer(mid, cout, size // stride, 1)]
            cin, size = cout, size // stride
    return [*layers, Layer(320, 1280, 7, 1)]


def googlenet() -> list[Layer]:
    layers = [Layer(3, 64, 224, 7, 2), Layer(64, 64, 56, 1), Layer(64, 192, 56, 3)]
    blocks = (
        (192, 28, 64, 96, 128, 16, 32, 32), (256, 28, 128, 128, 192, 32, 96, 64), (480, 14, 192, 96, 208, 16, 48, 64), (512, 14, 160, 112, 224, 24, 64, 64),
        (512, 14, 128, 128, 256, 24, 64, 64), (512, 14, 112, 144, 288, 32, 64, 64), (528, 14, 256, 160, 320, 32, 128, 128),
        (832, 7, 256, 160, 320, 32, 128, 128), (832, 7, 384, 192, 384, 48, 128, 128),
    )  # fmt: skip
    for cin, size, one, reduce3, three, reduce5, five, pool in blocks:
        layers += [Layer(cin, one, size, 1), Layer(cin, reduce3, size, 1), Layer(reduce3, three, size, 3)]
        layers += [Layer(cin, reduce5, size, 1), Layer(reduce5, five, size, 5), Layer(cin, pool, size, 1)]
    return layers


MODELS = {"resnet50": resnet50, "mobilenet_v2": mobilenet_v2, "googlenet": googlenet}


def layers(model: str) -> Counter[Layer]:
    """Distinct layers of ``model`` with how often each is used."""
    return Counter(MODELS[model]())
