"""Counts the form of the product's code: `python scripts/code_figures.py [--list participles | variables | columns]`.

Functions named by a bare participle (`formed`, `_stored`) and variables that are function words (`found`, `there`) are
names that a reader cannot search for; lines are those of `areal_actors/` and `bus/`.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("areal_actors", "bus")
COLUMNS = 120
IRREGULAR = frozenset({
    "begun", "bound", "broken", "brought", "built", "caught", "chosen", "drawn", "driven", "fallen", "forgotten",
    "found", "frozen", "given", "gone", "grown", "held", "hidden", "kept", "known", "laid", "left", "lent", "lost",
    "made", "meant", "met", "paid", "seen", "sent", "shown", "sold", "spent", "spoken", "stolen", "taken", "taught",
    "thought", "thrown", "worn", "written",
})  # fmt: skip
"""Participles without `-ed` that are no verbs in the imperative as well (`read`, `cut`, `put`)."""
VERBS = frozenset({"embed", "feed", "need", "seed", "shed", "shred", "speed", "exceed", "proceed", "succeed"})
PREPOSITIONS = frozenset(
    {"after", "again", "at", "below", "by", "first", "for", "from", "in", "more", "out", "to", "too", "up", "with"}
)
FUNCTION_WORDS = frozenset(
    {"found", "here", "known", "made", "one", "ones", "other", "others", "some", "theirs", "them", "there", "these"}
)


def is_bare_participle(name: str) -> bool:
    """True if a function's name is a past participle without a noun.

    `formed`, `_stored`, `held_by`, but not `stored_tensors`.
    """
    first, *rest = name.strip("_").lower().split("_")
    is_participle = first in IRREGULAR or (first.endswith("ed") and len(first) > 3 and first not in VERBS)
    return is_participle and (not rest or rest[0] in PREPOSITIONS)


def functions(tree: ast.AST) -> Iterator[str]:
    """Names of functions and methods; properties and dunder methods are things, not deeds."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("__"):
            continue
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        if not any("property" in decorator for decorator in decorators):
            yield node.name


def variables(tree: ast.AST) -> Iterator[str]:
    """Names bound by assignments, loops, parameters and comprehensions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def main() -> int:
    """Print the figures, and the names behind one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--list", choices=("participles", "variables", "columns"), help="print what one of the figures counts"
    )
    options = parser.parse_args()
    lines, long_lines = 0, list[str]()
    function_names, variable_names = list[tuple[str, Path]](), list[tuple[str, Path]]()
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        lines += len(text.splitlines())
        long_lines += [f"{name}:{number}" for number, line in enumerate(text.splitlines(), 1) if len(line) > COLUMNS]
        tree = ast.parse(text)
        function_names += [(function, name) for function in functions(tree)]
        variable_names += [(variable, name) for variable in variables(tree)]
    participles = [(name, path) for name, path in function_names if is_bare_participle(name)]
    words = [(name, path) for name, path in variable_names if name.strip("_") in FUNCTION_WORDS]
    for label, part, whole in (
        ("functions named by a bare participle", participles, function_names),
        ("variables that are function words", words, variable_names),
    ):
        print(f"{label}: {len(part)} of {len(whole)}, {len(part) / len(whole):.1%}")
    print(f"lines over {COLUMNS} columns: {len(long_lines)} of {lines}, {len(long_lines) / lines:.1%}")
    if options.list == "columns":
        print(*long_lines, sep="\n")
    elif options.list:
        counted = Counter(participles if options.list == "participles" else words)
        print(*(f"{count:4} {name:32} {path}" for (name, path), count in counted.most_common()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
