"""Finds the op library and loads it into ONNX Runtime."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx
    import onnxruntime

LIBRARY = "libtilewright_ops.so"
DOMAIN = "tilewright"
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
Provider = str | tuple[str, Mapping[str, Any]]


class OpLibraryError(RuntimeError):
    """The op library, ONNX Runtime or a GPU is missing where it is needed; the text says which and what to do."""


def library_path() -> Path:
    """Where ``libtilewright_ops.so`` is.

    In this order: the environment variable ``TILEWRIGHT_LIBRARY``, beside the installed package, ``build/ops`` of a checkout.

    Raises:
        OpLibraryError: it is in none of these places.
    """
    override = os.environ.get("TILEWRIGHT_LIBRARY")
    if override:
        path = Path(override).resolve()
        if path.is_file():
            return path
        raise OpLibraryError(f"TILEWRIGHT_LIBRARY names {override}, which is no file")
    installed = resources.files(__package__).joinpath(LIBRARY)
    if isinstance(installed, Path) and installed.is_file():
        return installed.resolve()
    built = Path(__file__).resolve().parents[1] / "build" / "ops" / LIBRARY
    if built.is_file():
        return built
    raise OpLibraryError(
        f"the op library {LIBRARY} is not built: install the package on a machine with a C++17 compiler, or run "
        "`cmake -S custom_ops -B build/ops -G Ninja && cmake --build build/ops` in the checkout"
    )


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Makes sessions of ``session_options`` run the kernels of optimized models; twice does no harm.

    Where no kernel can run (no GPU, a driver below 580, an untested ONNX Runtime) nothing is registered, one line on standard error says why
    (``TILEWRIGHT_LOG=off`` silences it), and the models run their standard ops.

    Raises:
        OpLibraryError: the library is not built.
    """
    session_options.register_custom_ops_library(str(library_path()))


def session(
    model: str | os.PathLike[str] | bytes,
    providers: Sequence[Provider] | None = None,
    *,
    cuda_graph: bool = False,
    require_kernels: bool = False,
    session_options: onnxruntime.SessionOptions | None = None,
) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session with the op library registered.

    Args:
        model: Path of a model, or its bytes.
        providers: As ONNX Runtime takes them. Default: CUDA, then CPU where a GPU is there; else CPU.
        cuda_graph: Capture the model into a CUDA graph at its first runs (``enable_cuda_graph``; fixed shapes, run with IOBinding).
        require_kernels: Fail rather than run the standard ops that stand in for a kernel.
        session_options: Options to start from; the library is registered in them.

    Raises:
        OpLibraryError: the library or ONNX Runtime is missing; or, with ``require_kernels``, a custom node would not run its kernel.
    """
    ort = _onnxruntime()
    options = session_options if session_options is not None else ort.SessionOptions()
    register(options)
    if providers is None:
        providers = [CUDA, CPU] if status()["devices"] and CUDA in ort.get_available_providers() else [CPU]
    if CUDA in map(_name, providers):
        _preload_cuda(ort)
    if cuda_graph:
        providers = [(CUDA, {**_options(p), "enable_cuda_graph": "1"}) if _name(p) == CUDA else p for p in providers]
    source = model if isinstance(model, bytes) else os.fspath(model)
    result = ort.InferenceSession(source, options, providers=list(providers))
    if require_kernels:
        _check_kernels(source, result.get_providers())
    return result


def status() -> dict[str, Any]:
    """What the library did in this process.

    Returns:
        ``registered``: target classes whose kernels sessions get; ``reason``: why there are none, ''  before a session asked; ``devices``, ``driver``
        and ``driver_problem``; ``runtime``: ONNX Runtime's version; ``images``, ``nodes`` and ``launches``: counts of images loaded, custom nodes
        created and kernels launched; ``version``; ``classes``: all target classes that it knows.

    Raises:
        OpLibraryError: the library is not built.
    """
    library = ctypes.CDLL(str(library_path()))
    library.tilewright_status.restype = ctypes.c_char_p
    result: dict[str, Any] = json.loads(library.tilewright_status())
    return result


def supported() -> bool:
    """Whether sessions of this process can run kernels: library, driver, GPU and an ONNX Runtime that is known to work are there."""
    try:
        if status()["driver_problem"]:
            return False
        ort = _onnxruntime()
        register(ort.SessionOptions())
        return CUDA in ort.get_available_providers() and bool(status()["registered"])
    except (OpLibraryError, OSError):
        return False


def _onnxruntime() -> Any:
    import onnxruntime

    if not hasattr(onnxruntime, "InferenceSession"):
        raise OpLibraryError(
            "onnxruntime is installed in part (onnxruntime and onnxruntime-gpu share a folder, and removing one breaks the other); repair it with "
            "`pip uninstall -y onnxruntime onnxruntime-gpu` and then `pip install onnxruntime-gpu`"
        )
    return onnxruntime


def _preload_cuda(ort: Any) -> None:
    """Makes CUDA libraries that pip installed visible to the CUDA provider."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find; the session says so itself
        getattr(ort, "preload_dlls", lambda: None)()


def _name(provider: Provider) -> str:
    return provider if isinstance(provider, str) else provider[0]


def _options(provider: Provider) -> Mapping[str, Any]:
    return {} if isinstance(provider, str) else provider[1]


def _check_kernels(source: str | bytes, providers: Iterable[str]) -> None:
    """Raises OpLibraryError unless every custom node of the model got its kernel."""
    import onnx

    model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source, load_external_data=False)
    now = status()
    if CUDA not in providers:
        available, reason = [], f"the session has no CUDA provider (it has {', '.join(providers)})"
    else:
        available, reason = now["registered"], now["reason"] or f"kernels are registered for {', '.join(now['registered'])} only"
    lacking = [node for node in _custom_nodes(model.graph) if _target_class(node) not in available]
    if lacking:
        names = ", ".join(node.name or node.output[0] for node in lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        raise OpLibraryError(f"{len(lacking)} of the model's nodes would run their standard ops instead of a kernel ({names}): {reason}")


def _target_class(node: onnx.NodeProto) -> str:
    """Of an op that is named <kind>_<target class>_<number>."""
    parts = node.op_type.split("_")
    return parts[-2] if len(parts) > 2 else ""


def _custom_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        if node.domain == DOMAIN:
            yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _custom_nodes(inner)
