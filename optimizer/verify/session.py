"""ONNX Runtime sessions for verification: on the CPU without the library, on the GPU with or without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

Source = bytes | Path


def cpu_session(source: Source | ModelProto, optimize: bool = True) -> Any:
    """A session on the CPU provider without the op library: custom nodes run as their function bodies."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(_load(source), options, providers=["CPUExecutionProvider"])


def gpu_session(source: Source | ModelProto, kernels: bool) -> Any:
    """A session on the CUDA provider; with ``kernels`` the op library is registered and must serve every custom node."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if kernels:
        from tilewright import custom_ops

        return custom_ops.session(_load(source), session_options=options, require_kernels=True)
    return ort.InferenceSession(_load(source), options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])


def gpu_available() -> bool:
    """Whether the op library can run kernels here: a driver, a supported GPU, and an ONNX Runtime with the CUDA provider."""
    from tilewright import custom_ops

    return custom_ops.supported()


def _load(source: Source | ModelProto) -> Any:
    if isinstance(source, ModelProto):
        return source.SerializeToString()
    return str(source) if isinstance(source, Path) else source


def run(session: Any, inputs: Mapping[str, np.ndarray], names: Sequence[str] | None = None) -> dict[str, Any]:
    """Outputs by name."""
    names = list(names) if names is not None else [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True)) if names else {}
