"""ViT-B/16, BERT-base and GPT-2 small, each with the attention spelling of its PyTorch original.

Reshapes carry 0 and -1 only where sizes vary, so batch and sequence may be symbolic. Queries and keys are scaled so that attention scores have a standard
deviation near 2: attention that picks a few tokens, not a plain average.
"""

from __future__ import annotations

import math

import numpy as np

from .builder import Array, Dim, ZooError
from .layers import Network
from .samples import Value

_WIDTH = 768
_HEADS = 12
_HEAD = _WIDTH // _HEADS
_LAYERS = 12
_BRANCH = 0.5  # standard deviation of what a residual branch adds
_SHARPNESS = math.sqrt(2)  # standard deviation of queries and keys
_MIX = 0.3  # share of the variance of the values that is left after attention averages them

BERT_VOCABULARY, BERT_POSITIONS = 30522, 512
GPT2_VOCABULARY, GPT2_POSITIONS = 50257, 1024


def vit_b_16(net: Network) -> Value:
    """ViT-B/16 (Dosovitskiy et al., 2020), with the parameters of torchvision's.

    Queries, keys and values come from one matrix, taken apart by Gather.

    Raises:
        ZooError: height or width is symbolic or no multiple of 16; the position table has one row for each patch.
    """
    height, width = net.dims.height, net.dims.width
    if isinstance(height, str) or isinstance(width, str) or height % 16 or width % 16:
        raise ZooError(f"vit_b_16 needs static sides that are multiples of 16, not {height}x{width}")
    patches = net.conv(net.image(), _WIDTH, 16, stride=16, bias=0.0, name="conv_proj")
    tokens = net.op("Transpose", net.op("Reshape", patches.name, net.ints(0, _WIDTH, -1)), perm=[0, 2, 1])
    token = net.state("class_token", net.draw("class_token", (1, 1, _WIDTH), 0.3))
    count = height // 16 * (width // 16) + 1
    tokens = net.op("Concat", net.op("Expand", token, _batch_shape(net, patches.name)), tokens, axis=1)
    with net.scope("encoder"):
        table = net.draw("pos_embedding", (1, count, _WIDTH), 0.3)
        x = _plain(net, net.op("Add", tokens, net.state("pos_embedding", table)))
        for layer in range(_LAYERS):
            with net.scope(f"layers.encoder_layer_{layer}"):
                y = net.layer_norm(x, name="ln_1", eps=1e-6)
                with net.scope("self_attention"):
                    x = net.add(x, _attention_gathered(net, y))
                y = net.layer_norm(x, name="ln_2", eps=1e-6)
                y = net.act(net.linear(y, 4 * _WIDTH, name="mlp.0"), "gelu")
                x = net.add(x, net.linear(y, _WIDTH, name="mlp.3", gain=_BRANCH))
        x = net.layer_norm(x, name="ln", eps=1e-6)
    first = net.op("Gather", x.name, net.const(0, np.int64), axis=1)
    return net.gemm(Value(first, x.samples), 1000, name="heads.head")


