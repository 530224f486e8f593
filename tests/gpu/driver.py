"""Runs launch plans on a GPU through the CUDA driver, with guard bands round every buffer, and times launches."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plans import Call, poisoned, resolve
from tilewright.optimizer.launch import LaunchPlan
from tilewright.optimizer.records import KernelSpec

GUARD = 4096  # bytes before and after a buffer
GUARD_BYTE = 0xA5


class GuardError(AssertionError):
    """A kernel wrote outside its buffers, or into an input."""


def check(result: tuple[Any, ...]) -> Any:
    """The values of a driver call.

    Raises:
        RuntimeError: the call failed.
    """
    error, *values = result
    if int(error):
        raise RuntimeError(f"CUDA driver: {error!r}")
    return values[0] if len(values) == 1 else tuple(values)


def pack_args(call: Call, pointers: Mapping[tuple[str, int], int]) -> bytes:
    """The kernel's Args struct: pointers, then ints, as the headers order them."""
    values, kinds = [], "<"
    for value in call.args.values():
        is_int = isinstance(value, int)
        kinds += "i" if is_int else "Q"
        values.append(value if is_int else 0 if value is None else pointers[value[0]] + value[1])
    assert "iQ" not in kinds, f"{call.spec}: a pointer after an int"
    return struct.pack(kinds, *values)


class Buffer:
    """Device memory for one array, a guard band on both sides."""

    def __init__(self, gpu: Gpu, content: np.ndarray) -> None:
        self.gpu, self.size = gpu, content.nbytes
        self.host = np.full(self.size + 2 * GUARD, GUARD_BYTE, np.uint8)
        self.host[GUARD : GUARD + self.size] = np.frombuffer(content.tobytes(), np.uint8)
        self.base = int(check(gpu.cu.cuMemAlloc(self.host.size)))
        self.upload()

    @property
    def pointer(self) -> int:
        """Address of the array."""
        return self.base + GUARD

    def upload(self) -> None:
        """Sends array and guard bands."""
        check(self.gpu.cu.cuMemcpyHtoD(self.base, self.host.ctypes.data, self.host.size))

    def download(self, name: object, same: bool) -> np.ndarray:
        """The array's bytes.

        Raises:
            GuardError: a guard band changed, or the array where it must be the ``same``.
        """
        now = np.empty_like(self.host)
        check(self.gpu.cu.cuMemcpyDtoH(now.ctypes.data, self.base, now.size))
        end = GUARD + self.size
        for what, part in (("before", slice(0, GUARD)), ("after", slice(end, None)), ("inside", slice(GUARD, end) if same else slice(0, 0))):
            changed = np.flatnonzero(now[part] != self.host[part])
            if changed.size:
                raise GuardError(f"{changed.size} bytes written {what} {name}, the first at {changed[0]}, the last at {changed[-1]}")
        return now[GUARD:end]

    def free(self) -> None:
        """Gives the memory back."""
        check(self.gpu.cu.cuMemFree(self.base))


