"""The pass ``transformers`` of `optimize`: what it writes, with custom nodes and without, what it leaves as it is, and what happens where ONNX Runtime errs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, TensorProto, helper

from attention_models import WIDTH, attention, encoder
from corpus import CASES
from end_to_end import DOMAIN, ONE_NODE_A_REGION, Optimized, all_nodes, answers, assert_right, assert_same, config, optimized
from oplib import REPOSITORY
from real_models import MODELS
from sentences import directions, sentence_encoder, tokens
from tilewright import model_zoo
from tilewright.optimizer.cli import main
from tilewright.optimizer.config import PASSES
from tilewright.optimizer.graph.transformers import attention as attention_rule
from tilewright.optimizer.pipeline import optimize
from tilewright.optimizer.plan.cost import vendor_attention_us
from tilewright.optimizer.target import device

FUSED_ONLY = ("canonicalize", "transformers")
MICROSOFT = "com.microsoft"


def ops(done: Optimized) -> Counter[str]:
    """How often each op is in the written file, with names of custom nodes cut short."""
    return Counter(n.op_type.split("_")[0] for n in all_nodes(done.after.graph))


def feeds(batch: int = 2, length: int = 5, dtype: type = np.float32) -> dict[str, np.ndarray]:
    """For :func:`encoder`: the mask hides the last two keys of the first sequence, and the first of the others."""
    rng = np.random.default_rng(batch)
    mask = np.zeros((batch, 1, 1, length))
    mask[0, ..., -2:] = mask[1:, ..., 0] = -1e4
    return {"x": rng.standard_normal((batch, length, WIDTH)).astype(dtype), "mask": mask.astype(dtype)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Optimized:
    """An encoder through every pass, every product a custom node."""
    return optimized(encoder(2), tmp_path_factory.mktemp("whole"), passes=PASSES, require_verify=True)


def test_beside_custom_nodes(whole: Optimized) -> None:
    """Products, biases, GELUs and sums are custom nodes, joined where they touch; attention stands between them."""
    assert ops(whole)["MultiHeadAttention"] == 2 and not ops(whole)["Softmax"] + ops(whole)["MatMul"] + ops(whole)["Erf"]
    assert len(whole.result.regions) == 8 and sum(n.domain == DOMAIN for n in whole.after.graph.node) == whole.regions
    assert_right(whole, feeds())
    assert_right(whole, feeds(3, 9))


def test_what_stays(whole: Optimized) -> None:
    """Inputs, outputs, metadata, doc strings, opset and IR version; ONNX Runtime's domain is imported once."""
    assert whole.after.graph.input == whole.before.graph.input and whole.after.graph.output == whole.before.graph.output
    assert (whole.after.doc_string, whole.after.metadata_props) == (whole.before.doc_string, whole.before.metadata_props)
    assert whole.after.graph.node[0].doc_string == "stays" and whole.after.ir_version == whole.before.ir_version
    imports = {i.domain: i.version for i in whole.after.opset_import}
    assert imports[""] == 17 and imports[MICROSOFT] == 1 and len(imports) == len(whole.after.opset_import)
    names = [n.name for n in all_nodes(whole.before.graph)]
    assert all(n.name in names for n in whole.after.graph.node if n.op_type == "MultiHeadAttention")
    onnx.checker.check_model(whole.after)


@pytest.mark.parametrize("pre", [False, True], ids=["norm after", "norm before"])
def test_without_custom_nodes(pre: bool, tmp_path: Path) -> None:
    done = optimized(encoder(2, pre=pre), tmp_path, passes=FUSED_ONLY, require_verify=True)
    assert done.regions == 0 and ops(done)["MultiHeadAttention"] == ops(done)["BiasGelu"] == 2 and ops(done)["SkipLayerNormalization"] >= 3
    assert done.result.expected_speedup > 1.2
    assert_right(done, feeds())
    assert_right(done, feeds(3, 9))


def test_float16(tmp_path: Path) -> None:
    """ONNX Runtime's CPU provider has no float16 attention: it runs the file all the same, with Casts of its own."""
    done = optimized(encoder(1, TensorProto.FLOAT16), tmp_path, passes=PASSES, require_verify=True)
    assert ops(done)["MultiHeadAttention"] == 1
    assert_right(done, feeds(dtype=np.float16), bound=5e-3)


def test_float16_of_a_float32_model(tmp_path: Path) -> None:
    done = optimized(encoder(1), tmp_path, passes=PASSES, precision="fp16", require_verify=True)
    assert ops(done)["MultiHeadAttention"] == 1
    assert_right(done, feeds(), bound=5e-3)


