"""From a :class:`KernelSpec` to the CUDA source that is compiled: the template's header and one explicit instantiation."""

from __future__ import annotations

import hashlib
import re

from tilewright import kernels_ptx

from ..records import KernelSpec

_SOURCE = """\
#include "{template}.cuh"

using Kernel = tilewright::{struct}<
{params}>;

extern "C" __global__ void __launch_bounds__(Kernel::THREADS, Kernel::MIN_BLOCKS)
{name}(const __grid_constant__ Kernel::Args args) {{
  Kernel::run(args);
}}
"""


def cpp_value(value: int | bool | str) -> str:
    """A parameter as C++ text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short(name: str, value: int | bool | str) -> str:
    if isinstance(value, bool):
        return name.lower() if value else ""
    if isinstance(value, int):
        return "".join(word[0] for word in name.lower().split("_")) + str(value)
    names = re.findall(r"\w+", re.sub(r"0x[0-9a-f]+u|tilewright::", "", value))
    if not names or names[0] != "Epilogue":
        return "_".join(names).lower()
    ops = re.sub(r"([a-z])([A-Z])", r"\1_\2", " ".join(names[1:])).lower()
    return re.sub(r" (\d)", r"\1", ops).replace(" ", "_")


def kernel_name(spec: KernelSpec) -> str:
    """Name of the kernel's entry: the template, its parameters in short, and a digest of the spec that makes it unique.

    ``conv_igemm_f16_bm64_bn64_bk64_wm2_wn2_s4_v8_sk1_bias_relu_3fa2c09b1e``
    """
    parts = [spec.template, *filter(None, (_short(name, value) for name, value in spec.params))]
    return "_".join(parts)[:160] + "_" + hashlib.sha256(str(spec).encode()).hexdigest()[:10]


def render(spec: KernelSpec) -> str:
    """The CUDA source of ``spec``; the same text for the same spec.

    Raises:
        KeyError: no such template.
        ValueError: parameters that are not those of the header, in its order.
    """
    names = kernels_ptx.template_params(spec.template)
    if tuple(name for name, _ in spec.params) != names:
        raise ValueError(f"{spec}: the parameters of {spec.template} are {', '.join(names)}")
    params = ",\n".join(f"    /* {name} */ {cpp_value(value)}" for name, value in spec.params)
    return _SOURCE.format(template=spec.template, struct=kernels_ptx.template_struct(spec.template), params=params, name=kernel_name(spec))
