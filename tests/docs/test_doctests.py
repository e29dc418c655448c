"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import eagc_ops

NEED_A_RUNNER = (
    "eagc_ops.bench.suite_",
    "eagc_ops.kernels.fused",
    "eagc_ops.kernels.launch",
    "eagc_ops.kernels.aot",
)
MODULES = [
    m.name
    for m in pkgutil.walk_packages(eagc_ops.__path__, "eagc_ops.")
    if not m.name.startswith(NEED_A_RUNNER)
]
for room in ("kernels", "training", "bench"):
    package = importlib.import_module(f"eagc_ops.{room}")
    modules = [
        m.name
        for m in pkgutil.walk_packages(package.__path__, f"eagc_ops.{room}.")
        if not m.name.startswith(NEED_A_RUNNER)
    ]
    MODULES += [f"eagc_ops.{room}", *modules]


@pytest.mark.parametrize("name", sorted(set(MODULES)))
def test_examples(name):
    failures, _ = doctest.testmod(importlib.import_module(name))
    assert failures == 0


def test_there_are_examples():
    parsed = doctest.DocTestFinder()
    tried = [
        len(test.examples) for name in set(MODULES) for test in parsed.find(importlib.import_module(name))
    ]
    assert sum(map(bool, tried)) >= 10
