"""One region as two small models with the same inputs: the nodes that it replaces, and its custom node with its body."""

from __future__ import annotations

from onnx import FunctionProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, helper, numpy_helper

from ..graph.view import Constant, View
from ..lower.lowered import NHWC, LoweredRegion
from ..plan.regions.region import Region
from .export import FUNCTION_IR_VERSION, export_constant, export_node
from .writer import Writer


class RegionModels:
    """Makes both models of one region on demand, so that no weights are copied for regions that nobody checks.

    Takes the region before emit changes the view; holds its nodes as protobuf and its weights by reference.
    """

    def __init__(self, lowered: LoweredRegion, view: View) -> None:
        self._lowered, self._opset, self._opsets = lowered, view.opset, list(view.model.opset_import)
        nodes = lowered.region.nodes
        read = dict.fromkeys(t for n in nodes for t in n.inputs)
        makers = dict.fromkeys(t.inputs[0] for t in read if t.inputs and t.inputs[0].standard("Constant"))
        self._constants = [t for t in read if isinstance(t, Constant) and t.name]
        self._nodes = [*map(export_node, makers), *map(export_node, nodes)]
        self.last_op: str = nodes[-1].op

    def reference(self) -> ModelProto:
        """The nodes that the region replaces, on the region's inputs; one output, channels first."""
        return _model(self._lowered.region, self._nodes, [export_constant(c) for c in self._constants], self._opsets, [])

    def standalone(self, node: NodeProto, function: FunctionProto) -> ModelProto:
        """The custom ``node`` on the same inputs and output, layouts changed around it by standard ops."""
        return _standalone(self._lowered, node, function, self._opset, self._opsets)


def _standalone(lowered: LoweredRegion, node: NodeProto, function: FunctionProto, opset: int, opsets: list[OperatorSetIdProto]) -> ModelProto:
    region = lowered.region
    layout = (region.rank, region.compute)
    writer = Writer(opset, {t.name for t in (*region.inputs, region.output)})
    call = NodeProto()
    call.CopyFrom(node)
    for i, port in enumerate(lowered.inputs):
        call.input[i] = writer.to_nhwc(port.tensor.name, port.channels, *layout) if port.layout == NHWC else port.tensor.name
    weights = [numpy_helper.from_array(p.values, writer.fresh()) for p in lowered.packed]
    call.input[len(lowered.inputs) :] = [w.name for w in weights]
    call.output[:] = [writer.fresh() for _ in lowered.outputs]
    writer.nodes.append(call)
    port = lowered.outputs[0]
    result = writer.from_nhwc(call.output[0], port.channels, *layout) if port.layout == NHWC else call.output[0]
    writer.emit("Identity", [result], output=region.output.name)
    return _model(region, writer.nodes, weights, [*opsets, helper.make_opsetid(node.domain, 1)], [function])


def _model(region: Region, nodes: list[NodeProto], weights: list[TensorProto], opsets: list[OperatorSetIdProto], functions: list[FunctionProto]) -> ModelProto:
    inputs = [helper.make_tensor_value_info(t.name, region.dtype, [None] * region.rank) for t in region.inputs]
    outputs = [helper.make_tensor_value_info(region.output.name, region.dtype, None)]
    graph = helper.make_graph(nodes, "region", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=FUNCTION_IR_VERSION)
