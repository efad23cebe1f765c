"""The route of a symptom: the order in which real reports of that kind were solved.

A probe that is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from attncheck.core.errors import UsageError, unknown
from attncheck.triage.answer import Question


@final
@dataclass(frozen=True)
class Route:
    """The probes to run, cheapest and most decisive first; the axes that the symptom concerns; the
    probes whose warnings explain it.
    """

    probes: str
    axes: tuple[str, ...] = ("schedule", "cache", "batch", "padding", "attn")
    traps: tuple[str, ...] = ()


ROUTES = {
    "": Route(
        "reference kv-groups repeatability future-token implementations decode-paths "
        "position-reset cache-kinds generate batch-rows padding window document-leakage gradient "
        "labels"
    ),
    "batch": Route(
        "reference kv-groups batch-rows padding implementations", ("batch", "padding", "attn")
    ),
    "cache": Route(
        "reference kv-groups future-token decode-paths position-reset cache-kinds generate",
        ("schedule", "cache"),
    ),
    "long": Route(
        "reference kv-groups window decode-paths position-reset repeatability cache-kinds",
        ("schedule", "cache"),
    ),
    "padding": Route(
        "reference kv-groups padding batch-rows implementations",
        ("padding", "batch", "attn"),
        ("padding",),
    ),
    "packing": Route(
        "document-leakage labels reference", ("mask", "positions"), ("document-leakage",)
    ),
    "upgrade": Route(
        "reference kv-groups future-token implementations window decode-paths padding labels"
    ),
    "implementation": Route(
        "reference kv-groups implementations padding batch-rows", ("attn", "padding")
    ),
    "training": Route(
        "labels gradient future-token implementations document-leakage reference",
        ("attn", "cache"),
        ("labels",),
    ),
}


def route(symptom: str) -> Route:
    """The route of a symptom.

    Raises:
        UsageError: there is no such symptom; the message offers the nearest.
    """
    if symptom not in ROUTES:
        raise UsageError(unknown("symptom", symptom, [name for name in ROUTES if name]))
    return ROUTES[symptom]


def symptom_of(question: Question) -> str:
    """The symptom that a report names, else the one that its words or its call stand for."""
    words = question.issue.symptom
    return question.symptom or (words if question.issue.sure else inferred(question) or words)


def inferred(question: Question) -> str:
    """The symptom that a call stands for where the report names none: what it does beside one plain
    forward.
    """
    pattern = question.pattern
    if pattern.cache or question.beams > 1:
        return "cache"
    if pattern.padding:
        return "padding"
    together = len(question.prompts) > 1 and not question.singly
    return "batch" if together else ""


def present(names: Iterable[str], installed: Iterable[str]) -> list[str]:
    """Those of the names that are installed."""
    here = set(installed)
    return [name for name in names if name in here]
