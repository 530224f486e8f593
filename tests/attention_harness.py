"""Attention through the rules of the pass ``transformers``, its spellings, and its answers as files for other runtimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper

from attention_models import Spelling, attention, encoder
from tilewright.optimizer.emit.export import export_model
from tilewright.optimizer.graph.canonicalize import CanonicalizeReport, canonicalize
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.transformers import fuse_attention, fuse_pointwise
from tilewright.optimizer.graph.view import View

HALF = TensorProto.FLOAT16


class Fused:
    """``before`` canonicalized, with its attention fused (and then the rest, with ``rest``)."""

    def __init__(self, before: ModelProto, pays: bool = True, rest: bool = False) -> None:
        self.before = before
        view = View(before)
        canonicalize(view, infer(view), lambda: infer(view))
        reports: list[CanonicalizeReport] = [fuse_attention(view, infer(view), lambda: infer(view), lambda *_: pays)]
        if rest:
            reports.append(fuse_pointwise(view, lambda: infer(view)))
        self.after = export_model(view)
        self.applied = Counter(a.rule for r in reports for a in r.applied)
        self.reasons = "; ".join(str(x) for r in reports for x in r.refused)
        onnx.checker.check_model(self.after)

    @property
    def ops(self) -> Counter[str]:
        """How often each op is in the result."""
        return Counter(n.op_type for n in self.after.graph.node)

    def only(self, op: str) -> NodeProto:
        """The one node of that op."""
        (found,) = (n for n in self.after.graph.node if n.op_type == op)
        return found

    def assert_right(self, bound: float, sizes: Sequence[Mapping[str, int]] = ({"batch": 2, "length": 5}, {"batch": 3, "length": 8})) -> None:
        """The answers of before, for several sizes; a mask hides some keys, never all."""
        for seed, size in enumerate(sizes):
            feeds = inputs(self.before, size, seed)
            for wanted, got in zip(run(self.before, feeds), run(self.after, feeds), strict=True):
                assert (wanted.shape, wanted.dtype) == (got.shape, got.dtype) and np.isfinite(wanted).all()
                error = np.linalg.norm(wanted.astype(float) - got.astype(float)) / np.linalg.norm(wanted.astype(float))
                assert error <= bound, f"{error:.2e}"


def inputs(model: ModelProto, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of these sizes; float masks are 0 or far below, boolean ones true or false, with one key open to all."""
    rng, feeds = np.random.default_rng(seed), {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = [d.dim_value or sizes[d.dim_param] for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        values = rng.standard_normal(shape)
        if "mask" in info.name:
            hidden = values < 0
            hidden[..., seed % shape[-1]] = False
            values = ~hidden if kind.elem_type == TensorProto.BOOL else np.where(hidden, -1e4 if dtype == np.float16 else -3e38, 0.0)
        feeds[info.name] = np.asarray(values).astype(dtype)
    return feeds


def run(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX Runtime's answers on the CPU, with the fusions that it makes of itself as users have them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, dict(feeds)))


SPELLINGS = {
    "separate": Spelling(),
    "split": Spelling(packed="split"),
    "slices": Spelling(packed="slices"),
    "gather": Spelling(packed="gather"),
    "mul": Spelling(scale="mul"),
    "query scaled": Spelling(scale="query", packed="gather"),
    "key scaled": Spelling(scale="key"),
    "both scaled": Spelling(scale="both"),
    "not scaled": Spelling(scale="none"),
    "keys in one step": Spelling(key_once=True),
    "static": Spelling(batch=2, length=5, packed="gather"),
    "batch 1": Spelling(batch=1),
    "one token": Spelling(length=1, packed="gather"),
    "added mask": Spelling(mask="add"),
    "static added mask": Spelling(mask="add", batch=2, length=5),
    "bias of each head": Spelling(mask="wide", packed="split"),
    "bias of rank 3": Spelling(mask="rank3"),
    "where": Spelling(mask="where"),
    "where, the other way": Spelling(mask="where_inverted", packed="slices"),
    "causal": Spelling(mask="tril", length=6),
    "causal, the other way": Spelling(mask="triu", length=6),
    "causal, added": Spelling(mask="add_tril", length=6),
    "causal over a Range": Spelling(mask="range", packed="split"),
    "softmax in float32": Spelling(cast=True, dtype=HALF),
    "causal softmax in float32": Spelling(cast=True, dtype=HALF, mask="tril", length=6),
    "opset 11": Spelling(opset=11, packed="split", mask="add"),
    "opset 12, gather": Spelling(opset=12, packed="gather"),
    "opset 21": Spelling(opset=21, packed="gather", mask="add"),
}


IN_HALF = [n for n in SPELLINGS if not n.startswith("where")]  # those are refused in float16
IN_FLOAT = [n for n, s in SPELLINGS.items() if not s.cast]  # a float32 model has no such Casts


def write_cases(folder: Path) -> None:
    """Every spelling and two encoders, fused, each with inputs and the answers that the original has here."""
    cases = [(f"{n}_{d}", Fused(attention(SPELLINGS[n], dtype=d))) for d, names in ((TensorProto.FLOAT, IN_FLOAT), (HALF, IN_HALF)) for n in names]
    cases += [(f"encoder_{d}_{pre}", Fused(encoder(2, d, pre=pre), rest=True)) for d in (TensorProto.FLOAT, HALF) for pre in (False, True)]
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, fused) in enumerate(cases):
        feeds = inputs(fused.before, {"batch": 2, "length": 5})
        onnx.save(fused.after, folder / f"{number:02}_{name.replace(' ', '_').replace(',', '')}.onnx")
        np.savez(folder / f"{number:02}_{name.replace(' ', '_').replace(',', '')}.npz", answer=run(fused.before, feeds)[0], **feeds)
