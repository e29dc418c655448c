"""The GCD methods. A file in this folder that registers a `Method` is found by its name: a new method is one file."""

import importlib
import pkgutil

from eagc_ops.training.methods.base import METHODS, Features, Loss, Method, Problem, Rows, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Features", "Loss", "Method", "Problem", "Rows", "register"]
