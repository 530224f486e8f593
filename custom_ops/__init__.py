"""The op library that runs optimized models on a GPU, and its loader.

An optimized model is an ordinary ONNX model: without this package it runs its standard ops. To run its kernels, one line is enough::

    options = onnxruntime.SessionOptions()
    tilewright.custom_ops.register(options)

or ``tilewright.custom_ops.session("fast.onnx")`` for a session with sensible providers.
"""

from .loader import OpLibraryError, library_path, register, session, status, supported

__all__ = ["OpLibraryError", "library_path", "register", "session", "status", "supported"]
