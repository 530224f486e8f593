"""The canonicalize stage on whole small models: answers stay, the fixpoint is one, the bytes do not depend on the hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from export_view import export_view
from rule_harness import check, feeds_for, model, node, optimize, run, weights
from tilewright.optimizer.errors import ModelError
from tilewright.optimizer.graph import canonicalize as stage
from tilewright.optimizer.graph.canonicalize import canonicalize
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View

ROOT = Path(__file__).parents[2]


class Maker:
    """Collects nodes and constants under names that count up."""

    def __init__(self, opset: int, seed: int = 0) -> None:
        self.opset, self.nodes, self.constants, self.rng, self.count = opset, list[NodeProto](), dict[str, np.ndarray](), np.random.default_rng(seed), 0

    def const(self, values: object, dtype: type = np.float32) -> str:
        self.count += 1
        self.constants[f"k{self.count}"] = np.asarray(values, dtype)
        return f"k{self.count}"

    def __call__(self, op: str, *inputs: str, **attrs: object) -> str:
        self.count += 1
        self.nodes.append(node(op, inputs, f"t{self.count}", **attrs))
        return f"t{self.count}"

    def random(self, *shape: int) -> str:
        return self.const(self.rng.uniform(-0.7, 0.7, shape))

    def norm(self, x: str, channels: int) -> str:
        low = (0.5, -0.5, -0.5, 0.2)
        return self("BatchNormalization", x, *(self.const(self.rng.uniform(a, a + 1, channels)) for a in low))

    def clip(self, x: str, low: float, high: float) -> str:
        return self("Clip", x, min=low, max=high) if self.opset < 11 else self("Clip", x, self.const(low), self.const(high))

    def pad(self, x: str, amounts: list[int]) -> str:
        return self("Pad", x, pads=amounts) if self.opset < 11 else self("Pad", x, self.const(amounts, np.int64))

    def done(self, out: str, inputs: dict[str, list[int | str]]) -> ModelProto:
        self.nodes.append(node("Identity", [out], "y"))
        return model(self.nodes, inputs, ["y"], self.constants, opset=self.opset)


def mobile_block(opset: int) -> ModelProto:
    """Pad, Conv, BatchNorm, hard swish, depthwise Conv, squeeze and excite with hard sigmoid, projection, residual."""
    m = Maker(opset)

    def hard_swish(x: str) -> str:
        return m("Div", m("Mul", x, m.clip(m("Add", x, m.const(3)), 0.0, 6.0)), m.const(6))

    stem = hard_swish(m.norm(m("Conv", m.pad("x", [0, 0, 1, 1, 0, 0, 1, 1]), m.random(8, 3, 3, 3)), 8))
    wide = hard_swish(m.norm(m("Conv", m("Dropout", stem), m.random(16, 8, 1, 1)), 16))
    deep = m.norm(m("Conv", wide, m.random(16, 1, 3, 3), group=16, auto_pad="SAME_UPPER"), 16)
    gate = m("Relu", m("Conv", m("GlobalAveragePool", deep), m.random(4, 16, 1, 1), m.random(4)))
    gate = m("Div", m.clip(m("Add", m("Conv", gate, m.random(16, 4, 1, 1)), m.const(3)), 0.0, 6.0), m.const(6))
    narrow = m.norm(m("Conv", m("Mul", deep, gate), m.random(8, 16, 1, 1)), 8)
    return m.done(m("Add", narrow, stem), {"x": ["n", 3, 8, 8]})


def encoder_block(opset: int) -> ModelProto:
    """MatMul and bias on [n, 6, 8], attention through Reshape and Transpose by Shape arithmetic, GELU, redundant layout changes."""
    m = Maker(opset)

    def heads(x: str) -> str:
        batch = m("Gather", m("Shape", x), m.const([0], np.int64))
        shape = m("Concat", batch, m.const([6], np.int64), m.const([2], np.int64), m.const([4], np.int64), axis=0)
        return m("Transpose", m("Reshape", x, shape), perm=[0, 2, 1, 3])

    q, k, v = (heads(m("Add", m("MatMul", "x", m("Transpose", m.random(8, 8), perm=[1, 0])), m.random(8))) for _ in range(3))
    scores = m("Softmax", m("Div", m("MatMul", q, m("Transpose", k, perm=[0, 1, 3, 2])), m("Sqrt", m.const(4))), axis=3)
    mixed = m("Reshape", m("Transpose", m("MatMul", scores, v), perm=[0, 2, 1, 3]), m.const([-1, 8], np.int64))
    hidden = m("Add", m("MatMul", mixed, m.random(8, 16)), m.random(16))
    gelu = m("Mul", m("Mul", hidden, m.const(0.5)), m("Add", m("Erf", m("Div", hidden, m("Sqrt", m.const(2)))), m.const(1)))
    out = m("Reshape", m("Gemm", gelu, m.random(8, 16), m.random(8), transB=1), m.const([-1, 6, 8], np.int64))
    back = m("Transpose", m("Transpose", m("Cast", out, to=1), perm=[0, 2, 1]), perm=[0, 2, 1])
    return m.done(m("Add", back, "x"), {"x": ["n", 6, 8]})


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 14, 17, 18, 20, 21, 22, 23])
def test_mobile_block(opset: int) -> None:
    result = optimize(mobile_block(opset))
    assert result.counts["BatchNormalization"] == result.counts["Pad"] == result.counts["Dropout"] == result.counts["Identity"] == 0
    assert result.counts["Conv"] == 6 and result.counts["HardSigmoid"] == 1 and result.counts["HardSwish"] == (2 if opset >= 14 else 0)
    assert len(result.ops) == (13 if opset >= 14 else 19)
    check(result)


@pytest.mark.parametrize("opset", [11, 13, 17, 20, 23])
def test_encoder_block(opset: int) -> None:
    result = optimize(encoder_block(opset))
    assert result.counts["Cast"] == 0 and result.counts["Gemm"] == 2 and result.counts["Gelu"] == (1 if opset >= 20 else 0)
    assert result.counts["Transpose"] == 4 and result.counts["Shape"] == 3
    check(result)


def random_model(seed: int) -> ModelProto:
    """A random walk over what the rules look at; dims are kept at [n, 4, 6, 6] so that any step may follow any other."""
    m = Maker(int(np.random.default_rng(seed).choice([9, 11, 13, 17, 20])), seed)
    rng = m.rng
    made, extra = ["x"], list[str]()

    def affine(x: str) -> str:
        shape = [(), (1,), (4, 1, 1), (1, 4, 1, 1), (6,), (1, 4, 6, 6)][rng.integers(6)]
        pair = [x, m.const(rng.uniform(0.5, 2, shape))]
        op = str(rng.choice(["Add", "Sub", "Mul", "Div"]))
        return m(op, *(pair if op == "Div" or rng.random() < 0.8 else pair[::-1]))

    def conv(x: str) -> str:
        kernel, group = (1, 3)[rng.integers(2)], (1, 2, 4)[rng.integers(3)]
        how = {"auto_pad": "SAME_LOWER"} if rng.random() < 0.3 else {"pads": [kernel // 2] * 4}
        weight = m.random(4, 4 // group, kernel, kernel)
        if kernel == 3 and rng.random() < 0.4:
            x, how = m.pad(x, [0, 0, 1, 1, 0, 0, 1, 1]), {}
        return m("Conv", x, weight, *([m.random(4)] if rng.random() < 0.5 else []), group=group, **how)

    def swish(x: str) -> str:
        return m("Mul", x, m("Sigmoid", x)) if rng.random() < 0.5 else m("Div", m("Mul", m.clip(m("Add", x, m.const(3)), 0.0, 6.0), x), m.const(6))

    def layout(x: str) -> str:
        return m(
            "Transpose", m("Relu", m("Transpose", x, perm=[0, 2, 3, 1])) if rng.random() < 0.5 else m("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2]
        )

    def cast(x: str) -> str:
        return m("Cast", m("Cast", x, to=int(rng.choice([11, 1]))), to=1)

    steps = [
        affine,
        affine,
        conv,
        conv,
        conv,
        swish,
        layout,
        cast,
        lambda x: m.norm(x, 4),
        lambda x: m.norm(conv(x), 4),
        lambda x: m("Relu", x),
        lambda x: m("Identity", x),
        lambda x: m("MaxPool", m.pad(m("Relu", x), [0, 0, 1, 1, 0, 0, 1, 1]), kernel_shape=[3, 3]),
        lambda x: m("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        lambda x: m("Add", x, made[rng.integers(len(made))]),
        lambda x: m("Tanh", x),
        lambda x: m.clip(m("Relu", x), -1.0, 6.0),
        lambda x: m("Reshape", x, m.const([-1, 4, 6, 6], np.int64)),
    ]
    for _ in range(14):
        source = made[-1] if rng.random() < 0.8 else made[rng.integers(len(made))]
        made.append(steps[rng.integers(len(steps))](source))
        if rng.random() < 0.1:
            extra.append(made[-1])
    result = m.done(made[-1], {"x": ["n", 4, 6, 6]})
    inferred = onnx.shape_inference.infer_shapes(result)
    kinds = {v.name: v for v in inferred.graph.value_info}
    result.graph.output.extend(kinds[e] for e in dict.fromkeys(extra))
    return result


@pytest.mark.parametrize("seed", range(120))
def test_random_model(seed: int) -> None:
    result = optimize(random_model(seed))
    check(result, bound=1e-5)


def test_names_of_tensors_stay_unique() -> None:
    nodes = [node("Conv", ["x", "w"], "w_folded"), node("Mul", ["w_folded", "s"], "w_folded_1"), node("Relu", ["w_folded_1"], "y")]
    result = optimize(model(nodes, {"x": [1, 2, 4, 4]}, ["y"], {"w": weights(3, 2, 1, 1), "s": np.float32(2)}))
    names = [o for n in result.after.graph.node for o in n.output] + [t.name for t in result.after.graph.initializer]
    assert result.ops == ["Conv", "Relu"] and len(set(names)) == len(names)
    check(result)


def test_changed_nodes_carry_the_rule() -> None:
    view = View(mobile_block(17))
    canonicalize(view, infer(view))
    assert {n.rule for n in view.nodes() if not n.unchanged} >= {"fold-batchnorm", "spell-activation"} and all(n.rule for n in view.nodes() if not n.unchanged)


def test_nested_branches_are_rewritten_too() -> None:
    def body(i: int, nodes: list[NodeProto], out: str) -> onnx.GraphProto:
        return helper.make_graph(nodes, f"body{i}", [], [helper.make_tensor_value_info(out, 1, ["n", 3, 4, 4])])

    def conv(i: int) -> list[NodeProto]:
        return [node("Conv", ["x", "w"], f"c{i}"), node("Mul", [f"c{i}", "s"], f"r{i}")]

    inner = node("If", ["flag"], "inner", then_branch=body(1, conv(1), "r1"), else_branch=body(2, conv(2), "r2"))
    outer = node("If", ["flag"], "y", then_branch=body(3, [inner], "inner"), else_branch=body(4, conv(4), "r4"))
    m = model([outer], {"x": ["n", 2, 4, 4], "flag": []}, ["y"], {"w": weights(3, 2, 1, 1), "s": np.float32(2)}, dtypes={"flag": TensorProto.BOOL})
    result = optimize(m)
    assert [a.rule for a in result.report.applied] == ["fold-scale-after"] * 3
    for flag in (True, False):
        feeds = feeds_for(m) | {"flag": np.array(flag)}
        np.testing.assert_allclose(run(m, feeds)[0], run(result.after, feeds)[0], rtol=1e-5)


def test_loop_that_reads_what_folds_outside() -> None:
    body = helper.make_graph(
        [node("Identity", ["cond"], "go"), node("Add", ["state", "step"], "next")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", 1, [3]),
        ],
        [helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("next", 1, [3])],
    )
    m = model([node("Exp", ["w"], "step"), node("Loop", ["count", "", "x"], "y", body=body)], {"x": [3]}, ["y"], {"w": weights(3), "count": np.array(4)})
    result = optimize(m)
    assert result.ops == ["Loop"] and [t.name for t in result.after.graph.initializer] == ["count", "step"]
    check(result)


@pytest.mark.parametrize("opset", [6, 99])
def test_opset_that_no_rule_knows(opset: int) -> None:
    m = model([node("Relu", ["x"], "a"), node("Identity", ["a"], "y")], {"x": [3]}, ["y"])
    m.opset_import[0].version = opset
    view = View(m)
    report = canonicalize(view, None)  # type: ignore[arg-type]
    assert not report.applied and f"opset {opset} is outside" in str(report.refused[0]) and export_view(view) == m


def test_round_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "MAX_ROUNDS", 1)
    view = View(mobile_block(17))
    report = canonicalize(view, infer(view))
    assert report.rounds == 1 and report.applied


def test_last_round_changes_nothing() -> None:
    view = View(mobile_block(17))
    report = canonicalize(view, infer(view), lambda: infer(view))
    assert 1 < report.rounds < stage.MAX_ROUNDS


def digest() -> str:
    """Digest of what canonicalize makes of a few models."""
    models = [mobile_block(17), encoder_block(13), *(random_model(s) for s in range(8))]
    state = hashlib.sha256()
    for m in models:
        view = View(m)
        report = canonicalize(view, infer(view), lambda view=view: infer(view))
        state.update(export_view(view).SerializeToString(deterministic=True) + repr(report).encode())
    return state.hexdigest()


def test_result_does_not_depend_on_the_hash_seed() -> None:
    command = [sys.executable, "-c", "from test_canonicalize import digest; print(digest())"]
    path = os.pathsep.join(str(p) for p in (ROOT / "src", ROOT / "tests", ROOT / "tests" / "cpu"))
    digests = {
        subprocess.run(command, env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": s}, capture_output=True, text=True, check=True).stdout
        for s in ("1", "2")
    }
    assert len(digests) == 1 and digests == {digest() + "\n"}


def test_external_weights_fold(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(mobile_block(17), path, save_as_external_data=True, location="weights", size_threshold=0)
    view = View(onnx.load(path, load_external_data=False), tmp_path)
    report = canonicalize(view, infer(view), lambda: infer(view))
    assert {"fold-batchnorm", "fold-pad"} <= {a.rule for a in report.applied}
    after = export_view(view)
    onnx.load_external_data_for_model(after, str(tmp_path))
    feeds = feeds_for(mobile_block(17))
    np.testing.assert_allclose(run(mobile_block(17), feeds)[0], run(after, feeds)[0], rtol=1e-4, atol=1e-5)


def test_missing_external_weights_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(mobile_block(17), path, save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    view = View(onnx.load(path, load_external_data=False), tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        canonicalize(view, infer(view))
