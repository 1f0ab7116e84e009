"""The robot's runtime: load an artifact and call it. Python 3.6; needs numpy and the payload's runtime."""

from edgefuse.runtime.engine import Engine
from edgefuse.runtime.model import Model, load
from edgefuse.runtime.tensors import TensorInfo

__all__ = ["Engine", "Model", "TensorInfo", "load"]
