"""Rewrites an ONNX model so that conv regions run as fused CUDA kernels."""
