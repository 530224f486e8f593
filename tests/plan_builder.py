"""Builds launch plans with random inputs for tests: tensors with padding inside wider tensors, results at channel offsets, epilogues by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import kernels_ptx
from tilewright.optimizer.launch import Arg, ExprLike, LaunchPlan, Output, arg_in, arg_out, const
from tilewright.optimizer.lower import kernels
from tilewright.optimizer.lower.render import kernel_name
from tilewright.optimizer.records import Activation, KernelSpec

DTYPE = {"f16": np.float16, "tf32": np.float32}
TENSOR = {"f16": "f16", "tf32": "f32"}
UNIT = {"f16": 8, "tf32": 4}


@dataclass
class Plan:
    """A launch plan in the making."""

    dtype: str
    rng: np.random.Generator
    inputs: list[np.ndarray] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    scratch: list[ExprLike] = field(default_factory=list)
    specs: dict[str, KernelSpec] = field(default_factory=dict)
    launches: list[Any] = field(default_factory=list)

    def input(self, array: np.ndarray) -> Arg:
        self.inputs.append(np.ascontiguousarray(array))
        return arg_in(len(self.inputs) - 1)

    def floats(self, count: int, scale: float = 1.0, shift: float = 0.0) -> Arg:
        return self.input((self.rng.standard_normal(count) * scale + shift).astype(np.float32))

    def launch(self, template: str, params: dict[str, Any], values: dict[str, Any], **options: Any) -> None:
        names = kernels_ptx.template_params(template)
        assert set(params) == set(names), f"{template} takes {', '.join(names)}"
        spec = KernelSpec.of(template, {name: params[name] for name in names})
        self.specs[str(spec)] = spec
        self.launches.append(kernels.launch(spec, list(self.specs).index(str(spec)), kernel_name(spec), values, **options))

    def tensor(self, rows: int, channels: int, tight: bool, scale: float = 1.0) -> tuple[Arg, int]:
        """Rows of ``channels`` random values, padded with zeros and, unless ``tight``, inside a wider tensor of NaNs; pointer and pitch."""
        unit = UNIT[self.dtype]
        width = -(-channels // unit) * unit
        extra = 0 if tight else unit * int(self.rng.integers(0, 3))
        before = 0 if tight else unit * int(self.rng.integers(0, 2))
        array = np.full((rows, width + extra + before), np.nan, DTYPE[self.dtype])
        array[:, before : before + width] = 0
        array[:, before : before + channels] = self.rng.standard_normal((rows, channels)) * scale
        arg = self.input(array)
        return arg_in(arg.index, before * array.itemsize), array.shape[1]

    def result(self, dims: Sequence[ExprLike], channels: int, concat: str) -> dict[str, ExprLike | Arg]:
        """y as an output ``[dims..., pitch]``.

        ``concat``: ``none`` (padding follows), ``inside`` (others' channels on both sides) or ``odd`` (at an odd offset).
        """
        unit = UNIT[self.dtype]
        offset = {"none": 0, "inside": unit * int(self.rng.integers(1, 4)), "odd": int(self.rng.integers(1, 2 * unit))}[concat]
        end = offset + channels
        zero_to = -(-end // unit) * unit if concat != "inside" or self.rng.random() < 0.3 else 0
        pitch = max(-(-end // unit) * unit, zero_to) + (unit * int(self.rng.integers(0, 3)) if concat != "none" else 0)
        self.outputs.append(Output(TENSOR[self.dtype], tuple(const(d) if isinstance(d, int) else d for d in (*dims, pitch))))
        return {"y": arg_out(0), "y_pitch": pitch, "y_offset": offset, "y_zero_to": zero_to}

    def epilogue(self, names: Sequence[str], rows: int, samples: int, channels: int, tight: bool) -> tuple[str, dict[str, ExprLike | Arg]]:
        """C++ text and arguments for ops by name (as in kernels.activation_op, or an op class)."""
        ops, values, slot = [], {}, 0
        for name in names:
            if name == "Bias":
                values["bias"] = self.floats(channels)
                ops.append(kernels.op("Bias"))
            elif name in ACTIVATIONS:
                ops.append(kernels.activation_op(ACTIVATIONS[name]))
            elif name == "Affine":
                ops.append(kernels.op("Affine", 0.75, -0.5))
            else:
                if name in ("ScaleVec", "ShiftVec", "PReluVec"):
                    values[f"e{slot}"] = self.floats(channels, 0.5, 0.25)
                else:
                    values[f"e{slot}"], values[f"e{slot}_pitch"] = self.tensor(samples if name.endswith("Gate") else rows, channels, tight)
                ops.append(kernels.op(name, slot))
                slot += 1
        return kernels.epilogue(ops), values

    def done(self) -> Made:
        plan = LaunchPlan(tuple(self.outputs), tuple(const(s) if isinstance(s, int) else s for s in self.scratch), tuple(self.specs), tuple(self.launches))
        return Made(plan, self.specs, self.inputs)


@dataclass(frozen=True)
class Made:
    """A plan, its kernels by image name, and its inputs."""

    plan: LaunchPlan
    specs: dict[str, KernelSpec]
    inputs: list[np.ndarray]


ACTIVATIONS = {
    "relu": Activation("relu"), "clip": Activation("clip", 0.0, 1.5), "clip_low": Activation("clip", -0.25, float("inf")),
    "leaky_relu": Activation("leaky_relu", 0.1), "sigmoid": Activation("sigmoid"), "tanh": Activation("tanh"),
    "hard_sigmoid": Activation("hard_sigmoid", 0.2, 0.5), "hard_swish": Activation("hard_swish"), "silu": Activation("silu"), "gelu": Activation("gelu"),
    "gelu_tanh": Activation("gelu_tanh"), "mish": Activation("mish"),
}  # fmt: skip
OTHER_OPS = ("Affine", "ScaleVec", "ShiftVec", "PReluVec", "AddFull", "MulFull", "SubFull", "RSubFull", "MulGate", "AddGate")
