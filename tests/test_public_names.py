"""Names that users may import are listed with their signatures, are at most 125, and are all that docs and examples
import."""

from __future__ import annotations

import ast
import runpy

from support.doc_blocks import PAGES, ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "public_names.py"))
MOST = 125
EXAMPLES = [*(ROOT / "agents").rglob("*.py"), *(ROOT / "recipes").rglob("*.py")]


def test_the_page_has_the_signatures_of_today():
    page = SCRIPT["page"]()
    assert SCRIPT["PAGE"].read_text() == page, (
        "a public name has changed: CHANGELOG.md, and `python scripts/public_names.py`"
    )
    assert 60 < sum(len(__import__(name, fromlist=["x"]).__all__) for name in SCRIPT["MODULES"]) <= MOST


def imported(text: str):
    """Names that a program imports from the product, with their module."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.partition(".")[0] in ("areal_actors", "areal_bus")
        ):
            yield from ((node.module, alias.name) for alias in node.names)


def test_docs_and_examples_import_public_names_only():
    programs = {str(path): path.read_text() for path in EXAMPLES}
    for page in PAGES:
        for number, block in enumerate(page.read_text().split("```python\n")[1:]):
            programs[f"{page.name}:{number}"] = block.partition("```")[0]
    public = {(name, member) for name in SCRIPT["MODULES"] for member in __import__(name, fromlist=["x"]).__all__}
    used = {(where, *pair) for where, text in programs.items() for pair in imported(text)}
    assert len(used) > 10
    internal = sorted(
        place for place in used if place[1:] not in public and not place[1].startswith("areal_actors.compat.areal")
    )
    assert internal == []
