"""A console that shows text of models, agents and data sets without its control characters."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from areal_actors.core.foreign_text import show_controls


class SafeConsole(Console):
    """A console whose own control codes are sent, and those in what it shows are not."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of an object, with pictures in place of control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=show_controls(segment.text))
