"""Shape rules of recurrent layers."""

from __future__ import annotations

from ..symbols import Dim
from .registry import Call, Fact, rule


@rule("LSTM", "GRU", "RNN")
def recurrent(call: Call) -> list[Fact]:
    """``[seq, batch, in] -> [seq, directions, batch, hidden], [directions, batch, hidden]``; with ``layout`` 1 batch comes first."""
    x, r = call.need(0), call.shape(2)
    hidden: Dim = int(call.attr("hidden_size", 0)) or (r[-1] if r else call.engine.fresh())
    directions = 2 if call.attr("direction", "forward") == "bidirectional" else 1
    if call.attr("layout", 0):
        batch, length = x[0], x[1]
        last = Fact((batch, directions, hidden))
        return [Fact((batch, length, directions, hidden)), last, last]
    length, batch = x[0], x[1]
    last = Fact((directions, batch, hidden))
    return [Fact((length, directions, batch, hidden)), last, last]
