"""Last step of emit: the output appears whole or not at all, external data included; the input's files are never written to."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from onnx import ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo

from ..errors import ModelError, UsageError
from ..graph.load import LoadedModel, all_tensors, tensor_bytes

INLINE_BYTES = 1024  # smaller tensors stay in the model file
ALIGNMENT = 4096  # of a tensor in the data file, so that it can be mapped
PROTOBUF_LIMIT = 2**31 - 2**20


def check_output(path: Path, source: LoadedModel) -> None:
    """Refuses an output that cannot be written or is the input.

    Raises:
        UsageError: ``path`` is the input model or one of its data files.
        ModelError: its folder does not exist, or it is a folder.
    """
    inputs = [source.path] if source.path else []
    if source.base_dir:
        inputs += [source.base_dir / name for name in source.external_files]
    if any(path.resolve() == i.resolve() for i in inputs):
        raise UsageError(f"{path}: the output is the input; give another -o, a model is never rewritten in place")
    if path.is_dir():
        raise ModelError(f"{path}: cannot be written, it is a folder")
    if path.exists() and not path.is_file():
        raise ModelError(f"{path}: cannot be written, it is no regular file (--dry-run writes nothing)")
    if not path.parent.is_dir():
        raise ModelError(f"{path}: cannot be written, the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ModelError(f"{path}: cannot be written, no permission in {path.parent}")


class StagedOutput:
    """An output that is complete on disk, in a hidden folder beside its target, and not yet visible under its name.

    Attributes:
        folder: The hidden folder; the files in it have their final names, so the model can be loaded from there.
        path: Where the model will appear.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = Path(tempfile.mkdtemp(prefix=f".{path.name[:50]}.", suffix=".tmp", dir=path.parent))
        self._files: list[Path] = []

    @property
    def model(self) -> Path:
        """The staged model file."""
        return self.folder / self.path.name

    @property
    def nbytes(self) -> int:
        """Size of all staged files, bytes."""
        return sum((self.folder / f).stat().st_size for f in self._files)

    def write(self, name: str | Path, fill: Callable[[BinaryIO], object]) -> None:
        """Adds one file, synced to disk; ``name`` is relative to the target's folder."""
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as sink:
            fill(sink)
            sink.flush()
            os.fsync(sink.fileno())
        self._files.append(Path(name))

    def commit(self) -> list[Path]:
        """Renames the files to where they belong, the model last; returns them, the model first.

        Raises:
            ModelError: one of them cannot be put there; those before it are taken back.
        """
        replaced: list[tuple[Path, Path | None]] = []
        try:
            for name in self._files:
                final = self.path.parent / name
                final.parent.mkdir(parents=True, exist_ok=True)
                if name is not self._files[-1]:  # with the last one all is done
                    replaced.append((final, self._set_aside(final)))
                os.replace(self.folder / name, final)
        except BaseException as cause:
            for final, old in replaced:
                if old is not None:
                    os.replace(old, final)
                else:
                    final.unlink(missing_ok=True)
            if isinstance(cause, OSError):
                raise ModelError(f"{self.path}: cannot be written ({cause.strerror or cause})") from cause
            raise
        _sync_folder(self.path.parent)
        return [self.path.parent / name for name in reversed(self._files)]

    def _set_aside(self, file: Path) -> Path | None:
        """A second name for what is to be replaced; None where there is nothing."""
        if not os.path.lexists(file):
            return None
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, f"{file.name} is a folder")
        aside = Path(tempfile.mkdtemp(dir=self.folder)) / file.name
        try:
            os.link(file, aside, follow_symlinks=False)
        except OSError:  # NOTE: not every file system has hard links
            os.replace(file, aside)
        return aside

    def discard(self) -> None:
        """Removes what is left of the hidden folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # NOTE: some network file systems refuse it; the files are complete all the same
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def staged(path: Path) -> Iterator[StagedOutput]:
    """A :class:`StagedOutput` for ``path`` that leaves nothing behind, however the block ends."""
    try:
        output = StagedOutput(path)
    except OSError as cause:
        raise ModelError(f"{path}: cannot be written ({cause.strerror or cause})") from cause
    try:
        yield output
    except OSError as cause:
        raise ModelError(f"{path}: cannot be written ({cause.strerror or cause})") from cause
    finally:
        output.discard()


def stage_unchanged(source: LoadedModel, output: StagedOutput) -> None:
    """Stages the input's own bytes, and its data files where the target lies in another folder."""
    data = source.path.read_bytes() if source.path else source.proto.SerializeToString(deterministic=True)
    for name in source.external_files:
        assert source.base_dir is not None
        origin = source.base_dir / name
        if origin.resolve() != (output.path.parent / name).resolve():
            output.write(name, lambda sink, origin=origin: _copy_file(origin, sink))  # type: ignore[misc]
    output.write(output.path.name, lambda sink: sink.write(data))


def stage_model(model: ModelProto, source: LoadedModel, output: StagedOutput, external: bool) -> None:
    """Stages ``model``, which is used up.

    Weights go to ``<path>.data`` where that was asked for (``external``), where the input had its own so, or where the model does not fit
    one protobuf message.
    """
    size = sum(len(t.raw_data) for t in all_tensors(model))
    if external or source.external_files or size > PROTOBUF_LIMIT:
        taken = {(source.base_dir / name).resolve() for name in source.external_files} if source.base_dir else set()
        name = output.path.name + ".data"
        if (output.path.parent / name).resolve() in taken:
            name = output.path.name + ".tilewright.data"
        output.write(name, lambda sink: _write_tensors(model, source.base_dir, name, sink))
    output.write(output.path.name, lambda sink: sink.write(model.SerializeToString(deterministic=True)))


def _write_tensors(model: ModelProto, base_dir: Path | None, location: str, sink: BinaryIO) -> None:
    """Moves weights into ``sink``; tensors that share one range of the input's files share it again."""
    written: dict[tuple[str, int, int], int] = {}
    for tensor in all_tensors(model):
        if tensor.data_type == TensorProto.STRING:
            continue
        is_external = tensor.data_location == TensorProto.EXTERNAL
        if 0 in tensor.dims and is_external:  # NOTE: ONNX Runtime cannot read nothing at the end of a file
            del tensor.external_data[:]
            tensor.data_location = TensorProto.DEFAULT
            tensor.raw_data = b""
            continue
        if not is_external and len(tensor.raw_data) < INLINE_BYTES:
            continue
        if is_external:
            info = ExternalDataInfo(tensor)
            length = info.length or tensor_bytes(tensor)
            source = (info.location, info.offset or 0, length)
            if source not in written:
                written[source] = _align(sink)
                with open(Path(base_dir or ".") / info.location, "rb") as origin:
                    origin.seek(info.offset or 0)
                    _copy_range(origin, sink, length)
            offset = written[source]
        else:
            length, offset = len(tensor.raw_data), _align(sink)
            sink.write(tensor.raw_data)
            tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)


def _align(sink: BinaryIO) -> int:
    """Fills up to the next aligned position; returns it."""
    sink.write(b"\0" * (-sink.tell() % ALIGNMENT))
    return sink.tell()


def _copy_range(origin: BinaryIO, sink: BinaryIO, length: int) -> None:
    while length > 0:
        chunk = origin.read(min(length, 1 << 24))
        if not chunk:
            raise OSError(f"{origin.name} ends too early")
        sink.write(chunk)
        length -= len(chunk)


def _copy_file(origin: Path, sink: BinaryIO) -> None:
    with open(origin, "rb") as source:
        shutil.copyfileobj(source, sink, 1 << 24)
