"""What a launch of each kernel template needs: threads, shared memory, grid and arguments, from its :class:`KernelSpec`.

Everything here is a pure function of the spec and, for grids, of the kernel's scalar arguments, which may be run-time expressions. The
formulas repeat what the headers say (``THREADS``, ``SMEM_BYTES``, the ``Grid:`` lines); a test compiles the headers and compares.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping

from tilewright import kernels_ptx

from ..launch import NULL, Arg, Expr, ExprLike, Launch, arg_i32, ceildiv, const, expr, maximum
from ..records import Activation, KernelSpec

F16 = "tilewright::F16"
TF32 = "tilewright::TF32"
Values = Mapping[str, ExprLike]
Grid = tuple[Expr, Expr, Expr]

_ELEMENT_BYTES = {F16: 2, TF32: 4}
_TYPES = {"f16": F16, "tf32": TF32}
_MAPS = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hard_swish": "HardSwish", "silu": "Silu", "gelu": "Gelu", "gelu_tanh": "GeluTanh",
    "mish": "Mish",
}  # fmt: skip


def element_type(dtype: str) -> str:
    """C++ type of dtype name ``f16`` or ``tf32``."""
    return _TYPES[dtype]


def element_bytes(spec: KernelSpec) -> int:
    """Bytes of an element of the kernel's NHWC tensors."""
    return _ELEMENT_BYTES[str(spec["TYPE"])]


def unit(spec: KernelSpec) -> int:
    """Elements in 16 bytes, the unit in which kernels read and write channels."""
    return 16 // element_bytes(spec)


def float_bits(value: float) -> str:
    """``value`` as a float32 template argument: ``6.0`` -> ``0x40c00000u``."""
    return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}u"


def op(name: str, *args: int | float) -> str:
    """C++ text of one epilogue op: ``op("AddFull", 0)``, ``op("Affine", 2.0, 1.0)`` (floats become bit patterns)."""
    texts = [str(a) if isinstance(a, int) else float_bits(a) for a in args]
    return f"tilewright::{name}" + (f"<{', '.join(texts)}>" if texts else "")


def activation_op(activation: Activation, operand: int = 0) -> str:
    """C++ text of the epilogue op for ``activation``; a PReLU reads its slopes from operand ``e<operand>``."""
    if activation.kind == "clip":
        return op("Clip", float(activation.a), float(activation.b))
    if activation.kind == "leaky_relu":
        return op("LeakyRelu", float(activation.a))
    if activation.kind == "hard_sigmoid":
        return op("HardSigmoid", float(activation.a), float(activation.b))
    if activation.kind == "prelu":
        return op("PReluVec", operand)
    return op(_MAPS[activation.kind])


def epilogue(ops: Iterable[str] = ()) -> str:
    """C++ text of the epilogue that applies ``ops`` in order."""
    return f"tilewright::Epilogue<{', '.join(ops)}>"


def _int(spec: KernelSpec, name: str) -> int:
    value = spec[name]
    assert isinstance(value, int), f"{spec}: {name} is not a number"
    return value


def block_threads(spec: KernelSpec) -> int:
    """Threads of a block."""
    if spec.template == "conv_igemm":
        return 32 * _int(spec, "WARPS_M") * _int(spec, "WARPS_N")
    if spec.template == "layout":
        return 256
    return _int(spec, "THREADS")


def smem_bytes(spec: KernelSpec) -> int:
    """Dynamic shared memory of a block; templates have no other."""
    if spec.template == "conv_igemm":
        row_bytes = _int(spec, "BLOCK_K") * element_bytes(spec)
        return _int(spec, "STAGES") * (_int(spec, "BLOCK_M") + _int(spec, "BLOCK_N")) * row_bytes
    if spec.template == "global_pool":
        return block_threads(spec) * unit(spec) * 4
    if spec.template == "layout":
        return _int(spec, "TILE_C") * (64 + 1) * 4
    return 0


def _written(values: Values, channels: ExprLike, offset: str = "y_offset", zero_to: str = "y_zero_to") -> Expr:
    return maximum(channels, expr(values[zero_to]) - values[offset])


def _lanes(spec: KernelSpec, values: Values, channels: ExprLike) -> Expr:
    return ceildiv(ceildiv(_written(values, channels), unit(spec)), _int(spec, "LANES"))