def bert_base(net: Network) -> tuple[Value, Value]:
    """BERT-base uncased (Devlin et al., 2018) with pooler: last hidden state and pooled output.

    Queries, keys and values come from layers of their own; the mask is added to the scores.

    Raises:
        ZooError: a static sequence is longer than the position table.
    """
    sequence = _sequence(net, "bert_base", BERT_POSITIONS)
    ids, mask, types = (net.input(n, (net.dims.batch, sequence), np.int64) for n in ("input_ids", "attention_mask", "token_type_ids"))
    blocked = net.op("Unsqueeze", net.op("Unsqueeze", mask, net.ints(1)), net.ints(2))
    blocked = net.op("Sub", net.const(1.0), net.op("Cast", blocked, to=net.elem))
    bias = net.op("Mul", blocked, net.const(np.finfo(net.dtype).min))
    with net.scope("embeddings"):
        words = _embedding(net, "word_embeddings", BERT_VOCABULARY, 0.1, ids)
        kinds = _embedding(net, "token_type_embeddings", 2, 0.05, types)
        places = _embedding(net, "position_embeddings", BERT_POSITIONS, 0.05, _positions(net, ids))
        x = net.layer_norm(_plain(net, net.op("Add", net.op("Add", words, kinds), places)), name="LayerNorm", eps=1e-12)
    for layer in range(_LAYERS):
        with net.scope(f"encoder.layer.{layer}"):
            with net.scope("attention"):
                y = net.add(_attention_separate(net, x, bias), x)
                x = net.layer_norm(y, name="output.LayerNorm", eps=1e-12)
            y = net.act(net.linear(x, 4 * _WIDTH, name="intermediate.dense"), "gelu")
            y = net.add(net.linear(y, _WIDTH, name="output.dense", gain=_BRANCH), x)
            x = net.layer_norm(y, name="output.LayerNorm", eps=1e-12)
    with net.scope("pooler"):
        first = Value(net.op("Gather", x.name, net.const(0, np.int64), axis=1), x.samples)
        return x, net.act(net.gemm(first, _WIDTH, name="dense"), "tanh")


def gpt2_small(net: Network) -> Value:
    """GPT-2 small (Radford et al., 2019): logits of every position.

    Queries, keys and values come from one matrix, taken apart by Split; Where makes the causal mask; GELU is the tanh form; the head is the transposed
    word table.

    Raises:
        ZooError: a static sequence is longer than the position table.
    """
    sequence = _sequence(net, "gpt2_small", GPT2_POSITIONS)
    ids = net.input("input_ids", (net.dims.batch, sequence), np.int64)
    with net.scope("transformer"):
        words = _embedding(net, "wte", GPT2_VOCABULARY, 0.1, ids)
        positions = _positions(net, ids)
        x = _plain(net, net.op("Add", words, _embedding(net, "wpe", GPT2_POSITIONS, 0.05, positions)))
        visible = _causal(net, positions)
        for layer in range(_LAYERS):
            with net.scope(f"h.{layer}"):
                y = net.layer_norm(x, name="ln_1", eps=1e-5)
                with net.scope("attn"):
                    x = net.add(_attention_split(net, y, visible), x)
                y = net.layer_norm(x, name="ln_2", eps=1e-5)
                y = net.act(net.linear(y, 4 * _WIDTH, name="mlp.c_fc"), "gelu_tanh")
                x = net.add(x, net.linear(y, _WIDTH, name="mlp.c_proj", gain=_BRANCH))
        x = net.layer_norm(x, name="ln_f", eps=1e-5)
    return _plain(net, net.op("MatMul", x.name, net.op("Transpose", "transformer.wte.weight", perm=[1, 0])))


# Attention, [batch, sequence, width] -> the same, output projection included


def _attention_gathered(net: Network, x: Value) -> Value:
    packed = _packed(net, x, "in_proj")
    packed = net.op("Transpose", net.op("Reshape", packed, net.ints(0, 0, 3, _HEADS, _HEAD)), perm=[2, 0, 3, 1, 4])
    query, key, value = (net.op("Gather", packed, net.const(i, np.int64), axis=0) for i in range(3))
    query = net.op("Mul", query, net.const(1 / math.sqrt(_HEAD)))
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
    return _mixed(net, scores, value, "out_proj")


def _attention_separate(net: Network, x: Value, bias: str) -> Value:
    with net.scope("self"):
        query, key = (_heads(net, net.linear(x, _WIDTH, name=n, gain=_SHARPNESS).name) for n in ("query", "key"))
        value = _heads(net, net.linear(x, _WIDTH, name="value").name)
        scores = net.op("Div", net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2])), net.const(math.sqrt(_HEAD)))
        scores = net.op("Add", scores, bias)
    return _mixed(net, scores, value, "output.dense")


