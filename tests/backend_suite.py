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


def raised(model: ModelProto) -> ModelProto | None:
    """``model`` at an opset that is supported: itself, what ONNX's converter makes of it, or None where that fails."""
    if all(i.version >= OLDEST_OPSET for i in model.opset_import if i.domain in ("", "ai.onnx")):
        return model
    try:
        return version_converter.convert_version(model, OLDEST_OPSET)
    except Exception:  # the converter raises what it likes
        return None


def _value(value: Any) -> Any:
    """A case's value as a session takes it."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return np.asarray(value) if isinstance(value, np.generic) else value
