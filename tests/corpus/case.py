"""One model of the corpus, and how the models are written."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper, parser

Feeds = Mapping[str, Any]
Weights = Mapping[str, tuple[int, ...] | np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model and what is known of it.

    Attributes:
        build: Makes the model.
        feeds: Makes its inputs, where random tensors will not do.
        valid: Whether onnx.checker takes it.
        runs: Whether ONNX Runtime runs it.
        regions: How many custom nodes are made of it when every candidate is taken; None where it does not matter.
    """

    build: Callable[[], ModelProto]
    feeds: Callable[[], Feeds] | None = None
    valid: bool = True
    runs: bool = True
    regions: int | None = None


CASES: dict[str, Case] = {}


def case(**facts: Any) -> Callable[[Callable[[], ModelProto]], Callable[[], ModelProto]]:
    """Adds the decorated builder to :data:`CASES` under its own name."""

    def add(build: Callable[[], ModelProto]) -> Callable[[], ModelProto]:
        CASES[build.__name__] = Case(build, **facts)
        return build

    return add


def weights(name: str, *shape: int) -> np.ndarray:
    """Seeded float32 values that keep activations of order 1."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return (rng.standard_normal(shape) / max(1, np.prod(shape[1:])) ** 0.5).astype(np.float32)


def parsed(text: str, constants: Weights | None = None, *, ir: int = 8, opset: int = 17, domains: str = "") -> ModelProto:
    """The model of ``text`` (ONNX text form without its header) with initializers: arrays, or shapes of random weights."""
    model = parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}{domains}]>\n{text}')
    for name, value in (constants or {}).items():
        array = weights(name, *value) if isinstance(value, tuple) else value
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model
