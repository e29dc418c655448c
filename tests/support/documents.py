"""The Markdown pages of the project, and the fenced blocks in them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
}


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page, also those inside list items and quotations."""
    fenced = re.findall(rf"^([> ]*)```{language}\n(.*?)^\1```$", PAGES[page], re.MULTILINE | re.DOTALL)
    return ["\n".join(line[len(prefix) :] for line in body.splitlines()) for prefix, body in fenced]


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if blocks(page, language)]
