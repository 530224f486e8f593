"""Turns the float32 compute of a view into float16: the stage behind ``--precision fp16``.

Conversion starts from convolutions and matrix products and takes in what lies between them, as far as ONNX Runtime's CUDA provider has
float16 kernels and the range of float16 suffices. Everything else stays float32, with one Cast a tensor and direction at the border.

Every tensor has one own type, that of the node that makes it; where a reader wants the other type it reads a cast of it. Sub-graphs are
converted inside too; their inputs and outputs keep their types.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from onnx import ModelProto, TensorProto

from ..records import Refusal
from .precision_choice import Choices
from .precision_rewrite import rewrite
from .shapes import Shapes
from .view import Variable, View


@dataclass(frozen=True)
class HalfReport:
    """What :func:`to_half` did.

    Attributes:
        converted: Labels of the nodes that compute in float16 now.
        casts: Number of Cast nodes that were added.
        refused: Nodes that stayed float32 although their op could change, one record a reason, and ops that cannot.
    """

    converted: tuple[str, ...] = ()
    casts: int = 0
    refused: tuple[Refusal, ...] = ()


def to_half(view: View, shapes: Shapes, keep_io_types: bool = True, also: Collection[str] = ()) -> HalfReport:
    """Converts ``view`` in place; a model without float32 convolutions or matrix products is left as it is.

    The ``dtype`` of a :class:`Variable` is set to float16 where it differs from what the file declares; see :func:`correct_types`.

    Args:
        view: The graph, canonicalized in float32 (BatchNorm must be folded before its statistics meet float16).
        shapes: Dtypes and small contents of its tensors.
        keep_io_types: Whether inputs and outputs of the model keep float32; otherwise they become float16.
        also: Standard ops to convert although the CUDA provider has no kernel at the model's opset, because the caller fuses them (Clip before opset 12).
    """
    choices = Choices(view, shapes, also)
    choices.choose()
    if not choices.half_nodes:
        return HalfReport(refused=choices.refused())
    return HalfReport(tuple(n.label for n in choices.half_nodes), rewrite(view, choices, keep_io_types), choices.refused())


def correct_types(view: View, model: ModelProto) -> None:
    """Makes declared types of ``model``, just exported from ``view``, agree with a conversion: inputs, outputs and value_info.

    A value_info entry of a converted tensor is dropped.
    """
    changed = {t.name for g in view.graphs() for n in g.nodes for t in n.outputs if isinstance(t, Variable) and t.dtype is not None}
    header = {t.name for t in [*view.graph.inputs, *view.graph.outputs] if isinstance(t, Variable) and t.dtype is not None}
    for value in [*model.graph.input, *model.graph.output]:
        if value.name in header:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        kept = [v for v in graph.value_info if v.name not in changed]
        if len(kept) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(kept)
        pending.extend(a.g for n in graph.node for a in n.attribute if a.HasField("g"))
