"""The notebooks of examples/: their cells, run as one program, and what the cells print.

python notebooks.py FILE      # in an empty folder: writes what the cells print and show into the notebook
"""

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

Outputs = list[dict[str, Any]]


def run(file: Path) -> list[tuple[dict[str, Any], Outputs]]:
    """Every code cell with the outputs that it has now, in a common namespace as in a notebook."""
    namespace = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    return [(cell, _outputs("".join(cell["source"]), namespace, i + 1)) for i, cell in enumerate(cells)]


def _outputs(source: str, namespace: dict[str, Any], number: int) -> Outputs:
    tree, shown = ast.parse(source), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    text = printed.getvalue().splitlines(keepends=True)
    outputs: Outputs = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    if shown is not None:  # a picture
        png = io.BytesIO()
        shown.save(png, "PNG", optimize=True)
        data = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": ["<a picture>"]}
        result = {"execution_count": number, "metadata": {}, "output_type": "execute_result"}
        outputs.append({"data": data, **result})
    return outputs


def write(file: Path) -> None:
    """Keep in the notebook what its cells print and show now."""
    notebook, ran = json.loads(file.read_text()), iter(run(file))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = next(ran)[1]
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
