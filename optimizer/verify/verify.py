"""The verify stage: the rewritten model against the original on the same inputs, bodies on the CPU always, kernels where a GPU is there.

Bounds on the relative Frobenius error of each output:

================================================= =========================================================================================
comparison                                        bound
================================================= =========================================================================================
canonicalized, float32                            1e-4
bodies, float32 weights                           1e-4
bodies, float16 arithmetic                        1.3 x the error of the float16 model without our nodes on the same provider, at least 1e-3
kernels                                           1.3 x the error of the canonicalized model on ONNX Runtime's CUDA provider, at least 1e-3
================================================= =========================================================================================

Float16 results are measured against the same model in float32 arithmetic. ``max_error`` replaces the bounds on whole outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from ..config import OptimizeConfig
from ..emit.save import PROTOBUF_LIMIT
from ..graph.load import LoadedModel
from ..graph.shapes import Shapes
from ..graph.view import View
from ..result import Check
from .compare import OutputError, compare, worst
from .inputs import load_inputs, trial_inputs
from .observe import Observed, observe, with_probes
from .session import Source, cpu_session, gpu_available, gpu_session, run
from .upcast import has_half, upcast, upcast_inputs

FLOAT_BOUND = 1e-4
KERNEL_FLOOR = 1e-3
KERNEL_FACTOR = 1.3
CANONICALIZED = "canonicalized, CPU"  # begins the name of the check that no region can fail


class CannotCompare(Exception):
    """Why a model cannot be compared: it does not load, or runs on no input that was tried.

    Attributes:
        loads: Whether ONNX Runtime loads the original, so that it must load what becomes of it.
    """

    def __init__(self, reason: str, loads: bool = False) -> None:
        super().__init__(reason)
        self.loads = loads


@dataclass
class Reference:
    """The original's answers.

    Attributes:
        inputs: What they were computed on.
        truth: Outputs and probes by name; in float32 arithmetic where the model is float16.
        half: Whether anything in the original is float16. ONNX Runtime's CPU provider may still compute all of it in float32.
        own_error: Largest relative error of the original itself against ``truth``; 0 for float32 models.
        observed: Names that are compared.
        in_memory: Whether the models fit one protobuf message, so that probes can be added.
    """

    inputs: dict[str, np.ndarray]
    truth: dict[str, Any]
    half: bool
    own_error: float
    observed: Observed
    in_memory: bool

    @property
    def names(self) -> list[str]:
        """Names that are compared, in order."""
        return [*self.observed.outputs, *(self.observed.probes if self.in_memory else ())]


def reference(source: LoadedModel, view: View, shapes: Shapes, config: OptimizeConfig) -> Reference:
    """Runs the original on the CPU; ``view`` and ``shapes`` show it unchanged.

    Raises:
        CannotCompare: it does not load, or runs on none of the inputs that were tried.
    """
    observed = observe(view)
    in_memory = not source.external_files and sum(len(t.raw_data) for t in source.proto.graph.initializer) < PROTOBUF_LIMIT
    if not (observed.outputs or (in_memory and observed.probes)):
        raise CannotCompare("every output depends on random or discrete ops", loads=_loads(source.path or source.proto))
    probed = _probed(source, observed, in_memory)
    try:
        session = cpu_session(probed)
    except Exception as cause:
        raise CannotCompare(f"the original does not load in ONNX Runtime ({first_line(cause)})") from cause
    half = in_memory and has_half(source.proto)
    names = [*observed.outputs, *(observed.probes if in_memory else ())]
    candidates = [load_inputs(config.inputs, view)] if config.inputs else trial_inputs(view, shapes, config)
    failure = "it takes inputs that are no tensors"
    for inputs in candidates:
        try:
            own = run(session, inputs, names)
        except Exception as cause:
            failure = first_line(cause)
            continue
        try:
            truth = run(cpu_session(upcast(with_probes(source.proto, observed))), upcast_inputs(inputs), names) if half else own
        except Exception as cause:
            raise CannotCompare(f"the original does not run in float32 arithmetic ({first_line(cause)})", loads=True) from cause
        error = worst(_compare_all(names, truth, own, observed)).relative if half else 0.0
        return Reference(inputs, truth, half, error, observed, in_memory)
    raise CannotCompare(f"the original runs on no input that was tried ({failure})", loads=True)


def _loads(source: Source | ModelProto) -> bool:
    try:
        cpu_session(source)
    except Exception:
        return False
    return True


def check_loads(rewritten: Path) -> Check:
    """Whether ONNX Runtime loads the staged model, where there is no more to compare."""
    try:
        cpu_session(rewritten)
    except Exception as cause:
        return Check("function bodies, CPU", 1.0, 0.0, FLOAT_BOUND, f"it does not load ({first_line(cause)})")
    return Check("loads, CPU", 0.0, 0.0, FLOAT_BOUND)


def _probed(source: LoadedModel, observed: Observed, in_memory: bool) -> ModelProto | Path:
    """The model with what is compared as its outputs; the file itself where that is what it has anyway."""
    if source.path is not None and (not in_memory or observed.plain):
        return source.path
    return with_probes(source.proto, observed)


def first_line(cause: BaseException) -> str:
    """What an error says in its first line, at most 300 characters of it."""
    return str(cause).strip().splitlines()[0][:300] if str(cause).strip() else type(cause).__name__


def _compare_all(names: Sequence[str], expected: Mapping[str, Any], got: Mapping[str, Any], observed: Observed) -> list[OutputError]:
    return [compare(n, expected[n], got[n], same_dtype=False, scale=observed.scales.get(n, 0.0)) for n in names]


def verify(ref: Reference, canonical: ModelProto | None, rewritten: Path, config: OptimizeConfig, precision_changed: bool) -> list[Check]:
    """Compares the staged model ``rewritten`` with the original.

    Args:
        canonical: The model just before our nodes were put in, for the error that ONNX Runtime itself makes; None where it did not change
            or does not fit in memory.
        precision_changed: Whether float32 compute was turned to float16 on the way.

    Returns:
        One check a provider and output group; a failed one is in the list too.
    """
    half = precision_changed or ref.half
    base = canonical if ref.in_memory else None

    def of_base(gpu: bool) -> Any:
        assert base is not None
        model = with_probes(base, ref.observed)
        return gpu_session(model, kernels=False) if gpu else cpu_session(model)

    def of_result() -> Source | ModelProto:
        return with_probes(onnx.load(str(rewritten)), ref.observed) if ref.in_memory and not ref.observed.plain else rewritten

    checks = []
    try:
        cpu_error = _largest(ref, of_base(gpu=False)) if base is not None and half else ref.own_error
    except Exception as cause:
        return [Check(CANONICALIZED, 1.0, 0.0, KERNEL_FLOOR, f"it does not run ({first_line(cause)})")]
    if base is not None and not half:
        checks.append(_check(CANONICALIZED, ref, lambda: of_base(gpu=False), FLOAT_BOUND, config))
    body_bound = max(KERNEL_FLOOR, KERNEL_FACTOR * cpu_error) if half else FLOAT_BOUND
    checks.append(_check("function bodies, CPU", ref, lambda: cpu_session(of_result()), body_bound, config))
    if gpu_available():
        vendor_error = _largest(ref, of_base(gpu=True)) if base is not None else ref.own_error
        checks.append(_check("kernels, GPU", ref, lambda: gpu_session(of_result(), kernels=True), max(KERNEL_FLOOR, KERNEL_FACTOR * vendor_error), config))
    return checks


def _largest(ref: Reference, session: Any) -> float:
    error = worst(_errors(ref, session))
    return 0.0 if error.problem else error.relative


def _errors(ref: Reference, session: Any) -> list[OutputError]:
    takes = {i.name: i.type for i in session.get_inputs()}
    inputs = {k: v.astype(np.float16) if takes.get(k) == "tensor(float16)" and v.dtype == np.float32 else v for k, v in ref.inputs.items() if k in takes}
    return _compare_all(ref.names, ref.truth, run(session, inputs, ref.names), ref.observed)


def _check(what: str, ref: Reference, session: Callable[[], Any], bound: float, config: OptimizeConfig) -> Check:
    try:
        error = worst(_errors(ref, session()))
    except Exception as cause:  # NOTE: ONNX Runtime's errors share no base class.
        return Check(what, 1.0, 0.0, bound, f"it does not run ({first_line(cause)})")
    bound = config.max_error if config.max_error is not None else bound
    return Check(f"{what}: {error.name}", error.relative, error.max_abs, bound, error.problem)
