"""The rooms of the package and the direction of their imports: a room knows only the rooms below it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "eagc_ops.kernels": "kernels",
    "eagc_ops.training": "training",
    "eagc_ops.discovery": "discovery",
    "eagc_ops.evidence": "evidence",
    "eagc_ops.bench": "bench",
    "eagc_ops": "eagc_ops",
}
TRAINING = ("config", "data", "models", "methods", "engine", "analysis", "runs", "report", "commands")
# Lowest first. A house, a room of it or a file, named as it is imported; what has no level of its own is on
# that of its house. `discovery` and `evidence` stand beside one another: neither imports the other.
LEVELS = (
    ("eagc_ops.kernels",),
    ("eagc_ops",),
    ("eagc_ops.app",),
    ("eagc_ops.selftest",),
    *((f"eagc_ops.training.{room}",) for room in TRAINING),
    ("eagc_ops.discovery", "eagc_ops.evidence"),
    ("eagc_ops.bench",),
)
ROOMS = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# The command line imports upper rooms, but lazily and only to hand over.
DISPATCH = {"eagc_ops.app.cli"}


def modules() -> Iterator[tuple[str, Path]]:
    for name, folder in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join((name, *(part for part in parts if part != "__init__"))), file


MODULES = dict(modules())


def imported(module: str, file: Path, types_too: bool = True) -> set[str]:
    """Full names of the package's modules and members that a file imports anywhere, in functions too."""
    names: set[str] = set()
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(file.read_text())
    if not types_too:
        tree.body = [node for node in tree.body if not _for_types_alone(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names |= {f"{source}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "eagc_ops"}


def _for_types_alone(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


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
        assert ROOMS[there] < ROOMS[here], f"{module} imports {name}, which is in a room beside or above it"


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
    names = imported(module, MODULES[module], types_too=False)  # a type may name what is made of it
    found = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    # A package's __init__ gathers the names of its files, which are free to import one another.
    packages = {name for name in found if MODULES.get(name, Path()).name == "__init__.py"}
    return (found & MODULES.keys()) - packages - {module}


def test_every_room_has_files():
    """The test sees what it judges: each room of the list exists."""
    assert {room_of(module) for module in MODULES} - {None} == set(ROOMS)


def test_the_ptx_machine_is_a_package_of_its_own():
    """It imports nothing of ours, and only tests and bench import it."""
    own = [file for name, file in MODULES.items() if not name.startswith("eagc_ops.bench")]
    assert not [file for file in own if "ptx_machine" in _imported_packages(file)]
    machine = list((ROOT / "ptx_machine").rglob("*.py"))
    assert machine and not [file for file in machine if "eagc_ops" in _imported_packages(file)]


def _imported_packages(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}
