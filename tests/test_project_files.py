"""Files for people and assistants that join: one version, commands and paths that exist, a release that can be run."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest
import yaml

from areal_actors import __version__
from areal_actors.cli.find_commands import command_modules

ROOT = Path(__file__).parent.parent
SKILLS = sorted((ROOT / ".agents/skills").glob("*/SKILL.md"))
PAGES = [*(ROOT / name for name in ("AGENTS.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md")), *SKILLS]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def test_one_version_is_everywhere_and_has_notes_for_users():
    script = runpy.run_path(str(ROOT / "scripts/version.py"))
    assert set(script["versions"]().values()) == {__version__}
    notes = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    (release,) = [section for section in notes if section.startswith(__version__)]
    assert len(release.partition("### ")[0].splitlines()) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name if page.name == "SKILL.md" else page.name)
def test_a_page_names_commands_paths_and_settings_that_exist(page):
    text = page.read_text()
    commands = set(re.findall(r"`areal-actors ([a-z][a-z-]+)", text))
    assert commands <= set(command_modules())
    named = re.findall(r"`((?:docs|scripts|tests|recipes|agents|bus|areal_actors)/[\w./-]*)`", text)
    linked = [path for path in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in path]
    assert [path for path in [*named, *linked] if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", SKILLS, ids=lambda page: page.parent.name)
def test_a_skill_states_when_it_is_used(page):
    _, head, body = page.read_text().split("---\n", 2)
    described = yaml.safe_load(head)
    assert described["name"] == page.parent.name
    assert 40 < len(described["description"]) < 400
    assert body.strip().startswith("# ")
    assert (ROOT / ".claude/skills" / page.parent.name / "SKILL.md").samefile(page)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_has_the_fields_that_the_site_reads(form):
    content = yaml.safe_load(form.read_text())
    if form.stem == "config":
        assert content == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= content.keys()
    for field in content["body"]:
        assert field["type"] in ("markdown", "textarea", "input", "checkboxes", "dropdown")
        assert "value" in field["attributes"] or "label" in field["attributes"]


def test_the_release_builds_tests_signs_and_waits_for_a_person():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    jobs = workflow["jobs"]
    assert [jobs[name].get("needs") for name in ("build", "test", "sign", "publish")] == [None, "build", "test", "sign"]
    assert jobs["publish"]["environment"] == "pypi"
    assert workflow["permissions"] == {"contents": "read"}
    assert jobs["sign"]["permissions"]["id-token"] == "write"
    steps = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    assert [step for step in steps if "scripts/release.sh" in step] == [
        "scripts/release.sh build dist",
        'scripts/release.sh test dist "$EXTRAS"',
    ]
    assert subprocess.run(["bash", "-n", ROOT / "scripts/release.sh"], check=False).returncode == 0


def test_the_citation_has_the_fields_of_its_format_and_no_invented_address():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= citation.keys()
    assert json.dumps(citation).count("http") == 0
