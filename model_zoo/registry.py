"""The models that can be built by name, with the facts published about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

import onnx

from . import convnext, densenet, efficientnet, inception, mobilenet, nasnet, resnet, squeezenet, transformers, unet, vgg
from .builder import Dim, Precision, ZooError
from .layers import Dims, Network
from .samples import Value

Family: TypeAlias = Literal["cnn", "vit", "bert", "gpt"]

_IMAGE_FAMILIES = ("cnn", "vit")


@dataclass(frozen=True)
class ModelSpec:
    """What is known about a model.

    Attributes:
        family: Kind of network.
        size: Default side of the image in pixels, or default length of the sequence in tokens.
        parameters: Published number of learnable parameters.
        outputs: Name -> shape of each output; ``batch``, ``height``, ``width``, ``sequence`` stand for the dimensions asked for.
        network: Writes the graph and returns the tensors of the outputs, in order.
    """

    family: Family
    size: int
    parameters: int
    outputs: Mapping[str, tuple[Dim, ...]]
    network: Callable[[Network], Value | tuple[Value, ...]]


def _classifier(network: Callable[[Network], Value], parameters: int, family: Family = "cnn") -> ModelSpec:
    return ModelSpec(family, 224, parameters, MappingProxyType({"output": ("batch", 1000)}), network)


MODELS: Mapping[str, ModelSpec] = MappingProxyType(
    {
        "googlenet": _classifier(inception.googlenet, 6_624_904),
        "resnet18": _classifier(resnet.resnet18, 11_689_512),
        "resnet50": _classifier(resnet.resnet50, 25_557_032),
        "densenet121": _classifier(densenet.densenet121, 7_978_856),
        "mobilenet_v2": _classifier(mobilenet.mobilenet_v2, 3_504_872),
        "mobilenet_v3_large": _classifier(mobilenet.mobilenet_v3_large, 5_483_032),
        "squeezenet1_1": _classifier(squeezenet.squeezenet1_1, 1_235_496),
        "nasnetamobile": _classifier(nasnet.nasnetamobile, 5_289_978),
        "unet": ModelSpec("cnn", 256, 31_037_698, MappingProxyType({"output": ("batch", 2, "height", "width")}), unet.unet),
        "efficientnet_b0": _classifier(efficientnet.efficientnet_b0, 5_288_548),
        "convnext_tiny": _classifier(convnext.convnext_tiny, 28_589_128),
        "vgg16": _classifier(vgg.vgg16, 138_357_544),
        "vit_b_16": _classifier(transformers.vit_b_16, 86_567_656, "vit"),
        "bert_base": ModelSpec(
            "bert",
            128,
            109_482_240,
            MappingProxyType({"last_hidden_state": ("batch", "sequence", 768), "pooler_output": ("batch", 768)}),
            transformers.bert_base,
        ),
        "gpt2_small": ModelSpec("gpt", 128, 124_439_808, MappingProxyType({"logits": ("batch", "sequence", 50257)}), transformers.gpt2_small),
    }
)


def names() -> list[str]:
    """The names that :func:`build` knows."""
    return list(MODELS)


def build(
    name: str, *, batch: Dim = 1, size: int | tuple[int, int] | str | None = None, dtype: Precision = "fp32", sequence: Dim | None = None, seed: int = 0
) -> onnx.ModelProto:
    """Builds a model with random weights, IR 8, opset 17, in the spelling of a PyTorch export before batch norms are folded.

    Equal arguments give equal bytes. Weights depend on ``seed`` and the model only, not on batch, image size (but for ViT's position table), sequence or
    ``dtype``, up to rounding. Intermediate tensors carry no declared shapes.

    Args:
        name: One of :func:`names`.
        batch: Number of images or sequences; a string makes the dimension symbolic with that name.
        size: Side of a square image, or (height, width), in pixels; ``"dynamic"`` makes them symbolic, ``H`` and ``W``; any other string is the name of
            both (a square of symbolic side). None is the model's default. Image models only.
        dtype: Type of weights, floating-point inputs and outputs, and everything between; integer inputs stay int64.
        sequence: Number of tokens; a string makes it symbolic (up to 512 at run time for BERT, 1024 for GPT-2). None is the model's default. Text models
            only.
        seed: Selects the weights.

    Returns:
        The model, with weights inside.

    Raises:
        ZooError: The name is unknown, or the model cannot have these dimensions.
    """
    spec = MODELS.get(name)
    if spec is None:
        raise ZooError(f"unknown model {name!r}; there are {', '.join(MODELS)}")
    if dtype not in ("fp32", "fp16"):
        raise ZooError(f"unknown dtype {dtype!r}; there are fp32 and fp16")
    net = Network(name, _dims(name, spec, batch, size, sequence), precision=dtype, seed=seed)
    results = spec.network(net)
    values = results if isinstance(results, tuple) else (results,)
    symbols: dict[Dim, Dim] = {"batch": batch, "height": net.dims.height, "width": net.dims.width, "sequence": net.dims.sequence}
    net.outputs({output: (v.name, [symbols.get(d, d) for d in shape]) for (output, shape), v in zip(spec.outputs.items(), values, strict=True)})
    return net.model


def _dims(name: str, spec: ModelSpec, batch: Dim, size: int | tuple[int, int] | str | None, sequence: Dim | None) -> Dims:
    if isinstance(batch, int) and batch < 1:
        raise ZooError(f"batch must be at least 1, not {batch}")
    if spec.family not in _IMAGE_FAMILIES:
        if size is not None:
            raise ZooError(f"{name} reads text: give sequence, not size")
        return Dims(batch, sequence=spec.size if sequence is None else sequence)
    if sequence is not None:
        raise ZooError(f"{name} reads images: give size, not sequence")
    if size == "dynamic":
        return Dims(batch, "H", "W")
    height, width = size if isinstance(size, tuple) else (spec.size, spec.size) if size is None else (size, size)
    return Dims(batch, height, width)