def _rows(spec: KernelSpec, values: Values, channels: ExprLike, rows: ExprLike, each: int = 1) -> Grid:
    return ceildiv(rows, block_threads(spec) // _int(spec, "LANES") * each), _lanes(spec, values, channels), const(1)


def _pixels(values: Values) -> Expr:
    return expr(values["batch"]) * values["p"] * values["q"]


def _grid_igemm(spec: KernelSpec, values: Values) -> Grid:
    rows, columns = ceildiv(_pixels(values), _int(spec, "BLOCK_M")), ceildiv(values["cout_g"], _int(spec, "BLOCK_N"))
    return rows * columns, expr(values["groups"]), const(_int(spec, "SPLIT_K"))


def _grid_depthwise(spec: KernelSpec, values: Values) -> Grid:
    positions = expr(values["batch"]) * values["p"] * ceildiv(values["q"], _int(spec, "OUT_W"))
    return _rows(spec, values, values["channels"], positions)


def _grid_direct(spec: KernelSpec, values: Values) -> Grid:
    return _rows(spec, values, expr(values["groups"]) * values["cout_g"], _pixels(values))


def _grid_channels(spec: KernelSpec, values: Values) -> Grid:
    return _rows(spec, values, values["channels"], _pixels(values))


def _grid_pointwise(spec: KernelSpec, values: Values) -> Grid:
    return _rows(spec, values, values["channels"], _pixels(values), _int(spec, "ROWS"))


def _grid_global_pool(spec: KernelSpec, values: Values) -> Grid:
    return expr(values["batch"]), _lanes(spec, values, values["channels"]), const(1)


def _grid_layout(spec: KernelSpec, values: Values) -> Grid:
    tile, pixels = _int(spec, "TILE_C"), expr(values["h"]) * values["w"]
    channels = _written(values, values["channels"], "offset", "zero_to") if spec["TO_NHWC"] else expr(values["channels"])
    return expr(values["batch"]) * ceildiv(pixels, 64 if tile else 256), ceildiv(channels, tile or unit(spec)), const(1)


_GRIDS: dict[str, Callable[[KernelSpec, Values], Grid]] = {
    "conv_igemm": _grid_igemm,
    "conv_depthwise": _grid_depthwise,
    "conv_direct": _grid_direct,
    "pool": _grid_channels,
    "global_pool": _grid_global_pool,
    "pointwise": _grid_pointwise,
    "concat": _grid_channels,
    "splitk_reduce": _grid_channels,
    "layout": _grid_layout,
}


def grid(spec: KernelSpec, values: Values) -> Grid:
    """The grid of a launch whose scalar arguments are ``values`` (by name; those that do not count may be missing)."""
    return _GRIDS[spec.template](spec, values)


def workspace_bytes(spec: KernelSpec, values: Values) -> Expr:
    """Size of the partial sums of a ``conv_igemm`` with ``SPLIT_K`` above 1; 0 for every other kernel."""
    if spec.template != "conv_igemm" or spec["SPLIT_K"] == 1:
        return const(0)
    return _pixels(values) * values["ws_pitch"] * (4 * _int(spec, "SPLIT_K"))


def launch(spec: KernelSpec, image: int, kernel: str, values: Mapping[str, Arg | ExprLike], *, when: ExprLike = 1, pdl: bool = False) -> Launch:
    """The launch of ``kernel`` (its name in image number ``image``) with arguments ``values`` by name.

    Pointers are :class:`Arg`; those left out are null. Scalars are expressions or integers; every one must be given, apart from
    ``reserved``, ``y_zero_to`` and ``zero_to`` (0: no padding to write) and pitches of operands that the epilogue does not name.

    Raises:
        KeyError: an argument that the kernel does not have, or a scalar that is missing.
    """
    fields = kernels_ptx.template_args(spec.template)
    unknown = set(values) - {name for name, _ in fields}
    if unknown:
        raise KeyError(f"{spec.template} has no argument {', '.join(sorted(unknown))}")
    scalars = {name: value for name, value in values.items() if not isinstance(value, Arg)}
    defaults = {"reserved", "y_zero_to", "zero_to", "e0_pitch", "e1_pitch", "e2_pitch", "ws_pitch"}
    args = []
    for name, kind in fields:
        if kind != "i32":
            value = values.get(name, NULL)
            if not isinstance(value, Arg):
                raise KeyError(f"{spec.template}: argument {name} is a pointer, not {value}")
            args.append(value)
        elif name in scalars:
            args.append(arg_i32(scalars[name]))
        elif name in defaults:
            args.append(arg_i32(0))
        else:
            raise KeyError(f"{spec.template}: argument {name} is missing")
    scalars = {"y_zero_to": 0, "zero_to": 0, **scalars}
    return Launch(image, kernel, grid(spec, scalars), block_threads(spec), const(smem_bytes(spec)), tuple(args), expr(when), pdl)
