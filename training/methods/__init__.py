"""The GCD methods. A new method is one file in this folder that registers a `Method`."""

import importlib
import pkgutil

from eagc_ops.training.data.rows import Rows
from eagc_ops.training.methods.registry import METHODS, register
from eagc_ops.training.models.features import StudentFeatures
from eagc_ops.training.models.method import Loss, Method, Problem

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Loss", "Method", "Problem", "Rows", "StudentFeatures", "register"]
