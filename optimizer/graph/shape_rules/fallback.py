"""Ops without a rule of ours: the onnx package infers one node, our expressions travelling as named dims."""

from __future__ import annotations

import onnx
from onnx import NodeProto, TensorProto, TypeProto, helper

from ..protos import attribute_protos, tensor_proto
from ..symbols import Dim
from ..view import Constant, Node, producer, subgraphs
from .registry import Call, CannotInfer, Fact, Values
from .signatures import schema

_MAX_DATA = 1024  # elements of a constant that is handed over


def infer_by_onnx(call: Call, domain: str) -> list[Fact]:
    """Facts of the outputs as ``onnx.shape_inference`` finds them; nothing where it fails."""
    node = call.node
    found = schema(domain, node.op, call.engine.opset(domain))
    if found is None or found.deprecated or subgraphs(node):
        raise CannotInfer("the op is unknown")
    proto = NodeProto(op_type=node.op, domain=domain)
    proto.attribute.extend(attribute_protos(node))
    names: dict[Dim, str] = {}
    types: dict[str, TypeProto] = {}
    data: dict[str, TensorProto] = {}
    for i in range(len(node.inputs)):
        name = f"i{i}" if call.has(i) else ""
        proto.input.append(name)
        if not name:
            continue
        fact = call.fact(i)
        if fact.dtype is None:
            raise CannotInfer(f"the type of input {i} is unknown")
        types[name] = _type(fact, names)
        value = call.value(i)
        if value is not None and all(isinstance(e, int) for e in value.flat) and value.size <= _MAX_DATA:
            data[name] = _data(call.node, i, fact, value)
    proto.output.extend(f"o{i}" if t.name else "" for i, t in enumerate(node.outputs))
    try:
        results = onnx.shape_inference.infer_node_outputs(found, proto, types, data, opset_imports=[helper.make_opsetid(domain, call.engine.opset(domain))])
    except (onnx.shape_inference.InferenceError, KeyError, ValueError, RuntimeError) as cause:
        raise CannotInfer(f"onnx cannot infer it ({cause})") from cause
    back = {name: dim for dim, name in names.items()}
    return [_fact(call, results.get(f"o{i}"), back) for i in range(len(node.outputs))]


def _type(fact: Fact, names: dict[Dim, str]) -> TypeProto:
    result = TypeProto()
    result.tensor_type.elem_type = fact.dtype or 0
    for dim in fact.shape or ():
        entry = result.tensor_type.shape.dim.add()
        if isinstance(dim, int):
            entry.dim_value = dim
        else:
            entry.dim_param = names.setdefault(dim, f"d{len(names)}")
    if fact.shape == ():
        result.tensor_type.shape.SetInParent()
    return result


def _data(node: Node, index: int, fact: Fact, value: Values) -> TensorProto:
    tensor = node.inputs[index]
    source = tensor if isinstance(tensor, Constant) else None
    maker = producer(tensor)
    if source is None and maker is not None and isinstance(maker.attrs.get("value"), Constant):
        source = maker.attrs["value"]
    if source is not None:
        return tensor_proto(source)
    return helper.make_tensor("", fact.dtype or TensorProto.INT64, value.shape, [int(e) for e in value.flat])


def _fact(call: Call, found: TypeProto | None, back: dict[str, Dim]) -> Fact:
    if found is None or found.WhichOneof("value") != "tensor_type":
        return Fact()
    tensor = found.tensor_type
    dtype = tensor.elem_type or None
    if not tensor.HasField("shape"):
        return Fact(dtype=dtype)
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            # NOTE: some schemas read a named dim as the number 0 and compute with it.
            dims.append(dim.dim_value if dim.dim_value > 0 or (dim.dim_value == 0 and not back) else call.engine.fresh())
        else:
            dims.append(back[dim.dim_param] if dim.dim_param in back else call.engine.fresh())
    return Fact(tuple(dims), dtype=dtype)
