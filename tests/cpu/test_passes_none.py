"""Every model of the corpus: `--passes none` gives its bytes back; a rewrite keeps everything around the graph, and the answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from corpus import CASES, names
from corpus.case import parsed
from corpus.tensor_types import feeds_of_optional
from end_to_end import DOMAIN, all_nodes, answers, assert_right, assert_same, config, optimized
from rule_harness import feeds_for
from tilewright.optimizer.pipeline import optimize

every_case = pytest.mark.parametrize("name", CASES)


def unchanged(source: Path, output: Path) -> None:
    """`--passes none` from ``source`` to ``output``."""
    result = optimize(source, config(passes=()), output)
    assert output.read_bytes() == source.read_bytes()
    assert result.files[0] == output and not result.regions and result.ops_before == result.ops_after


@every_case
def test_bytes(name: str, tmp_path: Path) -> None:
    onnx.save(CASES[name].build(), tmp_path / "model.onnx")
    unchanged(tmp_path / "model.onnx", tmp_path / "out.onnx")


@every_case
def test_bytes_with_external_data(name: str, tmp_path: Path) -> None:
    """Beside the original the copy shares its data file; in another folder it gets one of its own."""
    source, other = tmp_path / "model.onnx", tmp_path / "other"
    other.mkdir()
    onnx.save(CASES[name].build(), source, save_as_external_data=True, location="weights.bin", size_threshold=0, convert_attribute=True)
    data = (tmp_path / "weights.bin").read_bytes() if (tmp_path / "weights.bin").exists() else None
    unchanged(source, tmp_path / "same.onnx")
    unchanged(source, other / "out.onnx")
    assert sorted(p.name for p in other.iterdir()) == ["out.onnx", *(["weights.bin"] if data is not None else [])]
    if data is not None:
        assert (tmp_path / "weights.bin").read_bytes() == data == (other / "weights.bin").read_bytes()


def test_bytes_of_a_model_object(tmp_path: Path) -> None:
    model = CASES["metadata"].build()
    optimize(model, config(passes=()), tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == model


def test_bytes_that_no_serializer_writes(tmp_path: Path) -> None:
    """Fields in another order and a field of the future: still the input's bytes."""
    data = CASES["metadata"].build().SerializeToString()
    strange = b"\xfa\x7f\x03abc" + data[2:] + data[:2]  # field 2047; ir_version, the first field, last
    (tmp_path / "model.onnx").write_bytes(strange)
    unchanged(tmp_path / "model.onnx", tmp_path / "out.onnx")


# ---- the whole path


@every_case
def test_rewritten(name: str, tmp_path: Path) -> None:
    """Header, inputs and outputs as they were, a valid model, the same answers; and doing it again finds nothing more to do."""
    case = CASES[name]
    done = optimized(case.build(), tmp_path)
    assert done.regions == len(done.result.regions)
    assert case.regions in (None, done.regions), done.result.refusals
    assert_header_kept(done.before, done.after)
    if case.valid:
        onnx.checker.check_model(done.after, full_check=True)
    assert done.result.ops_after == optimize(done.path, config(), None).ops_after
    if case.runs:
        assert_right(done, case.feeds() if case.feeds else feeds_for(done.before, dim=8))


@every_case
def test_canonicalized(name: str, tmp_path: Path) -> None:
    """`--passes canonicalize` gives a model of standard ops with the header as it was, IR version included."""
    case = CASES[name]
    done = optimized(case.build(), tmp_path, passes=("canonicalize",))
    assert done.regions == 0 and DOMAIN not in {i.domain for i in done.after.opset_import}
    assert done.after.ir_version == done.before.ir_version and list(done.after.functions) == list(done.before.functions)
    assert_header_kept(done.before, done.after)
    if case.valid:
        onnx.checker.check_model(done.after, full_check=True)
    if case.runs:
        assert_right(done, case.feeds() if case.feeds else feeds_for(done.before, dim=8))


