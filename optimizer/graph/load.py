"""First stage: a path or a ``ModelProto`` becomes a :class:`LoadedModel`, or one clear sentence says why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.external_data_helper import ExternalDataInfo

from ..errors import ModelError

OLDEST_OPSET = 7


@dataclass(frozen=True)
class LoadedModel:
    """A model as it was read.

    Attributes:
        proto: The truth; external data is not loaded into it, and nobody changes it.
        path: Where it was read from, or None for one that came as an object.
        base_dir: Folder that external data is relative to, or None.
        external_files: Names of the external data files, relative to ``base_dir``.
    """

    proto: ModelProto
    path: Path | None
    base_dir: Path | None
    external_files: tuple[str, ...]

    @property
    def label(self) -> str:
        """What messages call it."""
        return str(self.path) if self.path else (self.proto.graph.name or "model")


def load(source: str | Path | ModelProto) -> LoadedModel:
    """Reads ``source``.

    Raises:
        ModelError: not a file, not an ONNX model, cut short, external data missing or outside the model's folder, opset below 7.
    """
    path = None if isinstance(source, ModelProto) else Path(source)
    proto = source if isinstance(source, ModelProto) else _read(Path(source))
    label = str(path) if path else "model"
    if not proto.ir_version or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{label}: not an ONNX model (it has no IR version or an empty graph)")
    opset = next((i.version for i in proto.opset_import if i.domain in ("", "ai.onnx")), None)
    if opset is not None and opset < OLDEST_OPSET:
        raise ModelError(f"{label}: opset {opset} is older than {OLDEST_OPSET}, the oldest that is supported")
    base_dir = path.resolve().parent if path else None
    files: dict[str, int] = {}
    for tensor in external_tensors(proto):
        info = ExternalDataInfo(tensor)
        files[info.location] = max(files.get(info.location, 0), (info.offset or 0) + (info.length or 0))
    for name, size in files.items():
        _check_external(label, base_dir, name, size)
    return LoadedModel(proto, path, base_dir, tuple(sorted(files)))


def _read(path: Path) -> ModelProto:
    try:
        data = path.read_bytes()
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read ({cause.strerror or cause})") from cause
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as cause:
        raise ModelError(f"{path}: not an ONNX model, or cut short (protobuf: {str(cause).splitlines()[0]})") from cause
    return proto


def _check_external(label: str, base_dir: Path | None, name: str, size: int) -> None:
    if base_dir is None:
        raise ModelError(f"{label}: weights lie in the external file {name!r}, so the model must be given as a path")
    file = (base_dir / name).resolve()
    if not file.is_relative_to(base_dir):
        raise ModelError(f"{label}: external data file {name!r} lies outside the model's folder")
    if not file.is_file():
        raise ModelError(f"{label}: external data file {name!r} is missing from {base_dir}")
    if file.stat().st_size < size:
        raise ModelError(f"{label}: external data file {name!r} is cut short ({file.stat().st_size} bytes, {size} expected)")


def external_tensors(proto: ModelProto) -> list[TensorProto]:
    """Every tensor of the model, attributes, sub-graphs and local functions included, whose values lie in another file."""
    return [t for t in all_tensors(proto) if t.data_location == TensorProto.EXTERNAL]


def all_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model: initializers and attributes of the graph, its sub-graphs and the local functions."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _graph_tensors(attribute.g)
            for graph in attribute.graphs:
                yield from _graph_tensors(graph)


def tensor_bytes(tensor: TensorProto) -> int:
    """Bytes that the values of ``tensor`` take in a file, by its type and shape."""
    name = TensorProto.DataType.Name(tensor.data_type)
    count = 1
    for dim in tensor.dims:
        count *= dim
    bits = 4 if name in ("INT4", "UINT4", "FLOAT4E2M1") else 2 if name in ("INT2", "UINT2") else None
    if bits is None:
        return count * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return (count * bits + 7) // 8
