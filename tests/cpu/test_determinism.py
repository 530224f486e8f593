"""The same input, flags and versions give the same bytes: in another process, folder or locale, with other threads, with a cold cache or none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from corpus import CASES
from corpus.case import parsed, weights
from end_to_end import KERNELS, config
from oplib import REPOSITORY
from tilewright import model_zoo
from tilewright.optimizer.pipeline import optimize

# Optimizes every model of the folder argv[1] into argv[2], with the cache argv[3] if there is one, and prints the digests of all files written.
PROGRAM = """
import hashlib, json, pathlib, sys
from end_to_end import config
from tilewright.optimizer.pipeline import optimize
source, output, cache = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]) if sys.argv[3] else None
digests = {}
for path in sorted(source.iterdir(), key=lambda p: hash(p.name)):
    options = {"save_as_external_data": path.stem == "residual_net", "take_all": path.stem != "squeezenet1_1"}
    files = optimize(path, config(cache_dir=cache, **options), output / path.name).files
    digests |= {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
print(json.dumps(digests))
"""
FEW_KERNELS = ("metadata.onnx", "taken_names.onnx")
MODELS = ("conv_in_if", "residual_net", "conv_functions", "taken_names", "metadata")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: cases of the corpus, and one of the zoo."""
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        onnx.save(CASES[name].build(), folder / f"{name}.onnx")
    onnx.save(model_zoo.build("squeezenet1_1"), folder / "squeezenet1_1.onnx")
    return folder


@pytest.fixture(scope="module")
def few(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of those that take few kernels."""
    folder = tmp_path_factory.mktemp("few")
    for name in FEW_KERNELS:
        (folder / name).symlink_to(models / name)
    return folder


def start(models: Path, output: Path, cache: Path | str = KERNELS, environment: Mapping[str, str] | None = None, cores: int = 0) -> subprocess.Popen[str]:
    """:data:`PROGRAM` in a process of its own, on the first ``cores`` cores if that is given."""
    output.mkdir(exist_ok=True)
    path = f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY / 'tests'}"
    command = [sys.executable, "-c", PROGRAM, str(models), str(output), str(cache)]
    if cores:
        command[2] = f"import os\nos.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])\n{PROGRAM}"
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1", **(environment or {})}
    return subprocess.Popen(command, cwd=output, env=variables, stdout=subprocess.PIPE, text=True)


def digests(process: subprocess.Popen[str]) -> dict[str, str]:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    result: dict[str, str] = json.loads(out)
    return result


@pytest.fixture(scope="module")
def expected(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = digests(start(models, tmp_path_factory.mktemp("expected") / "out"))
    assert len(found) == len(set(found.values())) == len(MODELS) + 2, "one file a model, and one of weights"
    return found


@pytest.mark.parametrize("seed", ["0", "2", "random"])
def test_hash_seed(models: Path, expected: dict[str, str], tmp_path: Path, seed: str) -> None:
    """Sets and dicts of strings iterate in another order."""
    assert digests(start(models, tmp_path / "out", environment={"PYTHONHASHSEED": seed})) == expected


def test_surroundings(models: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Another time zone, locale, home folder, debugging allocator, and threads of numeric libraries."""
    surroundings = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "LANG": "de_DE.UTF-8", "HOME": str(tmp_path), "PYTHONMALLOC": "debug", "OMP_NUM_THREADS": "7"}
    assert digests(start(models, tmp_path / "out", environment=surroundings)) == expected


def test_path_of_the_input(models: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Read through a link in a folder of another name, given relative to another working folder."""
    (tmp_path / "another folder").symlink_to(models)
    assert digests(start(Path("../another folder"), tmp_path / "out")) == expected


def test_cold_cache(few: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Everything compiled anew, by one thread; then from what that left, by several."""
    wanted = {name: expected[name] for name in FEW_KERNELS}
    assert digests(start(few, tmp_path / "out", tmp_path / "cache", cores=1)) == wanted
    assert digests(start(few, tmp_path / "out", tmp_path / "cache")) == wanted


def test_no_cache(few: Path, expected: dict[str, str], tmp_path: Path) -> None:
    assert digests(start(few, tmp_path / "out", "")) == {name: expected[name] for name in FEW_KERNELS}


def test_two_at_once(few: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Two processes fill one cold cache."""
    both = [start(few, tmp_path / f"out{i}", tmp_path / "cache") for i in range(2)]
    assert [digests(p) for p in both] == [{name: expected[name] for name in FEW_KERNELS}] * 2


@pytest.mark.parametrize("name", MODELS)
def test_again_in_one_process(models: Path, expected: dict[str, str], tmp_path: Path, name: str) -> None:
    """Nothing that an earlier run left in memory matters, nor whether the model came as a file or an object, verified or not."""
    first = optimize(models / f"{name}.onnx", config(), tmp_path / "a.onnx").files[0].read_bytes()
    optimize(onnx.load(models / f"{name}.onnx"), config(verify=False), tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx").read_bytes() == first


def test_order_of_the_cache_does_not_matter(tmp_path: Path) -> None:
    """Kernels that another model compiled first are the same kernels."""
    text = "g (float[N,3,8,8] x) => (float[N,4,8,8] y) { c = Conv<pads=[1,1,1,1]>(x, w)  y = Relu(c) }"
    model = parsed(text, {"w": weights("w", 4, 3, 3, 3)})
    optimize(CASES["metadata"].build(), config(cache_dir=tmp_path / "cache", verify=False), tmp_path / "other.onnx")
    optimize(model, config(cache_dir=tmp_path / "cache", verify=False), tmp_path / "a.onnx")
    optimize(model, config(cache_dir=tmp_path / "fresh", verify=False), tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
