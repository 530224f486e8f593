"""Models from packages, trained weights and all: optimized, verified, and right at two sizes, with and without the op library; then what they are for."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from end_to_end import Optimized, answers, assert_right, optimized
from real_models import MODELS, Feeds, centre, characters, file_bytes, magika_labels, orientations, picture, square, text_lines

LARGE = ("ocr_det", "ocr_rec", "nudenet", "captcha", "captcha_int8", "captcha_det", "reaction")
MAX_GROWTH = 4_000_000  # bytes: the images of the kernels, one target class


def marked(*names: str) -> list[object]:
    return [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in names]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Optimized]:
    """Models by name, each optimized once and verified on the first of its inputs."""
    made: dict[str, Optimized] = {}

    def get(name: str) -> Optimized:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            path = MODELS[name].path()
            np.savez(folder / "inputs.npz", **MODELS[name].feeds()[0])
            made[name] = optimized(path, folder, inputs=folder / "inputs.npz", require_verify=True)
        return made[name]

    return get


@pytest.mark.parametrize("name", marked(*MODELS))
def test_model(name: str, model: Callable[[str], Optimized]) -> None:
    done = model(name)
    assert done.regions >= MODELS[name].nodes and len(done.result.regions) == done.regions
    assert done.result.checks and not done.result.not_verified
    assert done.result.bytes_after < done.result.bytes_before + MAX_GROWTH
    onnx.checker.check_model(done.after, full_check=True)
    for feeds in MODELS[name].feeds():
        assert_right(done, feeds, bound=3e-5)  # weights of deep products are moved to where TF32 rounds them best


# ---- what they are for


def answer(done: Optimized, feeds: Feeds) -> np.ndarray:
    """The first output of the optimized model, as users run it."""
    return np.asarray(next(iter(answers(done.path, feeds, library=True).values())))


def test_orientation_of_a_page(model: Callable[[str], Optimized]) -> None:
    got = answer(model("orientation"), {"x": orientations(0, 90, 180, 270)})
    assert list(got.argmax(axis=1)) == [0, 3, 2, 1]


def test_lines_that_stand_on_their_head(model: Callable[[str], Optimized]) -> None:
    line = text_lines("upside down")
    for x, turned in ((line, False), (np.array(line[:, :, ::-1, ::-1]), True)):
        (upright_share, turned_share) = answer(model("ocr_cls"), {"x": x})[0]
        assert (turned_share if turned else upright_share) > 0.99


def test_pictures_are_safe(model: Callable[[str], Optimized]) -> None:
    got = answer(model("nsfw"), {"input:0": np.concatenate([centre("astronaut"), centre("chelsea")])})
    assert np.all(got[:, 0] > 0.98) and got[1, 1] < got[0, 1]


def test_types_of_files(model: Callable[[str], Optimized]) -> None:
    labels = magika_labels()
    contents = {"python": Path(onnx.__file__).read_bytes(), "elf": Path(sys.executable).read_bytes()}
    for label, format_name in (("png", "PNG"), ("jpeg", "JPEG"), ("tiff", "TIFF")):
        file = io.BytesIO()
        picture("astronaut").save(file, format_name)
        contents[label] = file.getvalue()
    got = answer(model("magika"), {"bytes": np.concatenate([file_bytes(c) for c in contents.values()])})
    assert [labels[i] for i in got.argmax(axis=1)] == list(contents) and got.max(axis=1).min() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Hello World 2024", "kernel fusion 3x3", "INVOICE No.48213", "a", "The quick brown fox jumps over the lazy dog 0123456789"])
def test_text_is_read(text: str, model: Callable[[str], Optimized]) -> None:
    """CTC: repeated classes are one character, and the blank is none."""
    done = model("ocr_rec")
    best = answer(done, {"x": text_lines(text)})[0].argmax(axis=1)
    assert "".join(characters(done.after)[c] for i, c in enumerate(best) if i == 0 or c != best[i - 1]).strip() == text


@pytest.mark.slow
@pytest.mark.parametrize("size", [320, 448])
def test_face_is_found(size: int, model: Callable[[str], Optimized]) -> None:
    """The astronaut's, class 1, where it is; none on the cat."""
    boxes = answer(model("nudenet"), {"images": np.concatenate([square("astronaut", size), square("chelsea", size)])})
    place, label = np.unravel_index(boxes[0, 4:].T.argmax(), boxes[0, 4:].T.shape)
    x, y = boxes[0, :2, place] / size * 512
    assert label == 1 and boxes[0, 4 + label, place] > 0.7 and abs(x - 222) < 20 and abs(y - 130) < 25
    assert boxes[1, 4:].max() < 0.3


@pytest.mark.slow
def test_ocr_text_is_detected_where_it_is_written(model: Callable[[str], Optimized]) -> None:
    """A line of text in the middle of a white page."""
    page = np.ones((1, 3, 160, 320), np.float32) * 2.2
    line = text_lines("Hello World")[:, :, :, :256]
    page[:, :, 64:112, 32 : 32 + line.shape[3]] = 2.2 + 2.2 * (line - 1)
    mask = answer(model("ocr_det"), {"x": page})[0, 0] > 0.3
    assert mask[80:96, 48:180].mean() > 0.5 and not mask[:48].any() and not mask[128:].any()
