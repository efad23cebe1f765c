"""What explains a report without a fault: settings of the model, and calls that mislead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import transformers

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.ruling import describe
from attncheck.core.verdict import Verdict
from attncheck.core.version import __version__
from attncheck.diagnosis.failure import REFUSED
from attncheck.model.loss import ACCUMULATING
from attncheck.model.subject import Subject
from attncheck.triage.answer import Question, Remark
from attncheck.triage.material import Material
from attncheck.triage.misuse import misused
from attncheck.triage.routes import symptom_of

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p")
CHANGING = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0}
NO_TEMPLATE = "the chat template is missing"


def facts(subject: Subject, reported: str) -> Iterator[tuple[str, str]]:
    """(name, value) of the settings in force, read back from the loaded objects."""
    yield "model", f"{subject.facts.class_name}, {subject.facts.layers} layers"
    yield "attention", str(subject.attn)
    yield "dtype", reported
    if subject.tokenizer is not None:
        yield "padding side of the tokenizer", str(getattr(subject.tokenizer, "padding_side", "?"))
    versions = (
        f"attncheck {__version__}",
        f"torch {torch.__version__}",
        f"transformers {transformers.__version__}",
    )
    yield "versions", ", ".join(versions)


def remarks(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """Everything that is no fault of attention and still changes what people see."""
    yield from _sampling(subject, question)
    yield from _pad_is_eos(subject, question)
    yield from _template(subject, question)
    yield from misused(subject, question, material)
    context = subject.facts.context
    if context and material.own and material.length > context:
        yield Remark(
            title="longer than the context",
            words=f"The prompt has {material.length} tokens, the config {context} positions.",
            decides=True,
        )


def _sampling(subject: Subject, question: Question) -> Iterator[Remark]:
    config = getattr(subject.model, "generation_config", None)
    if question.sampled:
        yield Remark(
            title="sampling is on",
            words="The reported call passes do_sample=True: generate() draws another text on every "
            "call. Compare logits, or greedy text (do_sample=False).",
            decides=True,
        )
    elif getattr(config, "do_sample", False):
        values = ((name, getattr(config, name, None)) for name in SAMPLING)
        shown = ", ".join(f"{name}={value}" for name, value in values if value is not None)
        yield Remark(
            title="sampling is on",
            words=f"The model's generation config has do_sample=True ({shown}): generate() draws "
            "another text on every call unless do_sample=False is passed. Compare logits, or "
            "greedy text.",
            decides=bool(question.generate) or not question.symptom,
        )
    if not question.sampled and question.issue.piped and _pipeline_samples():
        yield Remark(
            title="sampling is on",
            words="A text-generation pipeline samples unless it is told otherwise: it draws "
            "another text on every call. Pass do_sample=False to compare.",
            decides=True,
        )
    elif _warps_in_vain(question, config):
        shown = ", ".join(f"{name}={value}" for name, value in question.issue.warped)
        yield Remark(
            title="generate() does not sample",
            words=f"The reported call passes {shown} and no do_sample=True: generate() takes the "
            "best token each time, which these settings do not change. Pass do_sample=True.",
            decides=question.issue.unvaried,
        )
    if question.issue.changing:
        shown = ", ".join(f"{name}={value}" for name, value in question.issue.changing)
        yield Remark(
            title="generate() changes the logits",
            words=f"The reported call passes {shown}: its text is not the best tokens of the "
            "model's own logits. Leave that out, or apply it on both sides.",
            late=not symptom_of(question) or question.issue.engine,
        )
    changed = ((name, getattr(config, name, None), usual) for name, usual in CHANGING.items())
    shown = ", ".join(
        f"{name}={value}" for name, value, usual in changed if value not in (None, usual)
    )
    if shown:
        yield Remark(
            title="generate() changes the logits",
            words=f"The model's generation config has {shown}: two engines agree only if both "
            "apply it.",
            late=question.issue.engine,
        )


def _warps_in_vain(question: Question, config: Any) -> bool:
    """Whether a call passes settings of sampling and does not sample."""
    samples = question.sampled or question.issue.piped or getattr(config, "do_sample", False)
    return bool(question.issue.warped) and not samples


def _pipeline_samples() -> bool:
    """Whether the library's text-generation pipeline samples by default."""
    own = getattr(transformers.TextGenerationPipeline, "_default_generation_config", None)
    return bool(getattr(own, "do_sample", False))


def _pad_is_eos(subject: Subject, question: Question) -> Iterator[Remark]:
    tokenizer = subject.tokenizer
    pad, eos = (getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
    if pad is None or pad != eos:
        return
    targets = _eos_targets(tokenizer, int(eos))
    effect = "Training that ignores padding in its labels ignores every end of text as well."
    if targets is not None:
        effect = (
            "A collator that sets the labels of padding to -100 also does so for every end of "
            "text: in a batch of two texts that end with it, it is a target "
            f"{targets} times. A model tuned this way never learns to stop."
        )
    yield Remark(
        title="padding is the end of text",
        words=f"pad_token_id and eos_token_id are both {eos}. {effect}",
        decides=(question.symptom == "training" or question.issue.endless) and targets in (0, None),
    )


def _eos_targets(tokenizer: Any, eos: int) -> int | None:
    """How often the end of text is a target with the library's own collator; None where it cannot
    run: a tokenizer that cannot pad, or a collator of another release.
    """
    try:
        collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
        texts = [
            {"input_ids": [*tokenizer(text)["input_ids"], eos]} for text in ("one two three", "one")
        ]
        return int((collator(texts)["labels"] == eos).sum())
    except Exception:
        return None


def _template(subject: Subject, question: Question) -> Iterator[Remark]:
    template = getattr(subject.tokenizer, "chat_template", None)
    if not template or not question.prompts or question.chat:
        return
    special = getattr(subject.tokenizer, "all_special_tokens", ())
    marks = [token for token in special if token and token in str(template)]
    if not any(mark in prompt for mark in marks for prompt in question.prompts):
        yield Remark(
            title=NO_TEMPLATE,
            words="The tokenizer has a chat template and no prompt holds its special tokens: a "
            "chat model continues bare text as a document instead of answering it. Use "
            "tokenizer.apply_chat_template(…, add_generation_prompt=True).",
            late=not symptom_of(question),  # no template makes two calls of one text differ
        )


def trapped(subject: Subject, finding: Finding, reported: str, question: Question) -> Remark | None:
    """The warnings of a finding that the reporter's own precision shows as well.

    generate() passes positions, so that a forward which counts padding explains none of its text. A
    loss that accumulation steps change is compared with one batch in a step of its own.
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
    except REFUSED:
        own = warned
    shown = [case for name, case in warned.items() if name in own and _shows(own[name])]
    counted = finding.probe == "padding" and question.generate > 0
    return replace(_trap(finding, shown), decides=not counted) if shown else None


def _shows(case: Measurement) -> bool:
    return case.expect != "skip" and (verdict_of(case) is not Verdict.PASS or not case.resolved)


def _trap(finding: Finding, warned: list[Measurement]) -> Remark:
    """The calls that mislead, what else changes the logits, and the calls that are as expected."""
    figures = [case for case in finding.cases if case.expect == "figure" and case.max_abs]
    moved = "; ".join(f"{case.name}: {describe(case)}" for case in [*warned, *figures])
    passed = "; ".join(
        case.name for case in finding.cases if case.judged and verdict_of(case) is Verdict.PASS
    )
    return Remark(
        title="these calls request something else than they seem to: "
        + ", ".join(case.name for case in warned),
        words=f"{moved}. Calls that behave as expected: {passed}." if passed else f"{moved}.",
        decides=True,
    )