def _attention_split(net: Network, x: Value, visible: str) -> Value:
    query, key, value = (_heads(net, t) for t in net.op_n("Split", 3, _packed(net, x, "c_attn"), net.ints(_WIDTH, _WIDTH, _WIDTH), axis=2))
    scores = net.op("Div", net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2])), net.const(math.sqrt(_HEAD)))
    scores = net.op("Where", visible, scores, net.const(np.finfo(net.dtype).min))
    return _mixed(net, scores, value, "c_proj")


def _packed(net: Network, x: Value, name: str) -> str:
    """One linear layer for queries, keys and values; the first two are sharper."""
    with net.scope(name):
        weight = net.draw("weight", (_WIDTH, 3 * _WIDTH), 1 / math.sqrt(_WIDTH))
        weight[:, : 2 * _WIDTH] *= np.float32(_SHARPNESS)
        product = net.op("MatMul", x.name, net.state("weight", weight))
        return net.op("Add", net.state("bias", net.draw("bias", (3 * _WIDTH,), 0.1)), product)


def _heads(net: Network, x: str) -> str:
    return net.op("Transpose", net.op("Reshape", x, net.ints(0, 0, _HEADS, _HEAD)), perm=[0, 2, 1, 3])


def _mixed(net: Network, scores: str, value: str, name: str) -> Value:
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
    mixed = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(0, 0, _WIDTH))
    return net.linear(net.normal(mixed, np.zeros(_WIDTH), np.full(_WIDTH, _MIX)), _WIDTH, name=name, gain=_BRANCH)


# Embeddings, positions, masks


def _plain(net: Network, name: str) -> Value:
    """A tensor whose samples do not matter, because a layer norm follows, or nothing."""
    return net.normal(name, np.zeros(_WIDTH), np.ones(_WIDTH))


def _embedding(net: Network, name: str, rows: int, std: float, indices: str) -> str:
    with net.scope(name):
        return net.op("Gather", net.state("weight", net.draw("weight", (rows, _WIDTH), std)), indices, axis=0)


def _sequence(net: Network, model: str, limit: int) -> Dim:
    sequence = net.dims.sequence
    if isinstance(sequence, int) and not 0 < sequence <= limit:
        raise ZooError(f"{model} has positions for sequences of 1 to {limit} tokens, not {sequence}")
    return sequence


def _positions(net: Network, ids: str) -> str:
    """Positions ``[1, sequence]``: a literal where the sequence is static, else a Range over the shape of ``ids``."""
    if isinstance(net.dims.sequence, int):
        return net.const(np.arange(net.dims.sequence)[None], np.int64)
    length = net.op("Gather", net.op("Shape", ids), net.const(1, np.int64), axis=0)
    return net.op("Unsqueeze", net.op("Range", net.const(0, np.int64), length, net.const(1, np.int64)), net.ints(0))


def _causal(net: Network, positions: str) -> str:
    """Mask ``[1, 1, sequence, sequence]``, true where the key is not after the query."""
    if isinstance(net.dims.sequence, int):
        mask: Array = np.tri(net.dims.sequence, dtype=np.bool_)
        return net.const(mask[None, None], np.bool_)
    keys, queries = (net.op("Unsqueeze", positions, net.ints(*axes)) for axes in ((0, 1), (0, 3)))
    return net.op("LessOrEqual", keys, queries)


def _batch_shape(net: Network, image: str) -> str:
    """The shape ``[batch, 1, width]``, a literal where the batch is static."""
    if isinstance(net.dims.batch, int):
        return net.ints(net.dims.batch, 1, _WIDTH)
    batch = net.op("Gather", net.op("Shape", image), net.const(0, np.int64), axis=0)
    return net.op("Concat", net.op("Unsqueeze", batch, net.ints(0)), net.ints(1), net.ints(_WIDTH), axis=0)