@pytest.mark.parametrize("name", ["metadata", "conv_in_if", "sparse_initializer", "conv_functions", "strings", "no_elements"])
def test_rewritten_with_external_data(name: str, tmp_path: Path) -> None:
    """Weights come from a file beside the input and go to one beside the output; the input's files stay as they were."""
    case = CASES[name]
    source = tmp_path / "in" / "model.onnx"
    source.parent.mkdir()
    onnx.save(case.build(), source, save_as_external_data=True, location="weights.bin", size_threshold=0, convert_attribute=True)
    before = {p.name: p.read_bytes() for p in source.parent.iterdir()}
    done = optimized(source, tmp_path)
    assert {p.name: p.read_bytes() for p in source.parent.iterdir()} == before
    assert [p.name for p in done.result.files] == ["fast.onnx", "fast.onnx.data"]
    assert done.regions == case.regions
    shutil.rmtree(source.parent)
    feeds = case.feeds() if case.feeds else feeds_for(done.before, dim=8)
    assert_same(answers(done.before, feeds), answers(done.path, feeds))


def test_optional_input_that_is_given(tmp_path: Path) -> None:
    assert_right(optimized(CASES["optional"].build(), tmp_path), feeds_of_optional())


def assert_header_kept(before: ModelProto, after: ModelProto) -> None:
    """Asserts that all is as it was, byte for byte, but for nodes, initializers, IR version, our functions and our domain."""
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(before, field) == getattr(after, field), field
    for field in ("metadata_props", "training_info", "configuration"):
        assert list(getattr(before, field)) == list(getattr(after, field)), field
    kept = [f for f in after.functions if f.domain != DOMAIN]
    assert all(f in list(before.functions) for f in kept)
    assert [i for i in after.opset_import if i.domain != DOMAIN] == list(before.opset_import)
    assert after.ir_version == before.ir_version or (after.ir_version == 8 and any(n.domain == DOMAIN for n in all_nodes(after.graph)))
    for field in ("name", "doc_string"):
        assert getattr(before.graph, field) == getattr(after.graph, field), field
    for field in ("metadata_props", "quantization_annotation", "output", "sparse_initializer"):
        assert list(getattr(before.graph, field)) == list(getattr(after.graph, field)), field
    assert [i for i in after.graph.input if i.name not in _constants(before)] == [i for i in before.graph.input if i.name not in _constants(before)]
    if after.graph != before.graph:
        assert {i.name for i in after.graph.value_info} <= {name for node in after.graph.node for name in node.output}
    assert all(info in list(before.graph.value_info) for info in after.graph.value_info)


def _constants(model: ModelProto) -> set[str]:
    """Inputs that a caller cannot see: initializers up to IR 3."""
    return {t.name for t in model.graph.initializer} if model.ir_version < 4 else set()


def test_ir_version_is_raised_and_said(tmp_path: Path) -> None:
    done = optimized(CASES["opset_11"].build(), tmp_path)
    assert (done.before.ir_version, done.after.ir_version) == (6, 8)
    assert "IR version raised from 6 to 8: local functions need it" in done.result.notes


def test_ir_3_shows_the_same_inputs(tmp_path: Path) -> None:
    """Initializers leave the inputs with the IR version that had them there."""
    done = optimized(CASES["opset_7"].build(), tmp_path)
    assert [i.name for i in done.before.graph.input] == ["x", "w", "b"] and [i.name for i in done.after.graph.input] == ["x"]


def test_frozen_initializers(tmp_path: Path) -> None:
    """An overridable weight is left alone with the reason, or taken for a constant where that is asked for."""
    done = optimized(CASES["overridable"].build(), tmp_path)
    assert any("weights are not constant" in r.reason for r in done.result.refusals)
    feeds = {**feeds_for(done.before, dim=8), "w": np.ones((4, 3, 3, 3), np.float32)}
    assert_right(done, feeds)
    frozen = optimized(CASES["overridable"].build(), tmp_path, freeze_initializers=True)
    assert frozen.regions == 1
    onnx.checker.check_model(frozen.after, full_check=True)


def test_functions_are_inlined_and_kept(tmp_path: Path) -> None:
    """Those with convolutions are inlined, and that is said; the others, called or not, stay."""
    done = optimized(CASES["conv_functions"].build(), tmp_path)
    assert done.result.notes[0].startswith("local functions inlined: my::")
    kept = optimized(CASES["functions"].build(), tmp_path)
    assert [f.name for f in kept.after.functions if f.domain == "my"] == ["Twice", "Unused"]
    refused = optimized(CASES["conv_functions"].build(), tmp_path, precision="fp32", passes=("regions",))
    assert refused.after == refused.before, "functions were inlined for nothing"


