"""The rooms of the package and the direction of their imports: a room knows only the rooms below it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Lowest first. A room is a folder or a file of the repository, named as it is imported.
TRAINING = (
    "progress",
    "scores",
    "config",
    "data",
    "models",
    "methods",
    "engine",
    "analysis",
    "runs",
    "report",
    "discovery",
    "prediction",
    "paper",
    "studies",
    "commands",
)
ROOMS = (
    "eagc_ops.kernels",
    "eagc_ops",
    *(f"eagc_ops.training.{room}" for room in TRAINING),
    "eagc_ops.bench",
)
# The command line imports upper rooms, but lazily and only to hand over.
DISPATCH = {"eagc_ops.cli"}


def modules() -> Iterator[tuple[str, Path]]:
    for folder, name in (("kernels", "eagc_ops.kernels"), ("eagc_ops", "eagc_ops")):
        yield from _modules_of(ROOT / folder, name)
    for folder in ("training", "bench"):
        yield from _modules_of(ROOT / folder, f"eagc_ops.{folder}")


def _modules_of(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        yield ".".join((name, *(part for part in parts if part != "__init__"))), file


MODULES = dict(modules())


def imported(module: str, file: Path) -> set[str]:
    """Full names of the package's modules and members that a file imports anywhere, in functions too."""
    names: set[str] = set()
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names |= {f"{source}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "eagc_ops"}


def room_of(name: str) -> str | None:
    """The room that a module belongs to; None for the package `eagc_ops.training` itself."""
    rooms = [room for room in ROOMS if name == room or name.startswith(f"{room}.")]
    room = max(rooms, key=len)
    return None if room == "eagc_ops" and name.startswith("eagc_ops.training") else room


@pytest.mark.parametrize("module", sorted(MODULES.keys() - DISPATCH))
def test_imports_point_downwards(module):
    here = room_of(module)
    for name in imported(module, MODULES[module]):
        there = room_of(name)
        if here is None or there is None or here == there:
            continue
        assert ROOMS.index(there) < ROOMS.index(here), f"{module} imports {name}, which is in a room above it"


def test_no_module_imports_itself_through_others():
    """A cycle inside a room: imports at the top of files, so that late imports are no way around it."""
    tops = {module: _top_level_modules(module) for module in MODULES}
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"import cycle: {' -> '.join((*path[path.index(module) :], module))}"
        if module not in done:
            for other in tops[module]:
                walk(other, (*path, module))
            done.add(module)

    for module in tops:
        walk(module, ())


def _top_level_modules(module: str) -> set[str]:
    names = imported(module, MODULES[module])
    found = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    # A package's __init__ gathers the names of its files, which are free to import one another.
    packages = {name for name in found if MODULES.get(name, Path()).name == "__init__.py"}
    return (found & MODULES.keys()) - packages - {module}


def test_every_room_has_files():
    """The test sees what it judges: each room of the list exists."""
    assert {room_of(module) for module in MODULES} - {None} == set(ROOMS)
