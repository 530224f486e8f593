"""Compares inferred shapes with what ONNX Runtime computes, for every tensor of a model's main graph."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, TensorProto, helper

from tilewright.optimizer.graph.shapes import Shapes, infer
from tilewright.optimizer.graph.symbols import evaluate, symbols_of
from tilewright.optimizer.graph.view import Constant, View


@dataclass
class Tally:
    """What one comparison saw: ``wrong`` holds a line for each contradiction."""

    tensors: int = 0
    known_rank: int = 0
    dims: int = 0
    known_dims: int = 0
    values: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.tensors += other.tensors
        self.known_rank += other.known_rank
        self.dims += other.dims
        self.known_dims += other.known_dims
        self.values += other.values
        self.wrong += other.wrong


def session(model: ModelProto, optimized: bool = False) -> onnxruntime.InferenceSession:
    """A quiet CPU session, by default without graph optimizations, so that every tensor stays."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def with_all_outputs(model: ModelProto) -> ModelProto:
    """A copy in which every tensor that a node of the main graph makes is an output."""
    copy = ModelProto()
    copy.CopyFrom(model)
    have = {o.name for o in copy.graph.output}
    for node in copy.graph.node:
        for name in node.output:
            if name and name not in have:
                copy.graph.output.append(onnx.ValueInfoProto(name=name))
                have.add(name)
    return copy


def dynamic_inputs(model: ModelProto) -> ModelProto:
    """A copy whose inputs have named dims only, all different, and no declared shapes elsewhere."""
    copy = ModelProto()
    copy.CopyFrom(model)
    initializers = {t.name for t in copy.graph.initializer}
    for i, value in enumerate(copy.graph.input):
        if value.type.HasField("tensor_type") and value.name not in initializers:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.dim_param = f"D{i}_{axis}"
    del copy.graph.value_info[:]
    for value in copy.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return copy


def compare(shapes: Shapes, view: View, arrays: dict[str, object], feeds: dict[str, object]) -> Tally:
    """Checks every array against what ``shapes`` says of the tensor of that name; symbols are bound by the feeds and by first use."""
    tally, known = Tally(), {}
    made = [t for node in view.graph.nodes for t in node.outputs if t.name in arrays]
    tensors = [t for t in view.graph.inputs if t.name in feeds and not isinstance(t, Constant)] + made
    for tensor in tensors:
        got = feeds[tensor.name] if tensor.name in feeds else arrays[tensor.name]
        if not isinstance(got, (np.ndarray, np.generic)):
            if shapes.dtype(tensor) is not None and got is not None:
                tally.wrong.append(f"{tensor.name}: is a {type(got).__name__}, inferred a tensor")
            continue
        got = np.asarray(got)
        tally.tensors += 1
        _check_dtype(shapes.dtype(tensor), got, tensor.name, tally)
        shape = shapes.shape(tensor)
        tally.dims += got.ndim
        if shape is None:
            continue
        tally.known_rank += 1
        if len(shape) != got.ndim:
            tally.wrong.append(f"{tensor.name}: has shape {got.shape}, inferred {shape}")
            continue
        for dim, size in zip(shape, got.shape, strict=True):
            if str(dim) not in known and not isinstance(dim, int) and dim.is_Symbol:
                known[str(dim)] = size
                tally.known_dims += tensor.name in feeds
            elif all(s.name in known for s in symbols_of(dim)):
                tally.known_dims += 1
                if evaluate(dim, known) != size:
                    tally.wrong.append(f"{tensor.name}: has shape {got.shape}, inferred {shape} with {known}")
        _check_value(shapes, tensor, got, known, tally)
    return tally


def _check_dtype(inferred: int | None, got: np.ndarray, name: str, tally: Tally) -> None:
    if inferred is None:
        return
    expected = np.dtype(object) if inferred == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(inferred)
    if expected != (np.dtype(object) if got.dtype.kind in "OUS" else got.dtype):
        tally.wrong.append(f"{name}: has dtype {got.dtype}, inferred {TensorProto.DataType.Name(inferred)}")


def _check_value(shapes: Shapes, tensor: object, got: np.ndarray, known: dict[str, int], tally: Tally) -> None:
    value = shapes.value(tensor)
    if value is None or got.dtype.kind not in "biuf":
        return
    for inferred, real in zip(value.flat, got.flat, strict=False):
        if isinstance(inferred, int):
            inferred_number: float = inferred
        elif inferred.is_Rational:
            inferred_number = float(inferred)
        elif inferred.is_Symbol and inferred.name not in known:
            known[inferred.name] = int(real)
            continue
        elif got.dtype.kind != "f" and all(s.name in known for s in symbols_of(inferred)):
            inferred_number = evaluate(inferred, known)
        else:
            continue
        tally.values += 1
        if not np.isclose(inferred_number, float(real), rtol=1e-6, atol=0):
            tally.wrong.append(f"{tensor.name}: holds {got}, inferred {value} with {known}")
            return


def check(model: ModelProto, feeds: dict[str, object], view_model: ModelProto | None = None) -> Tally:
    """Runs ``model`` with every tensor as an output and compares; the shapes are inferred on ``view_model`` (default: ``model``)."""
    view = View(view_model or model)
    shapes = infer(view)
    run = session(with_all_outputs(model))
    names = [o.name for o in run.get_outputs()]
    arrays = dict(zip(names, run.run(names, feeds), strict=True))
    tally = compare(shapes, view, arrays, feeds)
    tally.wrong += [f"problem: {p}" for p in shapes.problems]
    return tally


def frozen_parameters(model: ModelProto, feeds: dict[str, object]) -> ModelProto:
    """As :func:`dynamic_inputs`, with every small input but the first turned into an initializer that holds what is fed."""
    copy = dynamic_inputs(model)
    first = copy.graph.input[0].name if copy.graph.input else ""
    for name, value in feeds.items():
        if name != first and isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size <= 64:
            copy.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
            for i in [i for i in copy.graph.input if i.name == name]:
                copy.graph.input.remove(i)
    return copy