class Gpu:
    """The first GPU, its primary context and a stream."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.cu = driver
        check(driver.cuInit(0))
        self.device = check(driver.cuDeviceGet(0))
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.device))
        check(driver.cuCtxSetCurrent(self.context))
        self.stream = check(driver.cuStreamCreate(0))
        attribute = driver.CUdevice_attribute
        self.sms = int(self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT))
        self.capability = (
            int(self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)),
            int(self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)),
        )
        self.functions: dict[tuple[bytes, str, int], Any] = {}
        self.events: tuple[Any, ...] = ()

    def _attribute(self, which: Any) -> int:
        return int(check(self.cu.cuDeviceGetAttribute(which, self.device)))

    @property
    def arch(self) -> str:
        """Architecture that NVRTC compiles for: the exact one on Hopper."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major == 9 else "")

    def function(self, code: bytes, name: str, smem: int) -> Any:
        """Kernel ``name`` of a cubin, ready for ``smem`` bytes of dynamic shared memory."""
        key = (code, name, smem)
        if key not in self.functions:
            data = np.frombuffer(code + b"\0", np.uint8)
            module = check(self.cu.cuModuleLoadData(data.ctypes.data))
            function = check(self.cu.cuModuleGetFunction(module, name.encode()))
            check(self.cu.cuFuncSetAttribute(function, self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem))
            self.functions[key] = function
        return self.functions[key]

    def launch(self, call: Call, function: Any, args: bytes, pdl: bool = False) -> None:
        """Starts one kernel in the stream; with ``pdl`` it may begin before its predecessor has ended."""
        data = np.frombuffer(args, np.uint8)
        params = np.array([data.ctypes.data], np.uint64)
        if not pdl:
            check(self.cu.cuLaunchKernel(function, *call.grid, call.block, 1, 1, call.smem, self.stream, params.ctypes.data, 0))
            return
        attribute = self.cu.CUlaunchAttribute()
        attribute.id = self.cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config = self.cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = call.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = call.block, 1, 1
        config.sharedMemBytes = call.smem
        config.hStream = self.stream
        config.attrs = [attribute]
        config.numAttrs = 1
        check(self.cu.cuLaunchKernelEx(config, function, params.ctypes.data, 0))

    def capture(self, launches: Sequence[tuple[Call, Any, bytes]], pdl: bool = False) -> Any:
        """A CUDA graph of ``launches`` (call, function, packed arguments) one after the other, ready to be launched."""
        cu = self.cu
        check(cu.cuStreamBeginCapture(self.stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        for call, function, args in launches:
            self.launch(call, function, args, pdl)
        graph = check(cu.cuStreamEndCapture(self.stream))
        executable = check(cu.cuGraphInstantiate(graph, 0))
        check(cu.cuGraphDestroy(graph))
        return executable

    def time_graph(self, executable: Any) -> float:
        """Microseconds of one launch of a graph, by events."""
        cu = self.cu
        if not self.events:
            self.events = (check(cu.cuEventCreate(0)), check(cu.cuEventCreate(0)))
        begin, end = self.events
        check(cu.cuEventRecord(begin, self.stream))
        check(cu.cuGraphLaunch(executable, self.stream))
        check(cu.cuEventRecord(end, self.stream))
        check(cu.cuEventSynchronize(end))
        return 1e3 * float(check(cu.cuEventElapsedTime(begin, end)))

    def free_graph(self, executable: Any) -> None:
        """Gives a graph of :meth:`capture` back."""
        check(self.cu.cuGraphExecDestroy(executable))

    def synchronize(self) -> None:
        """Waits for the stream; errors of kernels show here."""
        check(self.cu.cuStreamSynchronize(self.stream))

    def run_plan(
        self, plan: LaunchPlan, specs: Mapping[str, KernelSpec], codes: Mapping[KernelSpec, bytes], inputs: Sequence[np.ndarray], pdl: bool = False
    ) -> list[np.ndarray]:
        """The outputs of ``plan``, which start as NaNs (bytes 0xff), as scratch does; every launch programmatic with ``pdl``.

        Raises:
            GuardError: something was written that is neither output nor scratch.
        """
        numbers = resolve(plan, specs, [a.shape for a in inputs], self.sms)
        outputs = [poisoned(shape, dtype) for dtype, shape in numbers.outputs]
        content = {("in", i): a for i, a in enumerate(inputs)} | {("out", i): a for i, a in enumerate(outputs)}
        content |= {("ws", i): poisoned([size], np.dtype(np.uint8)) for i, size in enumerate(numbers.scratch)}
        buffers = {name: Buffer(self, array) for name, array in content.items()}
        try:
            pointers = {name: buffer.pointer for name, buffer in buffers.items()}
            for call in numbers.calls:
                self.launch(call, self.function(codes[call.spec], call.kernel, call.smem), pack_args(call, pointers), pdl)
            self.synchronize()
            read = {name: buffer.download(name, name[0] == "in") for name, buffer in buffers.items()}
        finally:
            for buffer in buffers.values():
                buffer.free()
        return [read["out", i].view(a.dtype).reshape(a.shape) for i, a in enumerate(outputs)]
