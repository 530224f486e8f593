"""Small models with custom nodes, made with onnx alone: a chain of regions, each a call of a function whose body doubles its input.

A kernel that does anything else than doubling shows by the result whether it ran or the body did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

DOMAIN = "tilewright"
OPSET = 17


@dataclass
class Region:
    """One node of the chain: its op, its name, and the attributes of the call (str, a tensor, or bytes for a uint8 tensor)."""

    op: str = "FusedConvRegion_portable_0"
    name: str = "region"
    attributes: Mapping[str, str | bytes | np.ndarray] = field(default_factory=dict)
    outputs: int = 1


def digest(image: bytes) -> str:
    """The name of an image."""
    return hashlib.sha256(image).hexdigest()


def carried(image: bytes) -> dict[str, bytes]:
    """The attribute by which a node carries ``image``."""
    return {f"image_{digest(image)[:16]}": image}


def add_plan(image: bytes | str, value: float, kernel: str = "add", dtype: str = "f32", extra: str = "") -> str:
    """The launch plan of ``y = x + value`` for a two-dimensional x, with a kernel that takes (x, y, int n, float value)."""
    name = image if isinstance(image, str) else digest(image)
    return (
        f"tilewright 1\noutput {dtype} i0.0 i0.1\nimage {name}\n"
        f"launch 0 {kernel} 128 0 ceildiv(i0.0*i0.1,128) 1 1\n{extra}arg in 0 0\narg out 0 0\narg i32 i0.0*i0.1\narg f32 {value}\n"
    )


def chain(regions: Sequence[Region], shape: Sequence[int | str] = ("N", 4), ir_version: int = 8) -> ModelProto:
    """``x -> region -> region -> y``, every node with a second input that only its body's caller knows as a weight."""
    functions, nodes, seen = [], [], set()
    last = len(regions) - 1
    for i, region in enumerate(regions):
        outputs = [f"t{i}" if i < last else "y", *(f"t{i}_{k}" for k in range(1, region.outputs))]
        node = helper.make_node(region.op, ["x" if i == 0 else f"t{i - 1}", "weight"], outputs, name=region.name, domain=DOMAIN)
        for key, value in sorted(region.attributes.items()):
            array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
            node.attribute.append(helper.make_attribute(key, array if isinstance(array, str) else numpy_helper.from_array(array, key)))
        nodes.append(node)
        if region.op not in seen:
            seen.add(region.op)
            names = [f"b{k}" for k in range(region.outputs)]
            body = [helper.make_node("Add", ["a", "a"], [name]) for name in names]
            functions.append(helper.make_function(DOMAIN, region.op, ["a", "w"], names, body, [helper.make_opsetid("", OPSET)]))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.array([5.0], np.float32), "weight")],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=ir_version)
