"""Writing: the output appears whole or not at all, what was there before stays or is replaced, and the input's files are never touched."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from corpus import CASES
from corpus.case import weights
from corpus.headers import conv_relu
from end_to_end import KERNELS, answers, assert_same, config, optimized
from oplib import REPOSITORY
from tilewright.optimizer.emit.save import ALIGNMENT, INLINE_BYTES
from tilewright.optimizer.errors import ModelError
from tilewright.optimizer.graph.load import all_tensors
from tilewright.optimizer.pipeline import optimize

IMAGE = {"x": weights("image", 2, 3, 8, 8)}


def files(folder: Path) -> dict[str, bytes]:
    """Everything in ``folder``, hidden files included."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def write(folder: Path, model: ModelProto | None = None, **options: Any) -> Path:
    """Optimizes the smallest model to ``fast.onnx`` in ``folder``, unverified."""
    output = folder / "fast.onnx"
    optimize(model or conv_relu(), config(verify=False, **options), output)
    return output


def external_tensors(path: Path) -> list[tuple[TensorProto, ExternalDataInfo]]:
    tensors = all_tensors(onnx.load(path, load_external_data=False))
    return [(t, ExternalDataInfo(t)) for t in tensors if t.data_location == TensorProto.EXTERNAL]


# ---- whole or not at all


def full_disk(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def nth(count: int, fault: Callable[..., Any], right: Callable[..., Any]) -> Callable[..., Any]:
    """``right``, whose call number ``count`` is ``fault``."""
    calls = iter(range(1, 1000))
    return lambda *args, **options: (fault if next(calls) == count else right)(*args, **options)


@pytest.mark.parametrize("before", [False, True], ids=["new", "over an earlier one"])
@pytest.mark.parametrize("fault", [full_disk, interrupt])
@pytest.mark.parametrize(("call", "count"), [("fsync", 1), ("fsync", 2), ("replace", 1), ("replace", 2)])
def test_fault_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, count: int, fault: Callable[..., Any], before: bool) -> None:
    """The disk is full, or the user stops it, between any two steps: the folder is as it was, data file included."""
    if before:
        write(tmp_path, CASES["residual_net"].build(), save_as_external_data=True)
    there = files(tmp_path)
    assert len(there) == 2 * before
    with monkeypatch.context() as patch:
        patch.setattr(os, call, nth(count, fault, getattr(os, call)))
        with pytest.raises(ModelError, match=r"fast\.onnx: cannot be written \(No space left") if fault is full_disk else pytest.raises(KeyboardInterrupt):
            write(tmp_path, save_as_external_data=True)
    assert files(tmp_path) == there and len(list(tmp_path.iterdir())) == len(there)


def test_fault_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, CASES["residual_net"].build(), save_as_external_data=True)
    there = files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full_disk)
        patch.setattr(os, "replace", nth(3, full_disk, os.replace))
        with pytest.raises(ModelError):
            write(tmp_path, save_as_external_data=True)
    assert files(tmp_path) == there


