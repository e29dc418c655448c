"""MkDocs hooks, which add pages and pictures from elsewhere in the repository to the site.

The Markdown files link to them by their path in the repository, so that the links also work without a build.
On the site, a picture is in pictures/, each file of PAGES is a page, and examples.md shows every script of
examples/.
"""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PICTURES = (".github/operator.svg", "bench/results/roofline.svg", "bench/results/overhead.svg")
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
    """One section per script: its name and its source."""
    parts = [
        "# Examples\n\nComplete scripts to copy. Each runs on a CPU in seconds, needs only the installed "
        "package (`pip install '.[examples]'` for Lightning, Accelerate and timm) and is run by the tests."
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts.append(f"## {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```")
    return "\n\n".join(parts) + "\n"
