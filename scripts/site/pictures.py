"""What a fault looks like to a probe, measured on a small model and drawn as in a report.

A fault of the mask is drawn as the keys that each query reads against those that it should read;
any other by the divergence of the logits along positions. Pictures are kept in a folder, since
measuring all of them takes minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from attncheck.cli.mask_drawing import svg
from attncheck.core import registry
from attncheck.core.errors import Unsupported
from attncheck.core.finding import Finding
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.faults import registry as faults
from attncheck.model.subject import Subject
from attncheck.report.html import _environment
from attncheck.run.mask_map import layer_maps, map_spec
from attncheck.run.runner import finding_of
from attncheck.targets.load import load

TARGETS = (
    "builtin:gqa",
    "builtin:window",
    "builtin:mha",
    "builtin:alibi",
    "config:mamba2",
    "config:gemma2",
    "config:gpt_oss",
    "config:llama",
)
"""Small models that a fault is tried in, the first that takes it and shows it is drawn."""
MASKS = "masks"
ROWS = 4
"""Cases that a picture shows; the report has all."""


@cache
def probes_of(fault: str) -> tuple[str, ...]:
    """The probes whose controls name a fault."""
    return tuple(name for name in registry.installed() if fault in registry.load(name).controls)


@cache
def subject(target: str) -> Subject:
    """A small model, loaded once."""
    return load(target, Settings())


def picture(fault: str, probe: str, kept: Path) -> str:
    """A picture of a fault as a probe sees it, as HTML without blank lines; empty where no small
    model shows it.
    """
    path = kept / f"{fault}.{probe}.html"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = next(_drawn(fault, probe), "")
        path.write_text(re.sub(r"\n\s*\n+", "\n", text), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def _drawn(fault: str, probe: str) -> Iterator[str]:
    for target in TARGETS:
        try:
            found = _finding(fault, probe, target)
        except (Unsupported, RuntimeError, ValueError):
            continue  # this model has no place for the fault
        if found.verdict in (Verdict.FAIL, Verdict.WARN):
            yield _figure(fault, probe, target, found)


def _finding(fault: str, probe: str, target: str) -> Finding:
    with faults.fault(fault).injected(subject(target)):
        return finding_of(subject(target), registry.load(probe))


def _figure(fault: str, probe: str, target: str, found: Finding) -> str:
    if len(found.cases) > ROWS:
        broken = [case for case in found.cases if case.judged and case.excess > 1]
        found = replace(found, cases=tuple(broken[:ROWS]))
    drawn = _map(fault, target) or _pictures(found)
    words = f"<code>{target}</code> with <code>{fault}</code> injected, as <code>{probe}</code> sees it: "
    return f'<figure class="attncheck">{drawn}<figcaption>{words}{_escaped(found.summary)}</figcaption></figure>\n'


def _map(fault: str, target: str) -> str:
    """The keys that are read, where the fault is one of the mask and shows in one plain forward."""
    if faults.path_of(fault).parent.name != MASKS:
        return ""
    try:
        with faults.fault(fault).injected(subject(target)):
            layers = layer_maps(subject(target), map_spec(subject(target)))
    except Unsupported:
        return ""
    wrong = [layer for layer in layers if layer.wrong]
    return svg(wrong[:1]) if wrong else ""


def _pictures(found: Finding) -> str:
    template: Any = _environment().from_string(
        '{% import "pictures.html" as pictures with context %}{{ pictures.of(finding) }}'
    )
    return str(template.render(finding=found))


def _escaped(text: str) -> str:
    from html import escape

    return escape(text)


def shown_by(probe: str, controls: Sequence[str], kept: Path) -> tuple[str, str]:
    """The first control of a probe that has a picture, and the picture; empty where none has."""
    for fault in controls:
        drawn = picture(fault, probe, kept)
        if drawn:
            return fault, drawn
    return "", ""