def test_in_a_branch(tmp_path: Path) -> None:
    """Attention inside an If is fused there."""
    inner = attention(batch=2, length=5)
    then, other = (helper.make_graph(n, name, [], o) for n, name, o in ((inner.graph.node, "then", inner.graph.output), ([], "else", [])))
    other.node.append(helper.make_node("Identity", ["x"], ["same"]))
    other.output.append(helper.make_tensor_value_info("same", TensorProto.FLOAT, [2, 5, WIDTH]))
    graph = helper.make_graph([helper.make_node("If", ["c"], ["r"], then_branch=then, else_branch=other)], "g", [*inner.graph.input], [])
    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 5, WIDTH]))
    graph.initializer.extend(inner.graph.initializer)
    model = helper.make_model(graph, opset_imports=inner.opset_import, ir_version=8)
    done = optimized(model, tmp_path, passes=FUSED_ONLY, require_verify=True)
    assert ops(done)["MultiHeadAttention"] == 1 and not ops(done)["Softmax"]
    for taken in (True, False):
        assert_right(done, {"x": feeds()["x"], "c": np.array(taken)})


def test_in_a_local_function(tmp_path: Path) -> None:
    """A function that holds products is inlined for the planners, and its attention found then."""
    inner = attention(batch=2, length=5)
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in inner.graph.initializer]
    function: FunctionProto = helper.make_function("mine", "Block", ["x"], ["y"], [*constants, *inner.graph.node], inner.opset_import)
    graph = helper.make_graph([helper.make_node("Block", ["x"], ["y"], "block", domain="mine")], "g", inner.graph.input, inner.graph.output)
    imports = [*inner.opset_import, helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=8)
    done = optimized(model, tmp_path, passes=PASSES, require_verify=True)
    assert ops(done)["MultiHeadAttention"] == 1 and done.regions
    assert_right(done, {"x": feeds()["x"]})


# ---- what is left alone

WITHOUT = ("residual_net", "conv_functions", "conv_in_if", "metadata")


@pytest.mark.parametrize("name", WITHOUT)
def test_models_without_attention(name: str, tmp_path: Path) -> None:
    """The same bytes with the pass and without."""
    written = []
    for passes in (PASSES, tuple(p for p in PASSES if p != "transformers")):
        optimize(CASES[name].build(), config(passes=passes), tmp_path / "out.onnx")
        written.append((tmp_path / "out.onnx").read_bytes())
    assert written[0] == written[1]


def test_norms_without_attention_stay(tmp_path: Path) -> None:
    """ONNX Runtime fuses those itself when it loads a model; where no attention was fused nothing is."""
    model = encoder(1)
    scores = next(n for n in model.graph.node if n.op_type == "Softmax")
    next(a for a in scores.attribute if a.name == "axis").i = 2
    with_pass = optimize(model, config(passes=FUSED_ONLY), tmp_path / "with.onnx")
    optimize(model, config(passes=("canonicalize",)), tmp_path / "without.onnx")
    assert (tmp_path / "with.onnx").read_bytes() == (tmp_path / "without.onnx").read_bytes()
    assert any(r.rule == "fuse-attention" and "not over the keys" in r.reason for r in with_pass.refusals)


def test_pass_left_out(tmp_path: Path) -> None:
    done = optimized(encoder(1), tmp_path, passes=ONE_NODE_A_REGION)
    assert all(n.domain != MICROSOFT for n in all_nodes(done.after.graph)) and all(i.domain != MICROSOFT for i in done.after.opset_import)


def test_wrong_results_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the fused ops give other answers, for whatever reason, the file is made without them, and says so."""
    right = attention_rule._attributes
    monkeypatch.setattr(attention_rule, "_attributes", lambda *args: right(*args) | {"scale": 0.9})
    done = optimized(encoder(1), tmp_path, passes=FUSED_ONLY, require_verify=True)
    assert ops(done)["Softmax"] == 1 and not ops(done)["MultiHeadAttention"]
    assert any(r.rule == "transformers" and "other results" in r.reason for r in done.result.refusals)
    assert not any(a.rule.startswith("fuse-") for a in done.result.applied)
    assert_right(done, feeds())


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_op_that_does_not_run(dtype: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where ONNX Runtime refuses to run them."""
    right = attention_rule._attributes
    monkeypatch.setattr(attention_rule, "_attributes", lambda *args: right(*args) | {"num_heads": 5})
    done = optimized(encoder(1, dtype), tmp_path, passes=FUSED_ONLY, require_verify=True)
    assert ops(done)["Softmax"] == 1 and any(r.rule == "transformers" for r in done.result.refusals)


def test_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(attention(mask="two"), tmp_path / "m.onnx")
    assert main([str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out.onnx"), "--explain", "--dry-run"]) == 0
    assert "more than one mask" in " ".join(capsys.readouterr().out.split())


# ---- the same bytes again, prices

PROGRAM = """
import hashlib, pathlib, sys
from attention_models import encoder
from end_to_end import config
from tilewright.optimizer.config import PASSES
from tilewright.optimizer.pipeline import optimize
(file,) = optimize(encoder(2), config(passes=PASSES, verify=False), pathlib.Path(sys.argv[1])).files
print(hashlib.sha256(file.read_bytes()).hexdigest())
"""


def test_same_bytes(whole: Optimized, tmp_path: Path) -> None:
    """Whatever the seed of Python's hashes."""
    digests = {hashlib.sha256(whole.path.read_bytes()).hexdigest()}
    for seed in ("0", "1"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(str(REPOSITORY / p) for p in ("src", "tests"))}
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / f"{seed}.onnx")], env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_price_of_attention() -> None:
    """It grows with the products, and is never below a kernel's own time."""
    h200 = device("h200")
    small, large = (vendor_attention_us(h200, "f16", flops, 1e6) for flops in (1e6, 1e12))
    assert small == h200.launch_us + h200.vendor_floor_us and 2000 < large < 5000


