"""Latency of sessions on the GPU, interleaved: one run of each in turn, so that clocks and neighbours strike all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WARM_UP_RUNS = 8
MAX_SECONDS = 4.0  # of measurement a session


@dataclass(frozen=True)
class Timing:
    """Latency of one run with inputs and outputs on the GPU, synchronised; microseconds."""

    median: float
    p10: float
    p90: float
    runs: int


def ort_session(model: bytes, *, graph: bool, nhwc: bool = False) -> Any:
    """A session on ONNX Runtime's own CUDA kernels, convolution algorithms searched exhaustively."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    cuda = {"cudnn_conv_algo_search": "EXHAUSTIVE", "enable_cuda_graph": "1" if graph else "0", "prefer_nhwc": "1" if nhwc else "0"}
    return ort.InferenceSession(model, options, providers=[("CUDAExecutionProvider", cuda), "CPUExecutionProvider"])


def our_session(model: bytes, *, graph: bool) -> Any:
    """A session with the op library; every custom node must run as its kernel."""
    from tilewright import custom_ops

    return custom_ops.session(model, cuda_graph=graph, require_kernels=True)


class Bound:
    """A session with its inputs and outputs bound on the GPU.

    ``outputs`` are arrays of the right shapes: a session that captures a CUDA graph must not run before everything is bound.
    """

    def __init__(self, session: Any, inputs: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        import onnxruntime as ort

        self.session = session
        self.binding = session.io_binding()
        self.values = {name: ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in inputs.items()}
        for name, value in self.values.items():
            self.binding.bind_ortvalue_input(name, value)
        for output, array in zip(session.get_outputs(), outputs, strict=True):
            self.binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))

    def run(self) -> None:
        """One synchronised run."""
        self.session.run_with_iobinding(self.binding)

    def outputs(self) -> list[np.ndarray]:
        """What the last run gave."""
        return [value.numpy() for value in self.binding.get_outputs()]


def interleaved(bound: Mapping[str, Bound], runs: int = 100) -> dict[str, Timing]:
    """Times every session of ``bound``, one run of each in turn."""
    for one in bound.values():
        for _ in range(WARM_UP_RUNS):
            one.run()
    times: dict[str, list[float]] = {name: [] for name in bound}
    end = time.perf_counter() + MAX_SECONDS * len(bound)
    for _ in range(runs):
        for name, one in bound.items():
            start = time.perf_counter()
            one.run()
            times[name].append((time.perf_counter() - start) * 1e6)
        if time.perf_counter() > end:
            break
    return {name: _timing(values) for name, values in times.items()}


def _timing(values: Sequence[float]) -> Timing:
    ordered = sorted(values)
    return Timing(statistics.median(ordered), ordered[len(ordered) // 10], ordered[len(ordered) * 9 // 10], len(ordered))
