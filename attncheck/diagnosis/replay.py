"""A recorded failure run again, and forwards as JSON data, so that a report can hold them.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from attncheck.core import registry
from attncheck.core.errors import Unsupported, UsageError, first_line
from attncheck.core.finding import DECIDED_IN, Finding
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.ruling import describe
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.failure import Failure, open_case, unmeasured
from attncheck.model.forward_spec import ForwardSpec, Mask, Mask2D, Mask4D, Media
from attncheck.model.precision import DTYPES
from attncheck.model.subject import Subject

SCALARS = ("use_cache", "attn", "cache_kind", "attentions", "unpromoted")


@final
@dataclass(frozen=True)
class Replayed:
    """Whether a failure still fails, and a sentence with the recorded and the present number."""

    fails: bool
    text: str


def run_again(subject: Subject, finding: Finding) -> Replayed:
    """Run a failing case again by its probe, and its two forwards where the report holds them.

    Raises:
        UsageError: what the report holds of them cannot be read, or the probe has no case now.
    """
    forwards, dtype = _recorded(finding), finding.replay.get(DECIDED_IN)
    with subject.at(dtype if dtype in DTYPES else None) as view:
        case = _measured(view, finding)
        sides = _sides(view, *forwards) if forwards else ""
    before = next((each for each in finding.cases if each.name == case.name), None)
    fails = verdict_of(case) is Verdict.FAIL
    recorded = "not recorded"
    if before is not None and before.max_abs is not None:
        recorded = f"recorded {before.max_abs:.3g}"
    still = "still fails" if fails else "no longer fails"
    return Replayed(fails, f"{still}: {case.name}: {describe(case)} ({recorded}){sides}")


def _measured(subject: Subject, finding: Finding) -> Measurement:
    """The recorded case, or the worst one where no case was recorded."""
    wanted = finding.replay.get("case")
    measured: list[Measurement] = list(registry.load(finding.probe).measure(subject))
    named = [case for case in measured if case.name == wanted]
    broken = [case for case in measured if verdict_of(case) is Verdict.FAIL]
    if not measured:
        raise UsageError(f"{subject.name}/{finding.probe}: the probe has no case on this model now")
    return (named or sorted(broken, key=lambda case: -case.excess) or measured)[0]


def _recorded(finding: Finding) -> tuple[ForwardSpec, ForwardSpec] | None:
    """The two forwards that a report holds of a finding, if any."""
    if "got" not in finding.replay:
        return None
    try:
        return spec_from_dict(finding.replay["got"]), spec_from_dict(finding.replay["want"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{finding.probe}: its recorded forward cannot be read: {first_line(error)}"
        ) from error


def _sides(subject: Subject, got: ForwardSpec, want: ForwardSpec) -> str:
    failure = open_case(subject, unmeasured("recorded", got, want))
    sides = zip(("the call", "its reference"), failure.sides, strict=True)
    wrong = " and ".join(name for name, side in sides if side.wrong)
    return f"; {wrong or 'neither side'} differs from the trusted path"


def spec_dict(spec: ForwardSpec) -> dict[str, Any]:
    """A forward as JSON data; defaults are left out."""
    usual = ForwardSpec(())
    data: dict[str, Any] = {"tokens": [list(row) for row in spec.tokens]}
    if spec.chunks:
        data["chunks"] = list(spec.chunks)
    if spec.positions is not None:
        data["positions"] = [list(row) for row in spec.positions]
    if spec.mask is not None:
        data["mask"] = _mask_dict(spec.mask)
    if spec.media is not None:
        data["media"] = {**vars(spec.media), "rows": [list(row) for row in spec.media.rows]}
        data["media"]["without"] = list(spec.media.without)
    data.update(
        {
            name: getattr(spec, name)
            for name in SCALARS
            if getattr(spec, name) != getattr(usual, name)
        }
    )
    return data


def _mask_dict(mask: Mask2D | Mask4D) -> dict[str, Any]:
    if isinstance(mask, Mask2D):
        return {
            "rows": [list(row) for row in mask.rows],
            **({} if mask == Mask2D(mask.rows) else {"dtype": mask.dtype}),
        }
    return {"segments": [list(row) for row in mask.segments], "boolean": mask.boolean}


def spec_from_dict(data: Mapping[str, Any]) -> ForwardSpec:
    """The forward that `spec_dict` wrote down.

    Raises:
        KeyError: it holds no tokens.
    """
    positions = data.get("positions")
    return ForwardSpec(
        _rows(data["tokens"]),
        chunks=tuple(data.get("chunks", ())),
        positions=_rows(positions) if positions is not None else None,
        mask=_mask_of(data.get("mask")),
        media=_media_of(data.get("media")),
        **{name: data[name] for name in SCALARS if name in data},
    )


def _mask_of(data: Mapping[str, Any] | None) -> Mask:
    if data is None:
        return None
    if "rows" in data:
        return Mask2D(_rows(data["rows"]), dtype=str(data.get("dtype", "int64")))
    return Mask4D(_rows(data["segments"]), boolean=bool(data.get("boolean", False)))


def _media_of(data: Mapping[str, Any] | None) -> Media | None:
    if data is None:
        return None
    without = tuple(map(str, data.get("without", ())))
    return Media(str(data["kind"]), _rows(data["rows"]), int(data.get("prompt", 0)), without)


def _rows(rows: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(value) for value in row) for row in rows)


def replay_of(failure: Failure) -> dict[str, Any]:
    """What replays this case: its name, and both forwards or how the first logits were made."""
    got, want = failure.sides
    data: dict[str, Any] = {"case": failure.case.name, "budget": failure.budget}
    if got.provenance is not None and not _by_hand(failure):
        return {**data, "made": got.provenance.how}
    return {**data, "got": spec_dict(got.spec), "want": spec_dict(want.spec)}


def _by_hand(failure: Failure) -> bool:
    """Whether the forward itself gives the logits that were made in another way."""
    got = failure.sides[0]
    try:
        return got.residual_of(failure.subject.logits(got.spec)) <= failure.budget
    except Unsupported:
        return False
