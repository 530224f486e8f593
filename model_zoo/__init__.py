"""Benchmark models as ONNX graphs with seeded random weights, built without PyTorch.

Example:
    >>> model = model_zoo.build("resnet50", batch="N")
    >>> inputs = model_zoo.example_inputs(model, seed=1, dims={"N": 4})
"""

from .builder import ZooError, parameter_count
from .inputs import example_inputs
from .registry import MODELS, ModelSpec, build, names

__all__ = ["MODELS", "ModelSpec", "ZooError", "build", "example_inputs", "names", "parameter_count"]
