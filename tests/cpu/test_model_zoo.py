"""The model zoo: published facts, valid graphs, sane numbers, symbolic dimensions, fp16, equal bytes for equal arguments."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest

from tilewright import model_zoo

Array = npt.NDArray[Any]

# VGG is only built and counted: running it takes long, and its layers are in other models too.
RUN = tuple(n for n in model_zoo.names() if n != "vgg16")
SIZED = tuple(n for n in RUN if model_zoo.MODELS[n].family == "cnn")
EXPOSED = ("Conv", "ConvTranspose", "BatchNormalization", "Gemm", "MatMul", "LayerNormalization", "Relu", "MaxPool", "AveragePool", "Add", "Mul")

BATCH, SIDE, TOKENS = 2, {"unet": 64}, 24


class Session:
    """A model in ONNX Runtime on the CPU; ``expose`` names tensors that are wanted beside the outputs."""

    def __init__(self, model: onnx.ModelProto, expose: Iterable[str] = ()) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 2
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # quicker for one run
        options.add_session_config_entry("session.disable_prepacking", "1")
        count = len(model.graph.output)
        for name in expose:
            model.graph.output.add(name=name)
        try:
            self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        finally:
            del model.graph.output[count:]

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return dict(zip([o.name for o in self.session.get_outputs()], self.session.run(None, inputs), strict=True))


def distance(actual: Array, expected: Array) -> float:
    """Relative Frobenius norm of the difference."""
    wide = expected.astype(np.float64)
    return float(np.linalg.norm(actual.astype(np.float64) - wide) / np.linalg.norm(wide))


def declared(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    """The shape that a graph declares for an input or output."""
    return tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)


def shapes(name: str, **sizes: int | str) -> dict[str, tuple[int | str, ...]]:
    """The registered shapes of the outputs of a model, with sizes in place of the names."""
    return {output: tuple(sizes.get(str(d), d) for d in shape) for output, shape in model_zoo.MODELS[name].outputs.items()}


def symbolic(name: str, **arguments: Any) -> onnx.ModelProto:
    """The model with every dimension symbolic that can be."""
    if name in SIZED:
        arguments["size"] = "dynamic"
    if model_zoo.MODELS[name].family in ("bert", "gpt"):
        arguments["sequence"] = "S"
    return model_zoo.build(name, batch="N", **arguments)


class Case:
    """One static model and, if it is to be run, its session, inputs and what it makes of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        text = model_zoo.MODELS[name].family in ("bert", "gpt")
        self.model = model_zoo.build(name, batch=BATCH, size=SIDE.get(name), sequence=TOKENS if text else None)
        self.inputs = model_zoo.example_inputs(self.model, seed=1)
        self.tensors: dict[str, Array] = {}
        if name in RUN:
            outputs = model_zoo.MODELS[name].outputs
            self.session = Session(self.model, [n.output[0] for n in self.model.graph.node if n.op_type in EXPOSED and n.output[0] not in outputs])
            self.tensors = self.session.run(self.inputs)

    @property
    def outputs(self) -> dict[str, Array]:
        return {n: self.tensors[n] for n in model_zoo.MODELS[self.name].outputs}


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


every_model = pytest.mark.parametrize("case", model_zoo.names(), indirect=True)
every_run_model = pytest.mark.parametrize("case", RUN, indirect=True)


@every_model
def test_parameter_count_is_the_published_one(case: Case) -> None:
    assert model_zoo.parameter_count(case.model) == model_zoo.MODELS[case.name].parameters


@every_model
def test_graph_is_valid_and_declares_no_intermediates(case: Case) -> None:
    onnx.checker.check_model(case.model, full_check=True)
    assert case.model.ir_version == 8
    assert [(i.domain, i.version) for i in case.model.opset_import] == [("", 17)]
    assert not case.model.graph.value_info
    names = [n.name for n in case.model.graph.node]
    assert len(set(names)) == len(names)
    assert {t.name for t in case.model.graph.initializer} <= {i for n in case.model.graph.node for i in n.input}


@every_model
def test_outputs_have_the_registered_shapes(case: Case) -> None:
    expected = shapes(case.name, batch=BATCH, height=64, width=64, sequence=TOKENS)
    assert {o.name: declared(o) for o in case.model.graph.output} == expected
    if case.name in RUN:
        assert {n: v.shape for n, v in case.outputs.items()} == expected


@every_run_model
def test_activations_keep_their_scale_through_the_depth(case: Case) -> None:
    for name, value in case.tensors.items():
        if value.dtype != np.float32 or value.min() < -1e30:
            continue  # shape arithmetic, or attention scores with a mask
        assert np.isfinite(value).all(), name
        assert 0.02 < value.std() < 50, name


@every_run_model
def test_two_inputs_give_two_answers(case: Case) -> None:
    for name, value in case.outputs.items():
        assert 0.05 < value.std() < 50, name
        assert distance(value[1], value[0]) > 0.05, name


@every_run_model
def test_half_precision_and_symbolic_dimensions(case: Case) -> None:
    half = symbolic(case.name, dtype="fp16")
    assert {t.data_type for t in half.graph.initializer} | {o.type.tensor_type.elem_type for o in half.graph.output} == {onnx.TensorProto.FLOAT16}
    assert {o.name: declared(o) for o in half.graph.output} == shapes(case.name, batch="N", height="H", width="W", sequence="S")
    session = Session(half)
    actual = session.run({n: v.astype(np.float16) if v.dtype == np.float32 else v for n, v in case.inputs.items()})
    for name, value in case.outputs.items():
        assert actual[name].dtype == np.float16
        assert distance(actual[name], value) < (0.04 if case.name in SIZED else 0.005), name
    other = session.run(model_zoo.example_inputs(half, dims={"N": 3, "H": 64, "W": 96, "S": 7}))
    assert {n: v.shape for n, v in other.items()} == shapes(case.name, batch=3, height=64, width=96, sequence=7)


