"""Runs one node on known values, in ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from ..errors import TilewrightError
from .protos import attribute_protos
from .view import Node


class EvaluationError(TilewrightError):
    """ONNX Runtime cannot run the node on the CPU."""


def evaluate(node: Node, inputs: Sequence[np.ndarray | None], opset: int) -> list[np.ndarray]:
    """The outputs of ``node`` for ``inputs`` (None where an optional one is left out).

    Raises:
        EvaluationError: an input has a type that NumPy lacks, or ONNX Runtime refuses the node or fails in it.
    """
    import onnxruntime

    if any(v is not None and (v.dtype.isbuiltin != 1 or v.dtype.kind not in "biuf") for v in inputs):
        raise EvaluationError("a data type that NumPy does not have")
    names = ["" if v is None else f"i{k}" for k, v in enumerate(inputs)]
    made = onnx.NodeProto(op_type=node.op, input=names, output=[t.name and f"o{k}" for k, t in enumerate(node.outputs)])
    made.attribute.extend(attribute_protos(node))
    feeds = {n: np.asarray(v, order="C") for n, v in zip(names, inputs, strict=True) if v is not None}
    declared = [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()]
    results = [onnx.helper.make_empty_tensor_value_info(n) for n in made.output if n]
    graph = onnx.GraphProto(name="node", node=[made], input=declared, output=results)
    model = onnx.ModelProto(ir_version=8, graph=graph, opset_import=[onnx.OperatorSetIdProto(version=opset)])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(v) for v in session.run(None, feeds)]
    except Exception as cause:  # NOTE: ONNX Runtime's errors share no base class.
        raise EvaluationError(f"ONNX Runtime: {str(cause).splitlines()[0]}") from cause
