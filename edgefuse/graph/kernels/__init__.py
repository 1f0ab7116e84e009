"""Operator kernels of the float64 / native reference executor, one topic a module.

Each module holds `KERNELS`: operator name (ai.onnx) -> function of a `Call`. A kernel computes in the dtype
of its inputs, so the same code serves both precisions. `load_kernels` lists this folder: a new operator is
one entry in one module.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgefuse.graph.kernels.call import Kernel

__all__ = ["load_kernels"]


@lru_cache(maxsize=1)
def load_kernels() -> Mapping[str, Kernel]:
    """Return every kernel of this folder by operator name (domain ai.onnx).

    Raises InternalError when two modules claim one operator.
    """
    from importlib import import_module
    from pkgutil import iter_modules

    from edgefuse.errors import InternalError

    kernels: dict[str, Kernel] = {}
    for module in sorted(iter_modules(__path__), key=lambda m: m.name):
        found: dict[str, Kernel] = getattr(import_module(f"{__name__}.{module.name}"), "KERNELS", {})
        if twice := kernels.keys() & found.keys():
            raise InternalError(f"kernels of {sorted(twice)} are defined twice (again in {module.name}.py)")
        kernels.update(found)
    return MappingProxyType(kernels)
