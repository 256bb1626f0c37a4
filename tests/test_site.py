"""The documentation as a site: every page is in the nav, every link leads somewhere, llms.txt is current, names are
those of the code."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.browser import CHROMIUM, browser
from support.doc_blocks import PAGES, ROOT
from test_docs_figures import TABLES

SPEC = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site)

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"`([^`]+)`")
SETTING = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")
SOURCE = re.compile(r"[\w-]+(?:[./-][\w-]+)*\.py")
"""A name of a source file, whole or from some folder on."""
SOURCES = ("areal_actors", "bus", "agents", "recipes", "tests", "benchmarks", "scripts", "docs")
METRIC = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+|skipped|entropy|groups|lr")
README_BYTES = 6 * 1024
MKDOCS = ROOT / ".environments" / "docs" / "bin" / "python"


def listed() -> list[str]:
    return [page for _, pages in site.nav_sections() for page in pages]


def mkdocs() -> list[str]:
    """The command of an interpreter that has mkdocs-material; skips the test where there is none."""
    for python in (str(MKDOCS), os.environ.get("AREAL_MKDOCS_PYTHON", ""), sys.executable):
        if (
            Path(python).is_file()
            and not subprocess.run(
                [python, "-c", "import material, mkdocs"], capture_output=True, check=False
            ).returncode
        ):
            return [python, "-m", "mkdocs"]
    pytest.skip(
        "mkdocs-material is not installed: `just environments docs`, or AREAL_MKDOCS_PYTHON names an interpreter that"
        " has it"
    )


def test_every_page_is_in_the_nav_once_and_the_nav_names_existing_files():
    pages = [site.page_path(page) for page in listed()]
    there = {path.relative_to(ROOT).as_posix() for path in [*PAGES, ROOT / "CHANGELOG.md"]}
    assert sorted(pages) == sorted(there)


def test_llms_txt_is_current_and_has_a_sentence_for_every_page():
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert text == site.llms_text(), "write it with `python scripts/docs_site.py`"
    entries = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(entries) == len(listed())
    for line in entries:
        assert re.fullmatch(r"- \[[^\]]+\]\([\w/.-]+\.md\): [A-Z`\[].{20,}\.", line), line


def test_the_sections_are_in_the_order_in_which_a_reader_needs_them():
    sections = [title for title, _ in site.nav_sections()]
    assert sections == ["Get started", "How-to", "Concepts", "Reference", "Development"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT], ids=lambda page: page.name)
def test_a_page_begins_with_what_its_reader_can_do_after_it(page):
    title, sentence = site.prose(page.read_text(encoding="utf-8")).split("\n\n")[:2]
    assert title.startswith("# ")
    assert "\n" not in title
    assert re.match(r"After this page \S.*\.", sentence, re.DOTALL), f"{page.name} begins with: {sentence}"


def test_the_readme_is_read_in_two_minutes():
    assert (ROOT / "README.md").stat().st_size <= README_BYTES


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading(page):
    found = LINK.findall(site.prose(page.read_text(encoding="utf-8")))
    for name, anchor in found:
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {name} does not exist"
        if anchor:
            assert anchor in site.anchors(target.read_text(encoding="utf-8")), (
                f"{page.name}: {target.name} has no heading #{anchor}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_source_file_that_a_page_names_exists(page):
    files = [path.relative_to(ROOT).parts for top in SOURCES for path in (ROOT / top).rglob("*.py")]
    there = {"/".join(parts[start:]) for parts in files for start in range(len(parts))}
    named = {name for name in CODE.findall(site.prose(page.read_text(encoding="utf-8"))) if SOURCE.fullmatch(name)}
    assert named <= there, sorted(named - there)


def test_the_requirements_of_the_site_are_those_of_the_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    lines = (ROOT / "scripts" / "docs.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == extras["docs"]


# ------------------------------------------------------------ names in pages of advice


def settings() -> set[str]:
    """Names of all settings, as docs/settings.md has them, whose own test compares it with the code."""
    names, table = {"algorithm.name"}, ""
    for line in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            table = heading[1] if (heading := re.search(r"`\[(.+)\]`", line)) else ""
            names.add(table)
        elif key := re.match(r"\| `(\w+)` \|", line):
            names.add(f"{table}.{key[1]}" if table else key[1])
    return names


@pytest.mark.parametrize("name", ["not-learning", "choosing-settings", "first-agent", "coming-from"])
def test_every_setting_of_the_page_exists(name):
    known = settings()
    tables = {setting.partition(".")[0] for setting in known if "." in setting}
    text = site.prose((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))
    if name == "coming-from":
        rows = [table.rows for table in TABLES if table.page.name == "coming-from.md"]
        assert len(rows) == 3
        text = "\n".join(row[1] for table in rows for row in table)
    named = [setting for code in CODE.findall(text) for setting in SETTING.findall(code.partition("=")[0].strip())]
    mentioned = {
        setting
        for setting in named
        if setting.partition(".")[0] in tables and not setting.endswith((".md", ".py", ".txt"))
    }
    assert mentioned
    assert mentioned - known == set()


def test_every_metric_of_the_page_is_written_by_the_code():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "areal_actors").rglob("*.py"))
    parts = {"token_staleness": "mean", "staleness_kl": "k3", "mismatch_kl": "k3"}
    """Names that the code puts together from a prefix and a suffix."""
    tables = [table for table in TABLES if table.page.name == "not-learning.md"]
    named = {
        name
        for table in tables
        for row in table.rows
        for code in CODE.findall(row[1])
        for name in METRIC.findall(SETTING.sub("", code.partition("/")[0]))
    }
    assert len(named) >= 20
    for name in named:
        prefix, _, suffix = name.rpartition("_")
        assert f'"{name}"' in source or (parts.get(prefix) == suffix and f'"{prefix}"' in source), (
            f"no metric is named {name}"
        )


# ------------------------------------------------------------ the site


def build_site(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*mkdocs(), "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env=quiet,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_other_hosts(tmp_path):
    ended = build_site(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout + ended.stderr == ""
    for page in listed():
        text = (tmp_path / page).with_suffix(".html").read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//", text), page
        assert "unpkg.com" not in text, page
        assert not re.search(r"<p>[^<]*\n(?:[-*]|\d+\.) ", text), f"{page}: a list needs an empty line before it"
    assert "first-agent.html" in (tmp_path / "llms.txt").read_text(encoding="utf-8")
    assert (tmp_path / "asyncapi.json").exists()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: `apt install chromium`")
async def test_the_search_finds_pages_of_the_site_on_the_disk(tmp_path):
    ended = build_site(tmp_path / "site")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    async with browser(tmp_path / "browser") as tab:
        await tab.open((tmp_path / "site" / "index.html").as_uri())
        await tab.until("document.querySelector('.md-search__input') && typeof __index === 'object'")
        await tab.run("document.querySelector('label[for=__search]').click()")
        await tab.until("document.activeElement === document.querySelector('.md-search__input')")
        await tab.until("document.querySelector('.md-search-result__meta').textContent.includes('Type to start')")
        for letter in "slurm":
            await tab.press(letter)
        await tab.until("document.querySelector('.md-search-result__link[href*=\"slurm.html\"]') !== null")
        assert tab.console == []
        assert {url.partition(":")[0] for url in tab.requested} <= {"file", "data", "about"}
