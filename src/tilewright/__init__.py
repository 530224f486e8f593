"""Tilewright: an ONNX graph-to-graph optimizer for NVIDIA GPUs.

The folders of the repository are its sub-packages: ``tilewright.optimizer`` rewrites models,
``tilewright.custom_ops`` loads the op library into ONNX Runtime, ``tilewright.kernels_ptx`` holds the CUDA templates
and ``tilewright.model_zoo`` builds benchmark models.
"""

__version__ = "0.1.0"