def test_crash_of_the_process(tmp_path: Path) -> None:
    """Killed before the rename: under the output's name is what was there before, and no part of the new file."""
    output = write(tmp_path, CASES["residual_net"].build())
    there = output.read_bytes()
    code = f"""
import os
from pathlib import Path
from corpus.headers import conv_relu
from end_to_end import config
from tilewright.optimizer.pipeline import optimize
os.replace = lambda *_: os._exit(9)
optimize(conv_relu(), config(verify=False, cache_dir=Path({str(KERNELS)!r})), {str(output)!r})
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY / 'tests'}"}, check=False)
    assert done.returncode == 9 and output.read_bytes() == there
    assert all(p == output or (p.name.startswith(".fast.onnx.") and p.suffix == ".tmp") for p in tmp_path.iterdir())


def test_synced_before_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte is on disk before the first rename, the data file is in place before the model, and the folder is synced last."""
    steps: list[tuple[str, str]] = []
    right_sync, right_replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        steps.append(("fsync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        right_sync(handle)

    def replace(source: Path, target: Path) -> None:
        steps.append(("replace", target.name))
        right_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write(tmp_path, save_as_external_data=True, cache_dir=None)
    names = ["fast.onnx.data", "fast.onnx"]
    assert steps == [*(("fsync", n) for n in names), *(("replace", n) for n in names), ("fsync", tmp_path.name)]


def test_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems refuse it: the output is there, so that is no fault."""
    right = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: full_disk() if stat.S_ISDIR(os.fstat(handle).st_mode) else right(handle))
    assert_same(answers(conv_relu(), IMAGE), answers(write(tmp_path), IMAGE))


def test_several_at_once(tmp_path: Path) -> None:
    """Four writers of one output: what is there in the end is the whole work of one of them."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write(tmp_path), range(8)))
    assert_same(answers(conv_relu(), IMAGE), answers(tmp_path / "fast.onnx", IMAGE))
    assert list(files(tmp_path)) == ["fast.onnx"]


# ---- what lies under the output's name


def test_over_an_earlier_output(tmp_path: Path) -> None:
    """It is replaced, not written into: whoever has the old file open, or linked, keeps it whole."""
    output = tmp_path / "fast.onnx"
    output.write_bytes(b"old" * 100_000)
    os.link(output, tmp_path / "linked")
    with open(output, "rb") as reader:
        reader.read(3)
        write(tmp_path)
        assert reader.read() == b"old" * 99_999
    assert (tmp_path / "linked").read_bytes() == b"old" * 100_000
    onnx.checker.check_model(output)


def test_data_file_is_not_appended_to(tmp_path: Path) -> None:
    output = write(tmp_path, save_as_external_data=True)
    first = files(tmp_path)
    (tmp_path / "fast.onnx.data").write_bytes(b"rest of something" * 100_000)
    write(tmp_path, save_as_external_data=True)
    assert files(tmp_path) == first
    assert_same(answers(conv_relu(), IMAGE), answers(output, IMAGE))


def test_symbolic_link(tmp_path: Path) -> None:
    """A link is replaced, what it points to stays; a folder that is a link is a folder."""
    (tmp_path / "precious.onnx").write_bytes(b"precious")
    (tmp_path / "fast.onnx").symlink_to(tmp_path / "precious.onnx")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path)
    assert not (tmp_path / "fast.onnx").is_symlink() and (tmp_path / "precious.onnx").read_bytes() == b"precious"
    write(tmp_path / "link")
    assert (tmp_path / "real" / "fast.onnx").read_bytes() == (tmp_path / "fast.onnx").read_bytes()


def test_special_file(tmp_path: Path) -> None:
    """A pipe, or /dev/null, is not replaced by a model."""
    os.mkfifo(tmp_path / "fast.onnx")
    with pytest.raises(ModelError, match="no regular file"):
        write(tmp_path)
    assert (tmp_path / "fast.onnx").is_fifo() and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ModelError, match="no regular file"):
        optimize(conv_relu(), config(), "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_folder_under_the_data_files_name(tmp_path: Path) -> None:
    (tmp_path / "fast.onnx.data").mkdir()
    (tmp_path / "fast.onnx.data" / "precious").write_bytes(b"precious")
    with pytest.raises(ModelError, match=r"fast\.onnx\.data is a folder"):
        write(tmp_path, save_as_external_data=True)
    assert files(tmp_path) == {"fast.onnx.data/precious": b"precious"} and len(list(tmp_path.iterdir())) == 1


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_mode(tmp_path: Path, mask: int, mode: int) -> None:
    """As any program's files: others may read what the umask lets them, weights too."""
    with umask(mask):
        write(tmp_path, save_as_external_data=True)
    assert [stat.S_IMODE(p.stat().st_mode) for p in sorted(tmp_path.iterdir())] == [mode, mode]


@pytest.mark.parametrize("name", ["n" * 250 + ".onnx", "ü b 'c'.onnx", "-o", "fast"])
def test_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As long as the file system takes, with blanks and quotes, relative to the working folder."""
    monkeypatch.chdir(tmp_path)
    result = optimize(conv_relu(), config(verify=False), name)
    assert result.files == (Path(name),) and list(files(tmp_path)) == [name]


# ---- data files


def test_layout_of_the_data_file(tmp_path: Path) -> None:
    """Aligned so that it can be mapped, nothing overlaps, no hole is larger than the alignment asks for; small and string tensors stay inside."""
    model = CASES["strings"].build()
    model.graph.initializer.extend(numpy_helper.from_array(weights(str(n), n), f"extra{n}") for n in (3, 255, 256, 5000))
    model.graph.node.append(helper.make_node("Concat", [f"extra{n}" for n in (3, 255, 256, 5000)], ["all"], axis=0))
    model.graph.output.append(helper.make_tensor_value_info("all", TensorProto.FLOAT, [5514]))
    output = write(tmp_path, model, save_as_external_data=True)
    there = external_tensors(output)
    assert {"extra256", "extra5000"} <= {t.name for t, _ in there} and not {"extra3", "extra255", "words"} & {t.name for t, _ in there}
    end = 0
    for tensor, info in there:
        assert info.location == "fast.onnx.data" and info.offset % ALIGNMENT == 0 and info.length >= INLINE_BYTES and not tensor.raw_data
        assert 0 <= info.offset - end < ALIGNMENT
        end = info.offset + info.length
    assert (tmp_path / "fast.onnx.data").stat().st_size == end
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in ("fast.onnx", "fast.onnx.data"):
        (tmp_path / file).rename(moved / file)
    feeds = CASES["strings"].feeds()
    assert_same(answers(model, feeds), answers(moved / "fast.onnx", feeds))


def test_flag_alone_is_no_rewrite(tmp_path: Path) -> None:
    """`--passes none --save-as-external-data` moves weights and changes nothing else."""
    model = CASES["residual_net"].build()
    output = write(tmp_path, model, passes=(), save_as_external_data=True)
    assert external_tensors(output) and onnx.load(output) == _without_places(model, onnx.load(output))


def _without_places(model: ModelProto, loaded: ModelProto) -> ModelProto:
    """``model`` with the mark that the onnx package leaves on tensors that it read from a file."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor, read in zip(copy.graph.initializer, loaded.graph.initializer, strict=True):
        if read.HasField("data_location"):
            tensor.data_location = read.data_location
    return copy


def test_no_flag_no_data_file(tmp_path: Path) -> None:
    write(tmp_path)
    assert list(files(tmp_path)) == ["fast.onnx"]


def test_inputs_data_file_has_the_outputs_name(tmp_path: Path) -> None:
    """Another name is taken, and the input still loads."""
    source = tmp_path / "model.onnx"
    onnx.save(CASES["residual_net"].build(), source, save_as_external_data=True, location="fast.onnx.data", size_threshold=0)
    there = files(tmp_path)
    result = optimize(source, config(), tmp_path / "fast.onnx")
    assert [f.name for f in result.files] == ["fast.onnx", "fast.onnx.tilewright.data"]
    assert {k: v for k, v in files(tmp_path).items() if k in there} == there
    feeds = {"x": weights("x", 1, 3, 32, 32)}
    assert_same(answers(source, feeds), answers(tmp_path / "fast.onnx", feeds))


def test_model_object_with_a_data_file(tmp_path: Path) -> None:
    """It does not say where it came from: one sentence, nothing written."""
    onnx.save(conv_relu(), tmp_path / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    there = files(tmp_path)
    with pytest.raises(ModelError, match=r"'w\.bin', so the model must be given as a path"):
        write(tmp_path, onnx.load(tmp_path / "model.onnx", load_external_data=False))
    assert files(tmp_path) == there


def test_optimized_again_with_data_files(tmp_path: Path) -> None:
    """An output with a data file is an input like any other; its functions and names do not clash with new ones."""
    first = write(tmp_path, save_as_external_data=True)
    there = files(tmp_path)
    model = onnx.load(first, load_external_data=False)
    model.graph.node.extend([helper.make_node("Sin", ["y"], ["c_nhwc"]), helper.make_node("Conv", ["c_nhwc", "v"], ["z"], name="conv")])
    model.graph.initializer.append(numpy_helper.from_array(weights("v", 4, 4, 3, 3), "v"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "more.onnx")
    (tmp_path / "out").mkdir()
    done = optimized(tmp_path / "more.onnx", tmp_path / "out")
    assert done.regions == 2 and len({f.name for f in done.after.functions}) == 2 and sorted(files(tmp_path / "out")) == ["fast.onnx", "fast.onnx.data"]
    assert {k: v for k, v in files(tmp_path).items() if k in there} == there
    assert_same(answers(tmp_path / "more.onnx", IMAGE), answers(done.path, IMAGE))


# ---- what a model says beside its graph


@pytest.mark.parametrize("options", [
    {"passes": ("canonicalize",)}, {"precision": "fp16"}, {"precision": "fp16", "keep_io_types": False}, {"save_as_external_data": True},
    {"overwrite_input_shapes": {"x": (1, 3, 8, 8)}}, {"freeze_initializers": True}, {"targets": config().targets, "take_all": False},
], ids=str)  # fmt: skip
def test_texts_survive_every_option(tmp_path: Path, options: dict[str, Any]) -> None:
    """Metadata, doc strings, denotations and annotations."""
    before = CASES["metadata"].build()
    annotation = CASES["annotations"].build()
    before.graph.quantization_annotation.extend(annotation.graph.quantization_annotation)
    before.graph.initializer.extend(t for t in annotation.graph.initializer if t.name in ("scale", "zero"))
    after = onnx.load(write(tmp_path, before, **options))
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string", "metadata_props"):
        assert getattr(after, name) == getattr(before, name), name
    for name in ("name", "doc_string", "metadata_props", "quantization_annotation"):
        assert getattr(after.graph, name) == getattr(before.graph, name), name
    for old, new in zip([*before.graph.input, *before.graph.output], [*after.graph.input, *after.graph.output], strict=True):
        assert (old.name, old.doc_string, old.metadata_props) == (new.name, new.doc_string, new.metadata_props)
        assert old.type.denotation == new.type.denotation
        dims = [[d.denotation for d in i.type.tensor_type.shape.dim] for i in (old, new)]
        assert dims[0] == dims[1]
    np.testing.assert_array_equal(*(numpy_helper.to_array(next(t for t in m.graph.initializer if t.name == "scale")) for m in (before, after)))
