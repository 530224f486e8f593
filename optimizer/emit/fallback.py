"""Function bodies: the standard ops that a custom node stands for, on the inputs that it has (packed weights, NHWC activations).

ONNX Runtime inlines the body wherever no kernel of ours can run, and folds the unpacking of the weights when it loads the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto, helper

from ..graph.view import Node, Tensor, constant_value
from ..lower.lowered import NHWC, LoweredRegion, Packed, StageWeights
from ..plan.regions.region import EpilogueOp, Region, Stage
from .export import export_attributes, export_constant
from .writer import Writer


def function_body(lowered: LoweredRegion, opset: int) -> FunctionProto:
    """The body of ``lowered`` as a function without a name; equal regions give equal bytes.

    Inputs are x0, x1, ... (activations) and w0, w1, ... (weights), outputs y0, ...
    """
    return _Body(lowered, opset).function


class _Body(Writer):
    def __init__(self, lowered: LoweredRegion, opset: int) -> None:
        super().__init__(opset)
        self.lowered, self.region = lowered, lowered.region
        self.names: dict[Tensor, str] = {}
        layout = (self.region.rank, self.region.compute)
        inputs = [f"x{i}" for i in range(len(lowered.inputs))] + [f"w{i}" for i in range(len(lowered.packed))]
        for i, port in enumerate(lowered.inputs):
            self.names[port.tensor] = self.from_nhwc(f"x{i}", port.channels, *layout) if port.layout == NHWC else f"x{i}"
        results = [self.stage(i, s) for i, s in enumerate(self.region.stages)]
        result = results[0] if len(results) == 1 else self.emit("Concat", results, axis=1)
        for i, port in enumerate(lowered.outputs):
            value = self.to_nhwc(result, port.channels, *layout) if port.layout == NHWC else result
            self.emit("Identity", [value], output=f"y{i}")
        outputs = [f"y{i}" for i in range(len(lowered.outputs))]
        self.function = helper.make_function("tilewright", "", inputs, outputs, self.nodes, [helper.make_opsetid("", opset)])

    def weights(self, index: int, transposed: bool) -> str:
        """Packed weights as ONNX lays them out; ``transposed`` says that a Gemm takes them by columns, as they are packed."""
        packed: Packed = self.lowered.packed[index]
        name = f"w{index}"
        if packed.channels != packed.values.shape[-1]:
            name = self.cut(name, packed.values.ndim - 1, packed.channels)
        if packed.layout == "hwo":
            name = self.unsqueeze(self.emit("Transpose", [name], perm=[2, 0, 1]), 1)
        elif packed.layout == "nk":
            return name if transposed else self.emit("Transpose", [name], perm=[1, 0])
        else:
            name = self.emit("Transpose", [name], perm=[0, 3, 1, 2])
        return self.squeeze(name, 2) if self.region.rank == 3 else name

    def per_channel(self, index: int) -> str:
        """A float32 vector [C] with the shape that broadcasts along the channels: [C, 1, ...], or as it is where they are the last axis."""
        if self.region.axis == -1:
            return f"w{index}"
        return self.unsqueeze(f"w{index}", *range(1, self.region.rank - 1))

    def stage(self, index: int, stage: Stage) -> str:
        use = self.lowered.stage_weights[index]
        value = self.names[stage.source]
        if stage.kind == "concat":
            value = self.emit("Concat", [self.names[t] for t, _ in stage.reads], axis=1)
        elif stage.kind in ("conv", "matmul"):
            value = self.copy(stage.nodes[0], [value, *self.parameters(stage, use)])
        elif stage.kind != "pointwise":
            node = stage.nodes[0]
            value = self.copy(node, [value, *(self.operand(t) for t in node.inputs[1:])])
        for op, vector in zip(stage.epilogue, use.vectors, strict=True):
            value = self.epilogue(op, value, vector)
        return value

    def parameters(self, stage: Stage, use: StageWeights) -> list[str]:
        """Weights and bias of a convolution or matrix product as its node takes them."""
        assert use.weights is not None
        names = [self.weights(use.weights, transposed=bool(stage.nodes[0].attrs.get("transB", 0)))]
        if use.bias is not None:
            bias = f"w{use.bias}"
            names.append(bias if self.region.dtype == TensorProto.FLOAT else self.cast(bias, self.region.dtype))
        return names

    def copy(self, node: Node, inputs: Sequence[str]) -> str:
        """``node`` with other inputs; of its outputs the first counts."""
        copied = NodeProto(op_type=node.op)
        copied.attribute.extend(export_attributes(node))
        copied.input.extend(inputs)
        copied.output.append(self.fresh())
        self.nodes.append(copied)
        return str(copied.output[0])

    def operand(self, tensor: Tensor) -> str:
        """A tensor inside an idiom: known by name, or a small constant that the body then holds itself."""
        if tensor in self.names:
            return self.names[tensor]
        if not tensor.name:
            return ""
        values = constant_value(tensor)
        assert values is not None, f"{tensor.name} is neither an input of the region nor a constant"
        origin = getattr(tensor, "origin", None)
        return self.emit("Constant", [], value=export_constant(tensor, name="")) if origin is not None else self.constant(values)

    def epilogue(self, op: EpilogueOp, value: str, vector: int | None) -> str:
        if op.kind == "act":
            return self.activation(op, value, vector)
        if op.tensor is not None:
            other = self.names[op.tensor]
            kind = {"add": "Add", "mul": "Mul", "sub": "Sub", "rsub": "Sub"}[op.kind]
            return self.emit(kind, [other, value] if op.kind == "rsub" else [value, other])
        # NOTE: scales and shifts are applied in float32, as the kernel does: a float16 BatchNorm scale would lose what folding kept.
        half = self.region.dtype != TensorProto.FLOAT
        value = self.cast(value, TensorProto.FLOAT) if half else value
        if op.kind == "affine":
            if op.a != 1.0:
                value = self.emit("Mul", [value, self.constant(np.array(op.a, dtype=np.float32))])
            if op.b != 0.0:
                value = self.emit("Add", [value, self.constant(np.array(op.b, dtype=np.float32))])
        else:
            assert vector is not None
            value = self.emit("Mul" if op.kind == "scale" else "Add", [value, self.per_channel(vector)])
        return self.cast(value, self.region.dtype) if half else value

    def activation(self, op: EpilogueOp, value: str, vector: int | None) -> str:
        """The idiom's own nodes on ``value``; a per-channel slope comes from the node's input."""
        inner: dict[Tensor, str] = {}
        made = {t for n in op.nodes for t in n.outputs}
        for node in op.nodes:
            names = []
            for tensor in node.inputs:
                if tensor in inner:
                    names.append(inner[tensor])
                elif tensor.name and constant_value(tensor) is None and tensor not in made:
                    names.append(value)
                elif vector is not None and node.op == "PRelu":
                    slope = self.per_channel(vector)
                    names.append(slope if self.region.dtype == TensorProto.FLOAT else self.cast(slope, self.region.dtype))
                else:
                    names.append(self.operand(tensor))
            value_of_node = self.copy(node, names)
            inner[node.outputs[0]] = value_of_node
        return inner[op.nodes[-1].outputs[0]]


def body_key(function: FunctionProto, region: Region) -> bytes:
    """What tells bodies apart: equal keys may share one function name."""
    return bytes(function.SerializeToString(deterministic=True)) + region.compute.encode()
