"""The backend suite that the onnx package ships: every case with its model, inputs and expected outputs as ONNX Runtime takes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper, version_converter
from onnx.backend.test.loader import load_model_tests

OLDEST_OPSET = 7  # the oldest that is supported
NEWEST_IR = 10  # the newest that ONNX Runtime loads
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = ("simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    """One case; ``data_sets`` holds inputs and expected outputs, in the order of the model's."""

    name: str
    model: ModelProto
    data_sets: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float


def cases(kind: str) -> Iterator[Case]:
    """The cases of ``kind``: ``node`` or one of :data:`FOLDERS`, in the order of their names."""
    for case in sorted(_loaded(kind), key=lambda case: case.name):
        folder = Path(case.model_dir) if case.model_dir else None
        model = onnx.load(folder / "model.onnx") if folder else ModelProto.FromString(case.model.SerializeToString())
        model.ir_version = min(model.ir_version, NEWEST_IR)
        sets = [_read(model, s) for s in sorted(folder.glob("test_data_set_*"))] if folder else case.data_sets
        yield Case(case.name, model, [([_value(v) for v in a], [_value(v) for v in b]) for a, b in sets], case.rtol, case.atol)


@cache
def _loaded(kind: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the suite computes infinities and NaN on purpose
        return load_model_tests(kind=kind)


def _read(model: ModelProto, folder: Path) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs of one data set on disk."""
    initializers = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in initializers]
    types = {"input": (model.graph.input if len(list(folder.glob("input_*.pb"))) > len(inputs) else inputs), "output": model.graph.output}
    return tuple([_parse(folder / f"{word}_{i}.pb", info.type) for i, info in enumerate(types[word]) if (folder / f"{word}_{i}.pb").exists()] for word in types)


def _parse(path: Path, kind: onnx.TypeProto) -> Any:
    parsers = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto, "tensor_type": TensorProto}
    return parsers[kind.WhichOneof("value")].FromString(path.read_bytes())


def old(model: ModelProto) -> bool:
    """Whether the opset of ``model`` is older than those that are supported."""
    return any(i.version < OLDEST_OPSET for i in model.opset_import if i.domain in ("", "ai.onnx"))


def raised(model: ModelProto) -> ModelProto:
    """``model``, by ONNX's converter at the oldest supported opset where its own is older."""
    return version_converter.convert_version(model, OLDEST_OPSET) if old(model) else model


def with_constants(model: ModelProto, feeds: dict[str, Any]) -> ModelProto:
    """A copy in which every input but the first is an initializer that holds what is fed, as weights and parameters are in real models."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for info in list(copy.graph.input)[1:]:
        value = feeds.get(info.name)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            copy.graph.initializer.append(numpy_helper.from_array(value, info.name))
            copy.graph.input.remove(info)
    return copy


@dataclass(frozen=True)
class Light:
    """A light model, the one input that the suite feeds it, and the output that the suite expects."""

    model: ModelProto
    feeds: dict[str, np.ndarray]
    expected: np.ndarray


LIGHT = tuple(sorted(path.stem.removeprefix("light_") for path in (DATA / "light").glob("*.onnx")))


def light(name: str) -> Light:
    """The light model ``name`` of :data:`LIGHT`: real networks, all of whose weights are one number from ConstantOfShape."""
    model = onnx.load(DATA / "light" / f"light_{name}.onnx")
    output = TensorProto.FromString((DATA / "light" / f"light_{name}_output_0.pb").read_bytes())
    initializers = {t.name for t in model.graph.initializer}
    (info,) = (i for i in model.graph.input if i.name not in initializers)
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    size = int(np.prod(shape))
    return Light(model, {info.name: (np.arange(size, dtype=np.float64).reshape(shape) / size).astype(np.float32)}, numpy_helper.to_array(output))


def with_weights(model: ModelProto, seed: int = 0) -> ModelProto:
    """A copy of a light model with random weights as initializers in place of its ConstantOfShape nodes, and without the Softmax at its end.

    Activations keep their scale from layer to layer; after Softmax one class would have all of it.
    """
    copy, rng = ModelProto(), np.random.default_rng(seed)
    copy.CopyFrom(model)
    shapes = {t.name: numpy_helper.to_array(t) for t in copy.graph.initializer}
    for node in [n for n in copy.graph.node if n.op_type == "ConstantOfShape"]:
        shape = tuple(int(d) for d in shapes[node.input[0]])
        if len(shape) > 1:
            weights = rng.standard_normal(shape, np.float32) * np.float32((2 / np.prod(shape[1:])) ** 0.5)
        else:
            weights = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        copy.graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
        copy.graph.input.append(onnx.helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, shape))  # IR 3 wants it
        copy.graph.node.remove(node)
    last = copy.graph.node[-1]
    if last.op_type == "Softmax":
        copy.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, None))
        copy.graph.node.remove(last)
    return onnx.shape_inference.infer_shapes(copy) if last.op_type == "Softmax" else copy


def _value(value: Any) -> Any:
    """A case's value as a session takes it."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return np.asarray(value) if isinstance(value, np.generic) else value
