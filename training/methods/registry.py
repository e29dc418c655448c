"""The methods by name. A method has heads, a loss on z (after EAGC), and a prediction.

A method is one file in this folder:

    @register("mine")
    class Mine(Method):
        Config = MyConfig                        # a subclass of Config with the method's own settings
        def __init__(self, config, problem): ... # heads; `super().__init__` makes the optional MLP head
        def forward(self, z): ...                # heads: (n, D) -> tuple of (n, ...) tensors
        def loss(self, outputs, rows): ...       # Loss(supervised, unsupervised, terms) of the global batch
        def predict(self, features): ...         # class index of every unlabelled image
        def scores(self, z, fitted): ...         # (n, K) for any images, for `eagc predict` and `eagc export`
"""

from __future__ import annotations

from collections.abc import Callable

from eagc_ops.training.config import register_config
from eagc_ops.training.models.method import Method

METHODS: dict[str, type[Method]] = {}


def register(name: str) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: makes a method available as `name` in configurations and on the command line."""

    def add(method: type[Method]) -> type[Method]:
        if name in METHODS and METHODS[name] is not method:
            raise ValueError(
                f"register({name!r}): {METHODS[name].__qualname__} has this name already; "
                "choose a different name"
            )
        register_config(name, method.Config)
        METHODS[name] = method
        return method

    return add
