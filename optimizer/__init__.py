"""Rewrites an ONNX model so that its convolution regions run as fused CUDA kernels.

``optimize(model_or_path, config, output) -> Result`` is the whole of it; :class:`OptimizeConfig` has the options of the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import OptimizeConfig
    from .errors import ModelError, TilewrightError, UsageError, VerificationError
    from .pipeline import optimize
    from .result import Result

__all__ = ["ModelError", "OptimizeConfig", "Result", "TilewrightError", "UsageError", "VerificationError", "optimize"]

_HOMES = {"OptimizeConfig": "config", "Result": "result", "optimize": "pipeline"}


def __getattr__(name: str) -> Any:
    # NOTE: read on first use, so that a stage can be imported without all the others.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
