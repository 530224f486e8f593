"""Weight layouts: what the kernels read, packed here, unpacked by the function bodies with standard ops.

====== ============================================== =====================================================
layout shape                                          used by
====== ============================================== =====================================================
ohwi   [Cout, kh, kw, Cin / groups, padded]           conv_igemm (padded to the vector width), conv_direct
hwo    [kh, kw, Cout padded to the vector width]      conv_depthwise
nk     [columns, depth]                               conv_igemm, of a matrix product (the transposed weights of a MatMul)
====== ============================================== =====================================================
"""

from __future__ import annotations

import numpy as np


def pack(weights: np.ndarray, layout: str, channels: int) -> np.ndarray:
    """ONNX convolution weights [Cout, Cin / groups, (kh,) kw] in ``layout``; its last axis is zero-padded to ``channels``."""
    oihw = weights[:, :, None, :] if weights.ndim == 3 else weights
    packed = oihw.transpose(0, 2, 3, 1) if layout == "ohwi" else oihw[:, 0].transpose(1, 2, 0)
    missing = channels - packed.shape[-1]
    if missing:
        packed = np.concatenate([packed, np.zeros((*packed.shape[:-1], missing), packed.dtype)], axis=-1)
    return np.ascontiguousarray(packed)


def unpack(packed: np.ndarray, layout: str, channels: int, rank: int) -> np.ndarray:
    """The inverse of :func:`pack`: ONNX weights of ``rank`` dims from the first ``channels`` of the last axis."""
    cut = packed[..., :channels]
    oihw = cut.transpose(0, 3, 1, 2) if layout == "ohwi" else cut.transpose(2, 0, 1)[:, None]
    return oihw[:, :, 0] if rank == 3 else oihw
