"""What a file says beside its graph: metadata, doc strings, annotations, training, functions, opsets."""

from __future__ import annotations

from onnx import ModelProto, TensorProto, helper, numpy_helper

from .case import case, parsed, weights

CONV_RELU = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
  [conv] c = Conv<pads=[1,1,1,1]>(x, w, b)
  [act] y = Relu(c)
}"""
CONV_WEIGHTS = {"w": (4, 3, 3, 3), "b": (4,)}


def conv_relu(**header: int) -> ModelProto:
    """The smallest model that is rewritten."""
    return parsed(CONV_RELU, CONV_WEIGHTS, **header)


@case(regions=1)
def metadata() -> ModelProto:
    """Every text that a model can carry, among them the character table of an OCR model."""
    model = conv_relu()
    model.producer_name, model.producer_version, model.domain = "exporter", "1.2", "com.example"
    model.model_version, model.doc_string = 7, "A model.\nTwo lines, and ünïcode."
    helper.set_model_props(model, {"character": "a\nb\n\u4e2d", "empty": "", "Cutoff": "0.5"})
    graph = model.graph
    graph.doc_string = "The graph."
    graph.metadata_props.add(key="graph key", value="graph value")
    for item in (*graph.input, *graph.output, *graph.node, *graph.initializer):
        item.doc_string = f"about {item.name}"
    for item in (graph.input[0], graph.output[0], graph.initializer[0]):
        item.metadata_props.add(key="k", value="v")
    graph.node[0].metadata_props.add(key="namespace", value="layer1")
    graph.input[0].type.denotation = "IMAGE"
    graph.input[0].type.tensor_type.shape.dim[1].denotation = "DATA_CHANNEL"
    return model


@case(regions=1)
def value_infos() -> ModelProto:
    """Declared intermediates, one of them false."""
    model = conv_relu()
    model.graph.value_info.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, ["N", 4, 8, 8], "what Conv gives"))
    model.graph.value_info.append(helper.make_tensor_value_info("gone", TensorProto.FLOAT, [1]))
    return model


@case(regions=1)
def annotations() -> ModelProto:
    """Quantization annotations, whose scales nothing but they name."""
    model = conv_relu()
    for name in ("scale", "zero"):
        model.graph.initializer.append(numpy_helper.from_array(weights(name, 1), name))
    annotation = model.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    annotation.quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value="zero")
    return model


@case(regions=1)
def training() -> ModelProto:
    """Training information."""
    model = conv_relu()
    info = model.training_info.add()
    step = helper.make_node("Identity", ["w"], ["w_new"])
    info.algorithm.CopyFrom(helper.make_graph([step], "algorithm", [], [helper.make_tensor_value_info("w_new", TensorProto.FLOAT, None)]))
    info.update_binding.add(key="w", value="w_new")
    return model


@case(regions=1)
def functions() -> ModelProto:
    """A local function without convolutions, which stays a function; one that nothing calls; texts on both."""
    model = conv_relu()
    body = helper.make_function("my", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)])
    body.doc_string = "doubles"
    body.metadata_props.add(key="k", value="v")
    body.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, None))
    unused = helper.make_function("my", "Unused", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)])
    model.functions.extend([body, unused])
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.graph.output[0].name = "z"
    model.graph.node.append(helper.make_node("Twice", ["y"], ["z"], domain="my", name="call"))
    model.ir_version = 10
    return model


@case(regions=2)
def conv_functions() -> ModelProto:
    """Local functions that hold convolutions, one called by the other, with an attribute that the call gives."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
      [first] h = my.Block<group=1>(x, w, b)
      [second] y = my.ConvRelu<group=2>(h, w2, b)
    }
    <domain: "my", opset_import: ["": 17]>
    ConvRelu <group> (x, w, b) => (y) { c = Conv<pads=[1,1,1,1], group: int = @group>(x, w, b)  y = Relu(c) }
    <domain: "my", opset_import: ["": 17, "my": 1]>
    Block <group> (x, w, b) => (y) { t = my.ConvRelu<group: int = @group>(x, w, b)  y = Neg(t) }"""
    return parsed(text, {"w": (4, 3, 3, 3), "w2": (4, 2, 3, 3), "b": (4,)}, domains=', "my": 1')


@case(regions=1)
def overloads() -> ModelProto:
    """Two functions of one name, told apart by their overload (IR 10)."""
    model = conv_relu(ir=10)
    for overload, op in (("twice", "Add"), ("square", "Mul")):
        body = helper.make_function("my", "F", ["a"], ["b"], [helper.make_node(op, ["a", "a"], ["b"])], [helper.make_opsetid("", 17)], overload=overload)
        model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.graph.output[0].name = "z"
    model.graph.node.append(helper.make_node("F", ["y"], ["t"], domain="my", overload="twice"))
    model.graph.node.append(helper.make_node("F", ["t"], ["z"], domain="my", overload="square"))
    return model


@case(regions=1, runs=False)
def unknown_domain() -> ModelProto:
    """An op of a domain that nobody here knows, with attributes of every type."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y, float[N] z) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      y = Relu(c)
      z, other = vendor.Special<ints=[1,2], f=0.5, s="text", floats=[1.0,2.0], strings=["a","b"]>(y, "", x)
    }"""
    return parsed(text, CONV_WEIGHTS, domains=', "vendor": 3')


@case(regions=1, valid=False, runs=False)
def unknown_op() -> ModelProto:
    """A plugin op in the default domain beside convolutions."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      r = Relu(c)
      y = DCNv2_TRT<deformable_group=1>(r, b)
    }"""
    return parsed(text, CONV_WEIGHTS)


@case(regions=1)
def unused_domain() -> ModelProto:
    """Imports of domains that no node uses, and the long name of the default one."""
    model = conv_relu()
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("com.example", 4), helper.make_opsetid("ai.onnx", 17), helper.make_opsetid("ai.onnx.ml", 3)])
    return model


@case(regions=1)
def opset_7() -> ModelProto:
    """The oldest opset that is taken; IR 3, whose initializers are inputs too."""
    model = conv_relu(ir=3, opset=7)
    model.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in model.graph.initializer)
    return model


@case(regions=1)
def opset_11() -> ModelProto:
    """Opset 11, IR 6."""
    return conv_relu(ir=6, opset=11)


@case(regions=1)
def fresh_opset() -> ModelProto:
    """An opset and an IR of today."""
    return conv_relu(ir=10, opset=22)