@pytest.mark.parametrize("case", SIZED, indirect=True)
def test_symbolic_model_equals_the_static_one(case: Case) -> None:
    model = symbolic(case.name)
    onnx.checker.check_model(model, full_check=True)
    assert declared(model.graph.input[0]) == ("N", 3, "H", "W")
    assert list(model.graph.initializer) == list(case.model.graph.initializer)
    assert distance(Session(model).run(case.inputs)["output"], case.outputs["output"]) < 1e-5


@pytest.mark.parametrize("case", ["gpt2_small"], indirect=True)
def test_causal_mask_hides_later_tokens(case: Case) -> None:
    ids = case.inputs["input_ids"].copy()
    ids[:, 12] = (ids[:, 12] + 1) % 50257
    before, after = case.outputs["logits"], case.session.run({"input_ids": ids})["logits"]
    assert distance(after[:, :12], before[:, :12]) < 1e-6
    assert distance(after[:, 12:], before[:, 12:]) > 1e-2


@pytest.mark.parametrize("case", ["bert_base"], indirect=True)
def test_attention_mask_hides_tokens(case: Case) -> None:
    masked = {**case.inputs, "attention_mask": np.tile(np.arange(TOKENS) < 20, (BATCH, 1)).astype(np.int64)}
    ids = case.inputs["input_ids"].copy()
    ids[:, 20:] = 5
    before, after = (case.session.run(i)["last_hidden_state"] for i in (masked, {**masked, "input_ids": ids}))
    assert distance(after[:, :20], before[:, :20]) < 1e-6
    assert distance(case.outputs["last_hidden_state"][:, :20], before[:, :20]) > 1e-2


@pytest.mark.parametrize("case", ["bert_base"], indirect=True)
def test_example_tokens_are_in_range(case: Case) -> None:
    assert {n: (str(v.dtype), v.shape) for n, v in case.inputs.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), ("int64", (BATCH, TOKENS))
    )
    ids, mask = case.inputs["input_ids"], case.inputs["attention_mask"]
    assert ids.min() >= 0 and ids.max() < 30522 and len(np.unique(ids)) > 40
    assert set(np.unique(case.inputs["token_type_ids"])) == {0, 1}
    assert set(np.unique(mask)) == {0, 1} and (mask[:, : TOKENS // 2] == 1).all() and (np.diff(mask, axis=1) <= 0).all()


def test_example_images_are_standard_normal() -> None:
    image = model_zoo.example_inputs(model_zoo.build("squeezenet1_1", dtype="fp16"), seed=3)["input"]
    assert image.dtype == np.float16
    assert abs(float(image.astype(np.float32).std()) - 1) < 0.02


HASHED = ("mobilenet_v3_large", "nasnetamobile", "squeezenet1_1")
HASH = f"""
import hashlib
from tilewright import model_zoo
for name in {HASHED}:
    print(hashlib.sha256(model_zoo.build(name, batch="N", dtype="fp16").SerializeToString()).hexdigest())
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_equal_arguments_give_equal_bytes(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run([sys.executable, "-c", HASH], env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert other == [hashlib.sha256(model_zoo.build(n, batch="N", dtype="fp16").SerializeToString()).hexdigest() for n in HASHED]


def test_seed_and_precision_select_weights() -> None:
    def weights(**arguments: Any) -> dict[str, Array]:
        return {t.name: onnx.numpy_helper.to_array(t) for t in model_zoo.build("squeezenet1_1", **arguments).graph.initializer}

    base, half, other = weights(), weights(dtype="fp16"), weights(seed=1)
    for name, value in base.items():
        assert np.array_equal(value.astype(np.float16), half[name]), name
        assert distance(other[name], value) > 0.1, name


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("resnet34", {}, "unknown model"),
        ("resnet18", {"dtype": "bf16"}, "unknown dtype"),
        ("resnet18", {"batch": 0}, "batch must be at least 1"),
        ("resnet18", {"sequence": 8}, "give size"),
        ("bert_base", {"size": 224}, "give sequence"),
        ("bert_base", {"sequence": 513}, "1 to 512 tokens"),
        ("gpt2_small", {"sequence": 0}, "1 to 1024 tokens"),
        ("vgg16", {"size": "dynamic"}, "224x224"),
        ("vit_b_16", {"size": 100}, "multiples of 16"),
        ("vit_b_16", {"size": "dynamic"}, "multiples of 16"),
        ("unet", {"size": (64, 40)}, "multiples of 16"),
    ],
)
def test_impossible_requests_are_refused(name: str, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(model_zoo.ZooError, match=reason):
        model_zoo.build(name, **arguments)


def test_example_inputs_ask_for_missing_dimensions() -> None:
    with pytest.raises(model_zoo.ZooError, match="'N'"):
        model_zoo.example_inputs(model_zoo.build("squeezenet1_1", batch="N"))


def test_one_symbol_for_both_sides() -> None:
    model = model_zoo.build("squeezenet1_1", size="side")
    assert declared(model.graph.input[0]) == (1, 3, "side", "side")