def test_quantized_weights_stay_integers(tmp_path: Path) -> None:
    done = optimized(CASES["qdq_conv"].build(), tmp_path)
    assert done.after.graph == done.before.graph


def test_new_names_are_unique(tmp_path: Path) -> None:
    for name in ("taken_names", "doubled_names", "no_names", "strange_names"):
        graph = optimized(CASES[name].build(), tmp_path).after.graph
        tensors = [*_names(graph.input), *_names(graph.initializer), *(o for n in graph.node for o in n.output if o)]
        assert len(tensors) == len(set(tensors)), name
        ours = [n.name for n in graph.node if n.domain == DOMAIN]
        assert len(ours) == len(set(ours)) and all(ours) and not set(ours) & {n.name for n in graph.node if n.domain != DOMAIN}, name


def _names(items: Iterator[Any]) -> list[str]:
    return [item.name for item in items]


def test_unchanged_nodes_keep_their_bytes(tmp_path: Path) -> None:
    """Attributes that a rewrite cannot even read come out as they went in."""
    done = optimized(CASES["unknown_domain"].build(), tmp_path)
    (before,), (after,) = ([n for n in m.graph.node if n.domain == "vendor"] for m in (done.before, done.after))
    assert before == after


def test_large_constants_are_not_expanded(tmp_path: Path) -> None:
    """Weights made by ConstantOfShape, Tile and Identity stay as small as they are."""
    model = names.no_names()
    model.graph.initializer.append(numpy_helper.from_array(np.array([512, 512], np.int64), "shape"))
    value = numpy_helper.from_array(np.array([0.5], np.float32), "v")
    model.graph.node.extend([onnx.helper.make_node("ConstantOfShape", ["shape"], ["big"], value=value), onnx.helper.make_node("MatMul", ["big", "big"], ["z"])])
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", TensorProto.FLOAT, [512, 512]))
    done = optimized(model, tmp_path)
    assert done.result.bytes_after - done.result.bytes_before < 200_000  # the images of two kernels


def test_outer_weights_are_not_copied_into_branches(tmp_path: Path) -> None:
    """A weight of the main graph that only branches read stays there, once, however much of them is rewritten."""
    text = """g (float[N,64] x, bool flag) => (float[N,64] y) {
      y = If(flag) <
        then_branch = t () => (float[P,64] o) { k = Identity(x)  o = PRelu(k, w) },
        else_branch = e () => (float[P,64] q) { k = Mul(x, w)  i = Identity(k)  q = Neg(i) }
      >
    }"""
    done = optimized(parsed(text, {"w": (64,)}), tmp_path)
    assert done.result.applied and _names(done.after.graph.initializer) == ["w"]
    assert not [t.name for a in done.after.graph.node[0].attribute for t in a.g.initializer]
    assert_right(done, {"x": feeds_for(done.before, dim=2)["x"], "flag": np.array(True)})


def test_optimized_again(tmp_path: Path) -> None:
    """What an earlier run made stays as it is; what was added since is rewritten under names of its own."""
    first = optimized(CASES["conv_in_if"].build(), tmp_path)
    (tmp_path / "again").mkdir()
    again = optimized(first.path, tmp_path / "again")
    assert again.path.read_bytes() == first.path.read_bytes()
    model = first.after
    model.graph.node.append(onnx.helper.make_node("Conv", ["y", "extra"], ["z"], pads=[1, 1, 1, 1]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "extra"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 4, 8, 8]))
    more = optimized(model, tmp_path)
    assert more.regions == first.regions + 1
    assert len({f.name for f in more.after.functions}) == len(more.after.functions) == len(first.after.functions) + 1
    assert_right(more, CASES["conv_in_if"].feeds())


def test_weights_in_constant_nodes_are_not_kept_twice(tmp_path: Path) -> None:
    done = optimized(names.no_names(), tmp_path)
    assert [n.op_type for n in done.after.graph.node] == ["Constant", "FusedConvRegion_sm90_0", "Resize", "FusedConvRegion_sm90_1"]
