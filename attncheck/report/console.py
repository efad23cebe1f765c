"""A console on which no text of a model, a checkpoint or an exception does anything but show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from rich.console import Console
from rich.segment import Segment

from attncheck.core.visible import visible


@final
class VisibleConsole(Console):
    """Writes control characters of texts as escape sequences; its own colours stay."""

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        """The segments of anything that can be printed."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else visible(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)