def test_products_are_merged_by_price(tmp_path: Path) -> None:
    """Few rows: launches count, one product. Many rows: the Split would cost more than it saves."""
    model = model_zoo.build("bert_base", batch="batch", sequence=128, dtype="fp16")
    splits = []
    for batch in (1, 64):
        shapes = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (batch, 128))
        splits.append(optimize(model, config(passes=PASSES, opt_shapes=shapes, dry_run=True, take_all=False)).ops_after.get("Split", 0))
    assert splits == [12, 0]


# ---- whole networks


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["bert_base", "vit_b_16", "gpt2_small"])
def test_zoo(name: str, dtype: str, tmp_path: Path) -> None:
    """Through every pass with the cost model's own choice, verified; right on inputs of another size."""
    sizes: dict[str, int | str] = {"batch": "batch"} | ({} if name == "vit_b_16" else {"sequence": "sequence"})
    done = optimized(model_zoo.build(name, dtype=dtype, **sizes), tmp_path, passes=PASSES, take_all=False, require_verify=True)
    assert ops(done)["MultiHeadAttention"] == 12 and not ops(done)["Softmax"] and done.regions
    assert_right(done, model_zoo_feeds(done.before), bound=2e-2 if dtype == "fp16" else 1e-4)


def model_zoo_feeds(model: ModelProto, batch: int = 2, length: int = 17) -> dict[str, np.ndarray]:
    """Random tokens or pictures; the mask of the first text ends early, that of the second begins late."""
    rng, feeds = np.random.default_rng(0), {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = [d.dim_value or {"batch": batch, "sequence": length}[d.dim_param] for d in kind.shape.dim]
        if kind.elem_type == TensorProto.INT64:
            feeds[info.name] = rng.integers(0, 2 if "type" in info.name else 1000, shape)
        else:
            feeds[info.name] = rng.standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if "mask" in info.name:
            feeds[info.name] = np.ones(shape, np.int64)
            feeds[info.name][0, -5:] = feeds[info.name][1, :3] = 0
    return feeds


@pytest.mark.slow
def test_reactions(tmp_path: Path) -> None:
    """A published encoder: fifteen of its sixteen layers; the weights of the last one are what it is for."""
    path = MODELS["reaction"].path()
    done = optimized(path, tmp_path, passes=FUSED_ONLY)
    assert ops(done)["MultiHeadAttention"] == 15 and ops(done)["Softmax"] == 1 and ops(done)["SkipLayerNormalization"] == 30
    for inputs in MODELS["reaction"].feeds():
        assert_right(done, inputs, bound=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [FUSED_ONLY, PASSES], ids=["fused", "whole"])
def test_sentences(passes: tuple[str, ...], tmp_path: Path) -> None:
    """A published encoder of sentences of any number and length finds which of four mean the same."""
    words = ("A man is playing a guitar.", "Someone plays a guitar on stage.", "The stock market fell sharply today.", "Shares dropped on Wall Street.")
    given = tokens(list(words))
    done = optimized(sentence_encoder(), tmp_path, passes=passes, require_verify=True)
    assert ops(done)["MultiHeadAttention"] == 6 and not ops(done)["Softmax"]
    assert bool(done.regions) == (passes == PASSES)
    assert_right(done, given, bound=3e-5)
    assert_right(done, {k: v[:1, :6] for k, v in given.items()}, bound=3e-5)
    found = directions(next(iter(answers(done.path, given, library=True).values())), given["attention_mask"])
    likeness = found @ found.T
    assert likeness[0, 1] > 0.6 and likeness[2, 3] > 0.5 and np.abs(likeness[:2, 2:]).max() < 0.2


def test_weights_in_a_file_beside_it(tmp_path: Path) -> None:
    """Products are merged where the weights are external too; the written ones are whole."""
    (tmp_path / "in").mkdir()
    onnx.save(encoder(1), tmp_path / "in" / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=100)
    result = optimize(tmp_path / "in" / "m.onnx", config(passes=FUSED_ONLY, require_verify=True), tmp_path / "out.onnx")
    assert [f.name for f in result.files] == ["out.onnx", "out.onnx.data"] and result.ops_after["Split"] == 1
    assert_same(answers(tmp_path / "in" / "m.onnx", feeds()), answers(tmp_path / "out.onnx", feeds()), bound=2e-6)
