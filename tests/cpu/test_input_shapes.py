"""Shapes and ranges on the command line: their forms, and what contradicts a model."""

from __future__ import annotations

import pytest
from onnx import ModelProto, parser

from tilewright.optimizer.errors import UsageError
from tilewright.optimizer.graph.input_shapes import overwrite, parse_dims, parse_shapes, resolve
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View


def model() -> ModelProto:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,3,H,W] x, float[N,S] mask, float[?,7] z) => (float[N,3,H,W] y) <float[N,3,H,W] a> { a = Relu(x)  y = Neg(a) }"""
    return parser.parse_model(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("x:1x3x224x224", {"x": (1, 3, 224, 224)}),
        ("x:1x3x4,mask:2x8", {"x": (1, 3, 4), "mask": (2, 8)}),
        ("x:1,3,4,mask:2,8", {"x": (1, 3, 4), "mask": (2, 8)}),
        ("input:0:1x3,b:2", {"input:0": (1, 3), "b": (2,)}),
        ("a:[1, 3],b:[],c:[4]", {"a": (1, 3), "b": (), "c": (4,)}),
    ],
)
def test_parse_shapes(text: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes(text, "--opt-shapes") == expected


@pytest.mark.parametrize("text", [" ", "x", "x:", "x:1x", "x:-1x3", "x:axb", ":1x3"])
def test_parse_shapes_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="--min-shapes"):
        parse_shapes(text, "--min-shapes")


def test_parse_shapes_refuses_a_name_given_twice() -> None:
    with pytest.raises(UsageError, match="input 'x' is given twice"):
        parse_shapes("x:1x3,x:2x3", "--opt-shapes")


def test_parse_dims() -> None:
    assert parse_dims(["N=1..64", "H=8", "a=b=2..", "W=0..0"]) == {"N": (1, 64), "H": (8, 8), "a=b": (2, None), "W": (0, 0)}


@pytest.mark.parametrize(("text", "reason"), [("N", "not of the form"), ("N=", "not of the form"), ("N=3..x", "not of the form"), ("N=4..2", "empty")])
def test_parse_dims_refuses(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_dims([text])


def test_parse_dims_refuses_a_name_given_twice() -> None:
    with pytest.raises(UsageError, match="dim 'N' is given twice"):
        parse_dims(["N=1", "N=2"])


def test_resolve_without_wishes() -> None:
    found = resolve(model())
    assert found.ranges == {}
    assert found.usual == {"N": 1, "H": 224, "W": 224, "S": 128, "z_0": 1}
    assert found.shapes(found.usual) == {"x": (1, 3, 224, 224), "mask": (1, 128), "z": (1, 7)}
    assert found.least == {"N": 1, "H": 1, "W": 1, "S": 1, "z_0": 1}


def test_resolve_ranges_and_examples() -> None:
    found = resolve(model(), {"N": (1, 64)}, {"x": (1, 3, 32, 32)}, {"x": (8, 3, 128, 64)}, {"x": (16, 3, 512, 512), "mask": (16, 40)})
    assert found.ranges == {"N": (1, 64), "H": (32, 512), "W": (32, 512), "S": (0, 40)}
    assert found.shapes(found.least)["x"] == (1, 3, 32, 32)
    assert found.shapes(found.usual)["x"] == (8, 3, 128, 64)
    assert found.shapes(found.greatest) == {"x": (16, 3, 512, 512), "mask": (16, 40), "z": (1, 7)}
    assert found.usual["S"] == 40


def test_ranges_reach_the_bounds_and_leave_shapes_dynamic() -> None:
    view = View(model())
    shapes = infer(view, resolve(model(), {"N": (1, 64)}).ranges)
    n = shapes.shape(view.graph.inputs[0])[0]
    assert str(n) == "N"
    assert shapes.bounds(n) == (1, 64)


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        ({"dims": {"Q": (1, 2)}}, "no input of the model has a dim 'Q'; open dims are 'N', 'H', 'W', 'S', 'z_0'"),
        ({"opt_shapes": {"q": (1,)}}, "no input 'q' of known rank; its inputs are 'x', 'mask', 'z'"),
        ({"opt_shapes": {"x": (1, 3, 2)}}, r"input 'x' has 4 dims \(Nx3xHxW\), 3 were given"),
        ({"opt_shapes": {"x": (1, 4, 2, 2)}}, "dim 1 of input 'x' is 3 in the model, 4 was given"),
        ({"opt_shapes": {"x": (1, 3, 2, 2), "mask": (2, 5)}}, "dim 'N' is given as 1 and as 2"),
        ({"dims": {"N": (1, 4)}, "opt_shapes": {"x": (8, 3, 2, 2)}}, r"--opt-shapes: dim 'N' is 8, outside its range 1\.\.4"),
        ({"min_shapes": {"x": (4, 3, 2, 2)}, "max_shapes": {"x": (2, 3, 2, 2)}}, "--min-shapes: dim 'N' is 4, above the 2 of --max-shapes"),
        ({"min_shapes": {"x": (4, 3, 2, 2)}, "opt_shapes": {"x": (2, 3, 2, 2)}}, r"--opt-shapes: dim 'N' is 2, outside its range 4\.\."),
    ],
)
def test_resolve_refuses(wishes: dict, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        resolve(model(), **wishes)


def test_overwrite_works_on_a_copy_and_on_every_use_of_a_name() -> None:
    original = model()
    before = original.SerializeToString()
    frozen = overwrite(original, {"x": (2, 3, 64, 32)})
    assert original.SerializeToString() == before
    assert [d.dim_value for d in frozen.graph.input[0].type.tensor_type.shape.dim] == [2, 3, 64, 32]
    assert frozen.graph.input[1].type.tensor_type.shape.dim[0].dim_value == 2
    assert frozen.graph.input[1].type.tensor_type.shape.dim[1].dim_param == "S"
    assert [d.dim_value for d in frozen.graph.output[0].type.tensor_type.shape.dim] == [2, 3, 64, 32]
    view = View(frozen)
    assert infer(view).static(view.graph.outputs[0]) == (2, 3, 64, 32)


def test_overwrite_refuses_a_fixed_dim() -> None:
    with pytest.raises(UsageError, match="--overwrite-input-shape: dim 1 of input 'x' is 3 in the model, 1 was given"):
        overwrite(model(), {"x": (2, 1, 64, 32)})
