"""The reproduction of a confirmed fault: the smallest two passes as a script, offered only if it
shows the fault by itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Finding
from attncheck.diagnosis.recorded import pass_dict
from attncheck.diagnosis.repro import offered
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject

Pair = tuple[ForwardSpec, ForwardSpec]


def reproduction(
    subject: Subject, finding: Finding, smallest: Pair | None, directory: Path
) -> tuple[str, str]:
    """(text of the script, why there is none): from the smallest passes, else from those of the
    failing case.
    """
    reason = ""
    for pair in (smallest, None):
        tried = finding if pair is None else replace(finding, replay=_replay(finding, pair))
        try:
            return offered(subject, tried, directory).read_text(encoding="utf-8"), ""
        except (Unsupported, OSError, *REFUSALS) as error:
            reason = reason or str(error)
    return "", reason


def _replay(finding: Finding, pair: Pair) -> dict[str, object]:
    got, want = (pass_dict(spec) for spec in pair)
    return {**finding.replay, "got": got, "want": want}
