"""What the command line keeps of a suite: by tag, by probe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the command line keeps of a suite: `!tag` leaves out what carries the tag; probes are
    globs.
    """

    tags: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def keeps(self, tags: frozenset[str], probe: str) -> bool:
        """Whether a probe on a model runs, by the tags of both together."""
        refused = {tag[1:] for tag in self.tags if tag.startswith("!")}
        wanted = {tag for tag in self.tags if not tag.startswith("!")}
        tagged = not tags & refused and (not wanted or bool(tags & wanted))
        return (
            tagged and (not self.probes or _any(self.probes, probe)) and not _any(self.skip, probe)
        )


def _any(globs: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
