"""The GCD methods. A new method is one file in this folder that registers a `Method`."""

import importlib
import pkgutil

from eagc_ops.training.data.rows import Rows
from eagc_ops.training.methods.base import METHODS, Features, Method, Problem, register
from eagc_ops.training.models.method import Loss

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Features", "Loss", "Method", "Problem", "Rows", "register"]
