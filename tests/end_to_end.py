"""`optimize` on a model, and the answers of what it wrote: in ONNX Runtime on the CPU, with and without the op library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto

from oplib import REPOSITORY, build
from tilewright import custom_ops
from tilewright.optimizer.config import OptimizeConfig
from tilewright.optimizer.pipeline import optimize
from tilewright.optimizer.result import Result
from tilewright.optimizer.target import parse_targets

KERNELS = REPOSITORY / ".cache" / "kernels"  # compiled kernels, found by content: kept between runs of the tests
ONE_TARGET = parse_targets("sm_90")  # one cubin a kernel, so that compiling is quick
DOMAIN = "tilewright"
ONE_NODE_A_REGION = ("canonicalize", "regions", "matmul")


@dataclass(frozen=True)
class Optimized:
    """What one run read, wrote and said."""

    before: ModelProto
    after: ModelProto
    path: Path
    result: Result

    @property
    def regions(self) -> int:
        """Number of custom nodes in the file, sub-graphs included."""
        return sum(node.domain == DOMAIN for node in all_nodes(self.after.graph))


def config(**options: Any) -> OptimizeConfig:
    """Every region that can be made, for one target class; ``options`` override."""
    return OptimizeConfig(**{"targets": ONE_TARGET, "cache_dir": KERNELS, "take_all": True, "passes": ONE_NODE_A_REGION, **options})


def optimized(model: ModelProto | Path, folder: Path, **options: Any) -> Optimized:
    """Writes ``model`` (unless it is a file already) and what becomes of it into ``folder``."""
    source = model if isinstance(model, Path) else folder / "model.onnx"
    if isinstance(model, ModelProto):
        onnx.save(model, source)
    result = optimize(source, config(**options), folder / "fast.onnx")
    return Optimized(onnx.load(source), onnx.load(folder / "fast.onnx"), folder / "fast.onnx", result)


def all_nodes(graph: GraphProto) -> list[NodeProto]:
    """The nodes of ``graph`` and its sub-graphs."""
    return [n for node in graph.node for n in (node, *(m for a in node.attribute for g in (a.g, *a.graphs) for m in all_nodes(g)))]


def answers(model: ModelProto | Path, feeds: Mapping[str, Any], library: bool = False) -> dict[str, Any]:
    """The outputs of ``model`` on the CPU by name; with ``library`` as a user's program has it, with the op library registered."""
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    if library:
        os.environ.setdefault("TILEWRIGHT_LOG", "off")
        options.register_custom_ops_library(str(build() / custom_ops.loader.LIBRARY))
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def assert_same(expected: Mapping[str, Any], got: Mapping[str, Any], bound: float = 1e-5) -> None:
    """Asserts equal names, types and shapes, and values within ``bound`` (relative Frobenius error)."""
    assert list(expected) == list(got)
    for name, wanted in expected.items():
        _assert_same(name, wanted, got[name], bound)


def _assert_same(name: str, wanted: Any, value: Any, bound: float) -> None:
    if isinstance(wanted, list):
        assert len(wanted) == len(value), name
        for i, (a, b) in enumerate(zip(wanted, value, strict=True)):
            _assert_same(f"{name}[{i}]", a, b, bound)
    elif not isinstance(wanted, np.ndarray) or wanted.dtype.kind not in "fc":
        np.testing.assert_array_equal(value, wanted, err_msg=name)
    else:
        assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape), name
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(value[~finite], wanted[~finite], err_msg=name)
        assert relative_error(value[finite], wanted[finite]) <= bound, f"{name}: {relative_error(value[finite], wanted[finite]):.2e}"


def relative_error(value: np.ndarray, reference: np.ndarray) -> float:
    """||value - reference|| / ||reference||, in float64."""
    a, b = value.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


def assert_right(done: Optimized, feeds: Mapping[str, Any], bound: float = 1e-5) -> None:
    """Asserts that the written model gives the original's answers on ``feeds``, with and without the op library."""
    expected = answers(done.before, feeds)
    assert_same(expected, answers(done.path, feeds), bound)
    assert_same(expected, answers(done.path, feeds, library=True), bound)
