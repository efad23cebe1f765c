"""What can be read off a model before anything runs: how it is really set, and what of it explains
a report by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import transformers

from attncheck.core import registry
from attncheck.core.errors import Unsupported
from attncheck.core.finding import (
    Finding,
    Measurement,
    Verdict,
    verdict_of,
)
from attncheck.core.ruling import describe
from attncheck.core.version import __version__
from attncheck.model.forward_spec import Mask4D
from attncheck.model.loss import ACCUMULATING
from attncheck.model.passes import REFUSALS
from attncheck.model.subject import Subject
from attncheck.triage.answer import Question, Remark
from attncheck.triage.material import Material

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p")
CHANGING = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0}


def facts(subject: Subject, reported: str) -> Iterator[tuple[str, str]]:
    """(what, value) as resolved: read back from the objects, not from what was asked."""
    yield "model", f"{subject.facts.class_name}, {subject.facts.layers} layers"
    yield "attention", str(subject.attn)
    yield "dtype", reported
    if subject.tokenizer is not None:
        yield "padding side", str(getattr(subject.tokenizer, "padding_side", "unknown"))
    yield (
        "versions",
        f"attncheck {__version__}, torch {torch.__version__}, transformers {transformers.__version__}",
    )


def remarks(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """What is no fault of attention and still changes what people see."""
    if question.prompts and not material.own:
        yield Remark(
            title="the prompts were not used",
            words="The target has no tokenizer: seeded ids were asked instead.",
        )
    yield from _sampling(subject, question)
    yield from _right_padding(subject, question, material)
    yield from _pad_is_eos(subject, question)
    yield from _template(subject, question)
    yield from _position_limit(subject, material)


def _sampling(subject: Subject, question: Question) -> Iterator[Remark]:
    config = getattr(subject.model, "generation_config", None)
    if getattr(config, "do_sample", False):
        said = ", ".join(
            f"{name}={value}"
            for name in SAMPLING
            if (value := getattr(config, name, None)) is not None
        )
        yield Remark(
            title="sampling is on",
            words=f"The model's generation config has do_sample=True ({said}): generate() draws another text on every call "
            "unless do_sample=False is passed. Compare logits, or greedy text.",
            decides=question.symptom in ("", "batch", "cache", "implementation"),
        )
    changed = {
        name: getattr(config, name, None)
        for name, usual in CHANGING.items()
        if getattr(config, name, None) not in (None, usual)
    }
    if changed:
        said = ", ".join(f"{name}={value}" for name, value in changed.items())
        yield Remark(
            title="generate() changes the logits",
            words=f"The model's generation config has {said}: two engines agree only if both apply it.",
        )


def _right_padding(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    side = question.pattern.padding or getattr(subject.tokenizer, "padding_side", "")
    lengths = {len(row) for row in material.rows[: max(1, len(question.prompts))]}
    if side == "right" and question.generate and len(lengths) > 1:
        yield Remark(
            title="padding on the right of a prompt",
            words=f"The prompts have {min(lengths)} to {max(lengths)} tokens and are padded on the right: generate() then goes "
            "on after padding in every row but the longest. Set tokenizer.padding_side = 'left'.",
            decides=True,
        )


def _pad_is_eos(subject: Subject, question: Question) -> Iterator[Remark]:
    tokenizer = subject.tokenizer
    pad, eos = (getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
    if pad is None or pad != eos:
        return
    lost = _label_lost(tokenizer, int(eos))
    yield Remark(
        title="padding is the end of text",
        words=f"pad_token_id and eos_token_id are both {eos}. "
        + (
            "A collator that sets the labels of padding to -100 does so with every end of text as well: "
            f"in a batch of two texts that end with it, it is a target {lost} times. A model tuned so never learns to stop."
            if lost is not None
            else "Training that ignores padding in its labels ignores every end of text as well."
        ),
        decides=question.symptom == "training" and lost in (0, None),
    )


def _label_lost(tokenizer: Any, eos: int) -> int | None:
    """How often the end of text is a target when the library's own collator makes the labels; None
    where it cannot run.
    """
    try:
        collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
        texts = [
            {"input_ids": [*tokenizer(text)["input_ids"], eos]} for text in ("one two three", "one")
        ]
        return int((collator(texts)["labels"] == eos).sum())
    except Exception:
        return None  # a tokenizer that cannot pad or a collator of another release: the remark is made without a count


def _template(subject: Subject, question: Question) -> Iterator[Remark]:
    template = getattr(subject.tokenizer, "chat_template", None)
    if not template or not question.prompts:
        return
    marks = [
        token
        for token in getattr(subject.tokenizer, "all_special_tokens", ())
        if token and token in str(template)
    ]
    if not any(mark in prompt for mark in marks for prompt in question.prompts):
        yield Remark(
            title="the chat template is missing",
            words="The tokenizer has a chat template and no prompt holds its marks: a chat model asked with bare text answers "
            "with whatever follows such a text on the web. Use tokenizer.apply_chat_template(…, add_generation_prompt=True).",
        )


def _position_limit(subject: Subject, material: Material) -> Iterator[Remark]:
    context = subject.facts.context
    if context and material.own and material.length > context:
        yield Remark(
            title="longer than the context",
            words=f"The prompt has {material.length} tokens, the config promises {context} positions.",
            decides=True,
        )


def trapped(subject: Subject, finding: Finding, reported: str) -> Remark | None:
    """The warnings of a finding that the reporter can run into: those that their own precision
    shows as well.

    A loss that accumulation steps change is no trap: it is held against one batch in a step of its
    own.
    """
    warned = {
        case.name: case
        for case in finding.cases
        if verdict_of(case) is Verdict.WARN and case.name not in ACCUMULATING
    }
    if not warned:
        return None
    probe = registry.load(finding.probe)
    try:
        with subject.at(reported) as view:
            own = {case.name: case for case in probe.measure(view) if case.name in warned}
    except (Unsupported, *REFUSALS):
        own = warned
    met = [case for name, case in warned.items() if name in own and _met(own[name])]
    return _trap(finding, met) if met else None


def _trap(finding: Finding, met: list[Measurement]) -> Remark:
    """What the trap is, what else moves because nothing asks it not to, and which calls do what
    they seem to.
    """
    shown = [case for case in finding.cases if case.expect == "figure" and case.max_abs]
    moved = "; ".join(f"{case.name}: {describe(case)}" for case in [*met, *shown])
    held = "; ".join(
        case.name for case in finding.cases if case.judged and verdict_of(case) is Verdict.PASS
    )
    title = f"these calls ask for something else than they seem to: {', '.join(case.name for case in met)}"
    return Remark(
        title=title, words=moved + (f". What holds: {held}." if held else "."), decides=True
    )


def _met(case: Measurement) -> bool:
    return case.expect != "skip" and (verdict_of(case) is not Verdict.PASS or not case.resolved)


def by_the_way(finding: Finding) -> bool:
    """Whether all that fails is a call that only somebody who writes masks as booleans makes: it
    explains no other report.
    """
    failing = [case for case in finding.cases if verdict_of(case) is Verdict.FAIL]
    masks = [case.spec[0].mask if case.spec else None for case in failing]
    return bool(failing) and all(isinstance(mask, Mask4D) and mask.boolean for mask in masks)
