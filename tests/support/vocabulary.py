"""Finds words that the project does not use: `python tests/support/vocabulary.py [PATH ...]` prints each with its file
and line.

Rules (docs/glossary.md): a name is the word that a reader would type into a search box; a docstring is a statement.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_LISTED = """
tell tells told telling say says said saying hear hears heard hearing worth
nobody somebody whoever goodbye caprice caprices lonely deaf
"""
WORDS = frozenset(_LISTED.split())
PHRASES = ("so many", "so long", "for good", "in hand", "last words", "as it likes", "as they like", "it is not known")
NOUN_CLAUSES = frozenset(
    ["What", "Who", "Whom", "Whose", "How", "Whether", "Of", "Which", "Where", "When", "Why", "That"]
)

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_PHRASE = re.compile(
    "|".join(rf"\b{re.escape(phrase)}" + (r"\b" if phrase[-1].isalpha() else "") for phrase in PHRASES), re.IGNORECASE
)
_DATA = ("tests/", "agents/", "areal_actors/embedded/system_prompts.py")
"""Files whose string literals are prompts and test data, which are not checked."""
_OWN = {"tests/support/vocabulary.py", "tests/test_vocabulary.py", "docs/glossary.md"}


@cache
def banned(text: str) -> tuple[str, ...]:
    """The banned words and phrases of a piece of text or of a name."""
    words = [part.lower() for part in _PARTS.findall(text) if part.lower() in WORDS]
    return (*words, *(phrase.lower() for phrase in _PHRASE.findall(" ".join(text.split()))))


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.value


def _python(source: str, *, with_strings: bool) -> Iterator[tuple[int, str]]:
    found = list(docstrings(ast.parse(source)))
    documented = {constant.lineno for constant in found}
    for constant in found:
        words = re.findall(r"[A-Za-z]+", str(constant.value)[:60])
        if words and words[0] in NOUN_CLAUSES and str(constant.value)[0].isalpha():
            yield constant.lineno, f'docstring begins with "{words[0]}"'
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_of_files, before = (before, token.string) == (".", "tell"), token.string
        if is_of_files:
            continue
        name = tokenize.tok_name[token.type]
        if name == "STRING" and not (with_strings or token.start[0] in documented):
            continue
        if name in ("NAME", "COMMENT", "STRING"):
            for word in banned(token.string):
                yield token.start[0], word


def hits(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and banned words of one file; of files in `_DATA` only names, comments and docstrings."""
    source = path.read_text()
    if path.suffix == ".py":
        yield from _python(source, with_strings=not path.relative_to(ROOT).as_posix().startswith(_DATA))
        return
    for number, line in enumerate(source.splitlines(), 1):
        for word in banned(line):
            yield number, word


def files(*paths: str) -> list[Path]:
    """Files of the repository, under `paths` if given, that hold code or documentation."""
    listed = subprocess.run(
        ["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    kinds = {".py", ".md", ".toml", ".sh", ".js", ".html", ".css"}
    return [ROOT / name for name in listed if Path(name).suffix in kinds and name not in _OWN]


if __name__ == "__main__":
    found = [f"{path.relative_to(ROOT)}:{line}: {word}" for path in files(*sys.argv[1:]) for line, word in hits(path)]
    sys.stdout.write("\n".join([*found, f"{len(found)} in all\n"]))
