"""Names and sentences are in the field's words: docs/glossary.md, tests/support/vocabulary.py."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest
from support import vocabulary

FIELD = (
    "rollback",
    "KV cache",
    "logits processor",
    "dedup",
    "clip_frac",
    "dry run",
    "gradient accumulation",
    "mismatch",
)
"""Words of the field that readers search for, each for something that exists here."""


@pytest.mark.parametrize(
    "folder", ["areal_actors", "bus", "agents", "recipes", "benchmarks", "scripts", "docs", "tests", "*.md", "justfile"]
)
def test_no_file_has_a_word_that_the_project_does_not_use(folder):
    found = [
        f"{path.relative_to(vocabulary.ROOT)}:{line}: {word}"
        for path in vocabulary.files(folder)
        for line, word in vocabulary.hits(path)
    ]
    assert not found, "\n".join(found)


def test_the_checker_finds_words_in_names_comments_docstrings_and_prose(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "ROOT", tmp_path)
    code = tmp_path / "code.py"
    code.write_text(
        '"""Whether it is."""\ndef heardWord():  # so many\n    """Statement."""\n    return "it was told" if is_worth'
        " else 1\n"
    )
    assert sorted(vocabulary.hits(code)) == [
        (1, 'docstring begins with "Whether"'),
        (2, "heard"),
        (2, "so many"),
        (4, "told"),
        (4, "worth"),
    ]
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests" / "test_code.py"
    test.write_text('assert answer == "say hello"  # nobody\n')
    assert list(vocabulary.hits(test)) == [(1, "nobody")]
    page = tmp_path / "page.md"
    page.write_text("Essays are\n\nkept for good.\n")
    assert list(vocabulary.hits(page)) == [(3, "for good")]


def test_a_class_name_has_one_meaning():
    places = defaultdict(list)
    for path in vocabulary.files("areal_actors", "bus"):
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(str(path.relative_to(vocabulary.ROOT)))
    assert not {name: where for name, where in places.items() if len(where) > 1}


@pytest.mark.parametrize("word", FIELD)
def test_a_word_of_the_field_has_hits(word):
    hits = [
        path for path in vocabulary.files("areal_actors", "bus", "docs") if word.lower() in path.read_text().lower()
    ]
    assert hits, f"a search for {word!r} finds nothing"
