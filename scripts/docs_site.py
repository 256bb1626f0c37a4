"""Hooks of mkdocs.yml, and llms.txt, the pages of its nav with one sentence each.

`python scripts/docs_site.py` writes it.
README.md and CHANGELOG.md are pages of the site, with their links rewritten. Links to source files, which the site does
not have, become text. Anchors are GitHub's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "mkdocs.yml"
LLMS = ROOT / "llms.txt"
OUTSIDE = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the site that are files of the repository's root."""
SHORT = 60
"""Length, in characters, below which a first sentence is followed by the second."""
_SOURCE_LINK = re.compile(r"\[([^\]]+)\]\(\.\./(?!README\.md|CHANGELOG\.md)[^)]*\)")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_END_OF_SENTENCE = re.compile(r"(?<=[.:])\s+(?=[A-Z`\[(])")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")
_FENCE = re.compile(r"^ *(`{3,}|~{3,})")


# ---------------------------------------------------------------- pages


def page_path(name: str) -> str:
    """Returns the path, from the repository's root, of a page that the nav names."""
    return OUTSIDE.get(name, f"docs/{name}")


def nav_sections() -> Iterator[tuple[str, list[str]]]:
    """Yields the sections of the nav with their pages, in order."""
    for section in yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]:
        [(title, entries)] = section.items()
        yield title, [*nav_pages(entries)]


def nav_pages(entries: list[Any]) -> Iterator[str]:
    """Yields the pages of a section, in order: those of its groups, and those with a title, too."""
    for entry in entries:
        for page in entry.values() if isinstance(entry, dict) else [entry]:
            yield from nav_pages(page) if isinstance(page, list) else [page]


def prose(text: str) -> str:
    """Returns a page without the content of its fenced blocks."""
    kept, fence = [], ""
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if opened and not fence:
            fence = opened[1]
        elif opened and line.strip() == fence:
            fence = ""
        elif not fence:
            kept.append(line)
    return "\n".join(kept)


def anchor(heading: str, separator: str = "-") -> str:
    """Returns GitHub's anchor of a heading; the signature is that of Markdown's `slugify`."""
    return _NOT_IN_ANCHORS.sub("", heading.strip().lower()).replace(" ", separator)


def anchors(text: str) -> set[str]:
    """Returns the anchors of all headings of a page."""
    headings = (re.match(r"#{1,6} +(.+)", line) for line in prose(text).splitlines())
    return {anchor(_LINK.sub(r"\1", heading[1])) for heading in headings if heading}


# ---------------------------------------------------------------- llms.txt


def title_and_sentence(path: Path) -> tuple[str, str]:
    """Returns the heading of a page and the first sentence below it, or two short ones, without links."""
    paragraphs = [" ".join(part.split()) for part in prose(path.read_text(encoding="utf-8")).split("\n\n")]
    title = next(part for part in paragraphs if part.startswith("# "))
    first = next(part for part in paragraphs[paragraphs.index(title) + 1 :] if part and part[0] not in "#|<-")
    sentences = _END_OF_SENTENCE.split(_LINK.sub(r"\1", first.replace("**", "")))
    count = 1 if len(sentences[0]) >= SHORT else 2
    return title.removeprefix("# "), " ".join(sentences[:count]).rstrip(":.") + "."


def llms_text() -> str:
    """Returns the text of llms.txt."""
    name, summary = title_and_sentence(ROOT / "README.md")
    lines = [f"# {name}", "", f"> {summary}"]
    for section, pages in nav_sections():
        lines += ["", f"## {section}", ""]
        for page in pages:
            title, sentence = title_and_sentence(ROOT / page_path(page))
            lines.append(f"- [{title}]({page_path(page)}): {sentence}")
    return "\n".join([*lines, ""])


# ---------------------------------------------------------------- hooks of mkdocs


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get GitHub's anchors, so that links work in both places."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and llms.txt with the site's paths."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - `python scripts/docs_site.py` does without mkdocs

    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=without_folder((ROOT / source).read_text(encoding="utf-8"))))
    text = llms_text()
    for _, pages in nav_sections():
        for page in pages:
            text = text.replace(f"]({page_path(page)}):", f"]({files.src_uris[page].url}):")
    files.append(File.generated(config, "llms.txt", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite links out of docs/."""
    for page, source in OUTSIDE.items():
        markdown = markdown.replace(f"](../{source}", f"]({page}")
    return _SOURCE_LINK.sub(r"\1", markdown)


def without_folder(text: str) -> str:
    """Returns a file of the repository's root with its links as those of a page of docs/."""
    return text.replace("](docs/", "](")


if __name__ == "__main__":
    LLMS.write_text(llms_text(), encoding="utf-8")
