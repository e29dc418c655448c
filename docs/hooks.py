"""MkDocs hooks, which add pages and pictures from elsewhere in the repository to the site.

The Markdown files link to them by their path in the repository, so that the links also work without a build.
On the site, a picture is in pictures/, each file of PAGES is a page, and examples.md shows every notebook and
script of examples/.
"""

import json
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PICTURES = (
    *(".github/operator.svg", ".github/discovered.webp"),
    *(f"bench/results/{name}.svg" for name in ("cost", "overhead", "roofline")),
)
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PLACES = {  # path in the repository, relative to docs/ -> path on the site
    **{f"../{path}": f"pictures/{Path(path).name}" for path in PICTURES},
    **{f"../{path}": page for path, page in PAGES.items()},
    "../examples": "examples.md",
}


def on_files(files, config):
    for path in PICTURES:
        picture = File.generated(config, PLACES[f"../{path}"], abs_src_path=str(ROOT / path))
        files.append(picture)
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    files.append(File.generated(config, "examples.md", content=_examples()))
    return files


def on_page_markdown(markdown, **_):
    for place, target in PLACES.items():
        markdown = markdown.replace(f"]({place})", f"]({target})")
    return re.sub(r"\]\(docs/([a-z_]+\.md)", r"](\1", markdown)  # links in the pages from the root


def _examples() -> str:
    """One section per notebook and script: its name, and its text or its source."""
    parts = [
        "# Examples\n\nComplete scripts to copy. Each runs on a CPU in seconds, needs only the installed "
        "package (`pip install '.[examples]'` for Lightning, Accelerate and timm, `pip install transformers` "
        "for Hugging Face's Trainer) and is run by the tests."
    ]
    parts += [_notebook(path) for path in sorted((ROOT / "examples").glob("*.ipynb"))]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts.append(f"## {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```")
    return "\n\n".join(parts) + "\n"


def _notebook(path: Path) -> str:
    """The cells of a notebook and what they print, one heading lower; links are those of the repository."""
    parts = [f"## {path.name}"]
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = re.sub(r"\]\(\.\./docs/", "](", source)
            parts.append(
                re.sub(r"\[([^]]*)\]\([a-z_]+\.py\)", r"\1", re.sub(r"^#", "###", source, flags=re.MULTILINE))
            )
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text'])}```")
            else:
                parts.append(f"![A picture](data:image/png;base64,{output['data']['image/png']})")
    return "\n\n".join(parts)
