"""The questions of the probes, asked of rows with pictures or sounds in them; none where a model
takes neither.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.core.measurement import Cause, Comparison, Measurement, Rerun, skipped
from attncheck.core.merging import merged
from attncheck.core.verdict import Verdict
from attncheck.media.codes import codebooks
from attncheck.media.mixing import mixing_module
from attncheck.media.rows import BETWEEN, FRONT, MediaRows
from attncheck.media.spans import window_kept
from attncheck.model.attempts import attempt
from attncheck.model.forward_spec import ForwardSpec, all_ones, counting
from attncheck.model.kept_state import model_untouched
from attncheck.model.media import CROSS_MASKS, TOKEN_TYPES
from attncheck.model.provenance import AFTER, Provenance
from attncheck.model.subject import Subject

Measured = Callable[[MediaRows, str], Measurement]
ONE, OTHER, THIRD = 1, 2, 3
"""Seeds of items: the first two differ in shape where the model leaves a choice."""
LATER = 2
MASKED, TYPES_IGNORED = Cause("masked-states-visible"), "token-types-ignored"
MIXED = "rows-mixed"


PLACED = (
    "one token at a time behind two {}s",
    "a second {} on the cache",
    "another {} moves nothing in front of it",
    "the second of two {}s moves nothing in front of it",
    "the first of two {}s moves what follows the second",
    "a row with a {} beside one of text",
    "a {} that is longer than a window",
    "one {} beside two",
    "a row with a {} beside one of text, decoded",
    "one {} beside two, decoded",
    "left, a shorter row of text beside a {}",
)
"""Cases that need a place for an item in the row; elsewhere it stands in front of every row."""


def asked(subject: Subject, cases: Mapping[str, Measured]) -> Iterator[Measurement]:
    """Each case for each kind of item that can be passed; `{}` in a name stands for the kind."""
    for medium in subject.media:
        if medium.recipe is None:
            continue
        rows = MediaRows(subject, medium)
        for name in (each for each in cases if medium.span or each not in PLACED):
            named = name.format(medium.kind)
            with model_untouched(subject.model):
                case = attempt(named, cases[name], rows, named)
            yield case


def decoded(subject: Subject) -> Iterator[Measurement]:
    """An item in the prefill, then steps and chunks on the cache, against one forward."""
    cases: dict[str, Measured] = {
        "one token at a time behind a {}": _steps,
        "one token at a time behind a {}, 2D mask": partial(_steps, masked=True),
        "one token at a time behind a {}, explicit positions": partial(_steps, explicit=True),
        "chunks behind a {}": partial(_steps, size=3),
        "one token at a time behind two {}s": partial(_steps, seeds=(ONE, OTHER)),
        "a second {} on the cache": _second,
    }
    return asked(subject, cases)


def _steps(
    rows: MediaRows,
    name: str,
    masked: bool = False,
    explicit: bool = False,
    size: int = 1,
    seeds: tuple[int, ...] = (ONE,),
    cache_kind: str = "",
) -> Comparison:
    """A row in a prefill and chunks of one size against one forward with the same prompt."""
    subject, row = rows.subject, rows.row(*seeds)
    subject.can.steps.require()
    prefill = rows.end_of(row) + 2
    rest, last = divmod(len(row.ids) - prefill, size)
    chunks = (prefill, *(size,) * rest, *((last,) if last else ()))
    if explicit:
        rows.counts.require()
    positions = counting(1, len(row.ids)) if explicit else None
    got = rows.spec(row, chunks=chunks, positions=positions, cache_kind=cache_kind)
    if masked:
        subject.can.mask_2d.require()
        got = replace(got, mask=all_ones(got.tokens))
    want = rows.spec(row, prompt=prefill, positions=positions)
    return subject.compare_forwards(name, got, want, budget=rows.budget)


def _second(rows: MediaRows, name: str) -> Comparison:
    """A second turn with an item of its own."""
    rows.subject.can.cache.require()
    rows.not_prefix.require()
    note = "on a filled cache an item gets other positions or another mask than in one forward"
    row = rows.row(ONE, OTHER)
    chunks = (rows.end + 1, len(row.ids) - rows.end - 1)
    got, want = rows.spec(row, chunks=chunks), rows.spec(row)
    case = rows.subject.compare_forwards(name, got, want, broken=Verdict.WARN, budget=rows.budget)
    return replace(case, note=note if case.beyond else "")


def static_cache(subject: Subject) -> Iterator[Measurement]:
    """An item in the prefill on a buffer that is made in advance."""
    return asked(subject, {"static, behind a {}": _static})


def _static(rows: MediaRows, name: str) -> Comparison:
    if rows.medium.names.intersection(CROSS_MASKS):
        raise Unsupported(
            f"the states of a {rows.kind} need a buffer of their own length, which only generate() "
            "prepares"
        )
    return _steps(rows, name, cache_kind="static")


def implementations(subject: Subject, names: tuple[str, ...]) -> Iterator[Measurement]:
    """A row with an item under each attention implementation."""
    others = (attn for attn in names if attn != subject.attn)
    cases: dict[str, Measured] = {
        f"{attn} against {subject.attn}, with a {{}}": partial(_under, attn=attn) for attn in others
    }
    return asked(subject, cases)


def _under(rows: MediaRows, name: str, attn: str) -> Comparison:
    row, other = rows.row(ONE), rows.row(OTHER, later=LATER)
    want = rows.spec(row, other)
    got = replace(want, attn=attn)
    return rows.subject.compare_forwards(name, got, want, budget=rows.budget)


def windows(subject: Subject) -> Iterator[Measurement]:
    """An item that is longer than a window, where the config states one."""
    cases: dict[str, Measured] = {"a {} that is longer than a window": window_kept}
    return asked(subject, cases if subject.facts.window else {})


def future(subject: Subject) -> Iterator[Measurement]:
    """What tokens and items move: nothing in front of them, all that is promised behind them."""
    cases: dict[str, Measured] = {
        "tokens behind a {} changed": _behind,
        "another {} moves nothing in front of it": _in_front,
        "the second of two {}s moves nothing in front of it": partial(_in_front, two=True),
        "another {} moves what follows it": _follows,
        "the first of two {}s moves what follows the second": partial(_follows, two=True),
    }
    if any(TOKEN_TYPES[0] in medium.names for medium in subject.media):
        cases["token types matter beside a {}"] = _types
    yield from asked(subject, cases)
    yield from codebooks(subject)


def _behind(rows: MediaRows, name: str) -> Comparison:
    """Every token behind the item in turn, in one batch: earlier logits stay. A prefix that is read
    both ways ends in front of them.
    """
    row, prompt = rows.row(ONE), rows.end + 1
    cuts = range(prompt, len(row.ids))
    other = rows.subject.inputs.other
    changed = [replace(row, ids=other(row.ids, cut, cut + 1, salt=cut)) for cut in cuts]
    spec = rows.spec(row, *changed, prompt=prompt)
    logits_BTV, cases = rows.subject.logits(spec), []
    for number, cut in enumerate(cuts, start=1):
        got_BTV, want_BTV = logits_BTV[number : number + 1, :cut], logits_BTV[:1, :cut]
        note = f"the token at position {cut} changed"
        alone = rows.spec(changed[number - 1], prompt=prompt), rows.spec(row, prompt=prompt)
        cases.append(_compared(rows, name, got_BTV, want_BTV, spec=alone, note=note))
    return merged(name, cases)


def _compared(
    rows: MediaRows,
    name: str,
    got_BTV: Tensor,
    want_BTV: Tensor,
    spec: tuple[ForwardSpec, ForwardSpec],
    note: str = "",
) -> Comparison:
    return rows.subject.compare(name, got_BTV, want_BTV, spec=spec, note=note, budget=rows.budget)


def _in_front(rows: MediaRows, name: str, two: bool = False) -> Comparison:
    rows.not_prefix.require()
    first = (THIRD,) if two else ()
    got, want = rows.spec(rows.row(*first, OTHER)), rows.spec(rows.row(*first, ONE))
    at = slice(0, rows.end + BETWEEN if two else FRONT)
    case = rows.subject.compare_forwards(name, got, want, at=at, budget=rows.budget)
    if rows.reads_masked_states:
        return replace(case, cause=MASKED)
    module = mixing_module(rows, rows.row(*first), want) if two and case.beyond else ""
    if not module:
        return case
    note = f"in {module} the first {rows.kind} reads the second"
    return replace(case, note=note, cause=Cause(MIXED, module=module))


def _follows(rows: MediaRows, name: str, two: bool = False) -> Comparison:
    rest = (THIRD,) if two else ()
    changed, usual = rows.row(OTHER, *rest), rows.row(ONE, *rest)
    behind = slice(rows.end_of(usual), None)
    got, want = rows.spec(changed), rows.spec(usual)
    case = rows.subject.compare_forwards(
        name, got, want, at=behind, expect="differ", budget=rows.budget
    )
    return case if case.beyond else replace(case, cause=Cause("picture-ignored", case.max_abs))


def _types(rows: MediaRows, name: str) -> Comparison:
    """Marking placeholders, or a prefix, opens the mask among them."""
    want = rows.spec(rows.row(ONE), prompt=rows.end + 1)
    assert want.media is not None
    got = replace(want, media=replace(want.media, without=TOKEN_TYPES[:1]))
    case = rows.subject.compare_forwards(name, got, want, expect="differ", budget=rows.budget)
    return case if case.beyond else replace(case, cause=Cause(TYPES_IGNORED, case.max_abs))


def history(subject: Subject) -> Iterator[Measurement]:
    """The same call before and after a conversation with an item."""
    cases: dict[str, Measured] = {
        "the same text before and after a {}": _text_again,
        "the same steps over text before and after a {}": partial(_text_again, steps=True),
        "the same {} before and after another": _item_again,
        "the same {} and text behind it before and after another": partial(_item_again, steps=True),
    }
    yield from asked(subject, cases)
    for medium in (each for each in subject.media if each.recipe is None):
        yield skipped(f"rows with a {medium.kind}", medium.unusable)


def _text_again(rows: MediaRows, name: str, steps: bool = False) -> Comparison:
    length = rows.subject.inputs.length
    chunks = (length - 3, 1, 1, 1) if steps else ()
    return _again(rows, name, ForwardSpec(rows.subject.inputs.tokens, chunks=chunks), (ONE,))


def _item_again(rows: MediaRows, name: str, steps: bool = False) -> Comparison:
    row = rows.row(ONE)
    chunks = (len(row.ids) - 3, 1, 1, 1) if steps else ()
    return _again(rows, name, rows.spec(row, chunks=chunks), (OTHER, THIRD))


def _again(rows: MediaRows, name: str, spec: ForwardSpec, seeds: tuple[int, ...]) -> Comparison:
    """A forward, which leaves nothing behind, a conversation of rows with an item each, the forward
    again.
    """
    subject = rows.subject
    if len(spec.chunks) > 1:
        subject.can.steps.require()
    subject.passes.drop(spec)
    with model_untouched(subject.model):
        first_BTV = subject.logits(spec)
    again_BTV = rows.again(seeds, spec, subject)
    case = subject.compare(name, again_BTV, first_BTV, budget=rows.budget)
    provenance = Provenance(AFTER, partial(rows.again, seeds, spec))
    return replace(case, rerun=Rerun(spec, spec, provenance))
