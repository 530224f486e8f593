"""Builds small models, puts them through canonicalize, and compares ONNX Runtime's answers before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper

from export_view import export_view
from tilewright.optimizer.graph.canonicalize import CanonicalizeReport, canonicalize
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View

Dims = Sequence[int | str]


def node(op: str, inputs: Iterable[str], outputs: Iterable[str] | str, **attrs: object) -> NodeProto:
    """``helper.make_node`` with one output given as a plain string."""
    return helper.make_node(op, list(inputs), [outputs] if isinstance(outputs, str) else list(outputs), **attrs)


def model(
    nodes: Iterable[NodeProto],
    inputs: Mapping[str, Dims],
    outputs: Iterable[str],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    ir: int = 8,
    dtypes: Mapping[str, int] | None = None,
    functions: Sequence[FunctionProto] = (),
    keep_unused: bool = False,
) -> ModelProto:
    """A model; outputs have the shapes that ONNX infers. ``dtypes`` gives inputs and outputs that are not ``dtype``; unused constants are left out."""
    nodes, kinds = list(nodes), dict(dtypes or {})
    read = _read_names(nodes)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(k, kinds.get(k, dtype), list(v)) for k, v in inputs.items()],
        [helper.make_tensor_value_info(o, kinds.get(o, dtype), None) for o in outputs],
        [onnx.numpy_helper.from_array(np.array(v, order="C"), k) for k, v in (constants or {}).items() if keep_unused or k in read],
    )
    domains = sorted({n.domain for n in graph.node if n.domain})
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)], ir_version=ir)
    made.functions.extend(functions)
    for declared, inferred in zip(graph.output, onnx.shape_inference.infer_shapes(made).graph.output, strict=True):
        declared.CopyFrom(inferred)  # the checker wants a shape
    del made.graph.output[:]
    made.graph.output.extend(graph.output)
    return made


def _read_names(nodes: Iterable[NodeProto]) -> set[str]:
    names = {name for n in nodes for name in n.input}
    return names | {name for n in nodes for a in n.attribute for g in (a.g, *a.graphs) for name in _read_names(g.node)}


@dataclass(frozen=True)
class Result:
    """A canonicalized model and what the stage said."""

    before: ModelProto
    after: ModelProto
    report: CanonicalizeReport

    @property
    def ops(self) -> list[str]:
        """Ops of the main graph in order, Constant nodes left out."""
        return [n.op_type for n in self.after.graph.node if n.op_type != "Constant"]

    @property
    def counts(self) -> Counter[str]:
        """How often each op is in the main graph."""
        return Counter(self.ops)

    @property
    def rules(self) -> set[str]:
        """Names of the rules that were applied."""
        return {a.rule for a in self.report.applied}

    def reason(self, rule: str) -> str:
        """Why ``rule`` refused; the reasons of several refusals joined."""
        return "; ".join(r.reason for r in self.report.refused if r.rule == rule)


def optimize(before: ModelProto, **options: bool) -> Result:
    """Canonicalizes ``before``; the result passes the checker, and doing it again changes nothing."""
    original = before.SerializeToString(deterministic=True)
    view = View(before, **options)
    report = canonicalize(view, infer(view), lambda: infer(view))
    after = export_view(view)
    assert before.SerializeToString(deterministic=True) == original, "the original was changed"
    if all(o.type.tensor_type.HasField("shape") for o in after.graph.output):
        onnx.checker.check_model(after, full_check=True)
    again = View(after, **options)
    second = canonicalize(again, infer(again), lambda: infer(again))
    assert second.applied == (), f"not idempotent: {second.applied}"
    return Result(before, after, report)


def run(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX Runtime's answers on the CPU without its own graph rewrites."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def feeds_for(model: ModelProto, seed: int = 0, dim: int = 3, scale: float = 3.0) -> dict[str, np.ndarray]:
    """Random inputs; symbolic dims are ``dim``. Initializers that are inputs too are left to their defaults."""
    rng = np.random.default_rng(seed)
    initializers = {t.name for t in model.graph.initializer}
    result = {}
    for info in model.graph.input:
        if info.name in initializers:
            continue
        kind = info.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else dim for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        result[info.name] = np.asarray((rng.standard_normal(shape) * scale) if dtype.kind == "f" else rng.integers(0, 2, shape), dtype)
    return result


def check(result: Result, bound: float = 1e-5, feeds: Mapping[str, np.ndarray] | None = None, dim: int = 3) -> None:
    """Asserts that both models give the same answers: names, shapes, types, and relative Frobenius error up to ``bound``."""
    assert [o.name for o in result.before.graph.output] == [o.name for o in result.after.graph.output]
    for seed in (0, 1):
        inputs = feeds if feeds is not None else feeds_for(result.before, seed, dim)
        for wanted, got in zip(run(result.before, inputs), run(result.after, inputs), strict=True):
            assert wanted.shape == got.shape and wanted.dtype == got.dtype
            if wanted.dtype.kind != "f":
                assert np.array_equal(wanted, got)
                continue
            assert np.array_equal(np.isfinite(wanted), np.isfinite(got))
            a, b = (np.where(np.isfinite(v), v, 0).astype(np.float64) for v in (wanted, got))
            assert np.linalg.norm(a - b) <= bound * np.linalg.norm(a) + 1e-30, f"seed {seed}: {np.linalg.norm(a - b) / np.linalg.norm(a)}"


def weights(*shape: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    """Random values."""
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * 0.5).astype(dtype)
