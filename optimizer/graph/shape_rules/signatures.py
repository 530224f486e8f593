"""Output dtypes as the op schemas of the onnx package say them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import TensorProto
from onnx.defs import OpSchema

_ENUM = {f"tensor({TensorProto.DataType.Name(v).lower()})": v for v in TensorProto.DataType.values()}


@dataclass(frozen=True)
class Signature:
    """Type variables of an op's formal inputs and outputs, and the dtypes of those that have only one.

    ``inputs`` and ``outputs`` name type variables; '' stands for one that says nothing (variadic with mixed types).
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    repeats_input: bool
    repeats_output: bool
    fixed: dict[str, int]

    def dtypes(self, given: Sequence[int | None], count: int) -> list[int | None]:
        """Dtypes of ``count`` outputs for those of the inputs; None where the schema alone does not say."""
        known: dict[str, int] = dict(self.fixed)
        for i, dtype in enumerate(given):
            name = self.inputs[i] if i < len(self.inputs) else self.inputs[-1] if self.inputs and self.repeats_input else ""
            if name and dtype is not None:
                known.setdefault(name, dtype)
        names = [self.outputs[i] if i < len(self.outputs) else self.outputs[-1] if self.outputs and self.repeats_output else "" for i in range(count)]
        return [known.get(name) if name else None for name in names]


@cache
def schema(domain: str, op: str, version: int) -> OpSchema | None:
    """The schema of ``op`` as of opset ``version`` of ``domain``, or None where the onnx package does not know it."""
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def signature(domain: str, op: str, version: int) -> Signature | None:
    """Dtype relations of ``op``, or None where the onnx package does not know it."""
    found = schema(domain, op, version)
    if found is None:
        return None
    single = {c.type_param_str: c.allowed_type_strs[0] for c in found.type_constraints if len(c.allowed_type_strs) == 1}
    fixed = {name: _ENUM[text] for name, text in single.items() if text in _ENUM}
    fixed |= {p.type_str: _ENUM[p.type_str] for p in [*found.inputs, *found.outputs] if p.type_str in _ENUM}
    variadic = OpSchema.FormalParameterOption.Variadic

    def names(parameters: Sequence[OpSchema.FormalParameter]) -> tuple[tuple[str, ...], bool]:
        repeats = bool(parameters) and parameters[-1].option == variadic
        return tuple("" if p.option == variadic and not p.is_homogeneous else p.type_str for p in parameters), repeats

    inputs, repeats_input = names(found.inputs)
    outputs, repeats_output = names(found.outputs)
    return Signature(inputs, outputs, repeats_input, repeats_output, fixed)
