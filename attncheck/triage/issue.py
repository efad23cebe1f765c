"""Read the text of an issue by plain rules: versions, dtype, attention, prompts and settings.

Code is parsed as Python, in blocks or not; what does not parse, and the prose around it, is
searched for the usual words. What was read is shown, so that the user can correct it by options.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

from attncheck.triage.issue_code import CodeReader
from attncheck.triage.issue_words import (
    CLAUSES,
    ENDLESS,
    ENGINE,
    KINDS,
    LOST,
    QUOTED,
    RIGHT,
    SHORT,
    SURE,
    UNVARIED,
    WORDS,
)

FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*\n(.*?)(?:^[ \t]*(?:```|~~~)[ \t]*$|\Z)", re.S | re.M)
LIBRARIES = ("transformers", "torch", "pytorch", "accelerate", "vllm", "peft", "python", "cuda")
MARKS = r"[`*\"' \t]*"
VERSION = re.compile(
    rf"\b({'|'.join(LIBRARIES)})\b{MARKS}(?:version)?{MARKS}(?:\([^)\n\d]*\))?"
    rf"(?:==|[:=@]|\bv|[ \t]){MARKS}\(?v?(\d+\.\d+[\w.+-]*)",
    re.I,
)
DIFFERENCE = re.compile(
    r"(?:max(?:imum)?|largest)?[ _-]*(?:abs(?:olute)?)?[ _-]*diff(?:erence)?s?\b"
    r"[^\d\n]{0,24}?(\d+\.?\d*(?:e[-+]?\d+)?)",
    re.I,
)
PRINTED = re.compile(
    r"abs\(\)\s*\.max\(\)[^\n#]*(?:#|\n\s*(?:#|tensor\())[^\d\n]{0,24}"
    r"(\d+\.?\d*(?:e[-+]?\d+)?)"
)
"""The difference that a line of code printed, in a comment or below."""
CODE_SIGN = re.compile(r"[=(\[\])]|^[ \t]*[\"'].*[\"'],?[ \t]*$")
USUAL_LENGTH = 20
"""Tokens that generate() adds where no length is passed."""


@final
@dataclass(frozen=True, kw_only=True)
class Issue:
    """What was read; the defaults stand for what the text does not say.

    `max_length` counts prompt and answer, as in generate(); `default_length` says that no length
    was passed. `truncated` is the length to which the tokenizer cuts prompts, `padded_to` that to
    which it pads each of them, `retokenized` whether it gets the text of the chat template,
    `unopened` whether the assistant's turn was not opened. `unmasked` says that no call gets a
    mask, `engine` that another engine is compared with. `symptom` is what the words stand for,
    `short` and `endless` what they complain of.

    `mask_of_ones` says that the code writes one by hand, `lost` that numbers are not finite.

    `turns` are the conversations that end with a prompt, `ids` sequences of ids, `shape` (B, T) of
    drawn ones; `singly` says that each prompt has a call of its own. `changing` are arguments of
    generate() that change its logits, `piped` says that a pipeline chooses whether to sample,
    `warped` those that count only where it samples, `unvaried` that the text never changes,
    `embeds` how embeddings are passed in the place of ids, `losses` that losses are compared,
    `padding_labelled` that the labels are the padded ids themselves, and
    `both_ways` that prompts are called alone and together.
    `reused_cache` that prompts share one cache, and `pooled` that outputs are averaged over padding
    ("mean") or taken from the last position ("last").
    """

    prompts: tuple[str, ...] = ()
    dtype: str = "auto"
    attn: str = ""
    padding: str = ""
    cache: str = ""
    generate: int = 0
    max_length: int = 0
    default_length: bool = False
    beams: int = 1
    chat: bool = False
    unopened: bool = False
    retokenized: bool = False
    truncated: int = 0
    padded_to: int = 0
    unmasked: bool = False
    mask_of_ones: bool = False
    sampled: bool = False
    training_mode: bool = False
    difference: float = 0.0
    symptom: str = ""
    short: bool = False
    endless: bool = False
    engine: bool = False
    lost: bool = False
    text: str = field(default="", compare=False, repr=False)
    versions: tuple[tuple[str, str], ...] = ()
    turns: tuple[tuple[tuple[str, str], ...], ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()
    shape: tuple[int, ...] = ()
    changing: tuple[tuple[str, Any], ...] = ()
    singly: bool = False
    piped: bool = False
    compiled: bool = False
    assisted: str = ""
    quantised: str = ""
    reused_cache: bool = False
    warped: tuple[tuple[str, Any], ...] = ()
    unvaried: bool = False
    embeds: str = ""
    losses: bool = False
    padding_labelled: bool = False
    both_ways: bool = False
    pooled: str = ""

    def conversation(self, prompt: str) -> tuple[tuple[str, str], ...]:
        """The turns that end with a prompt; the prompt alone where none are known."""
        known = (each for each in self.turns if ("user", prompt) in each)
        return next(known, (("user", prompt),))

    @property
    def sequences(self) -> int:
        """How many sequences the call has."""
        return len(self.prompts) or len(self.ids) or (self.shape[0] if self.shape else 0)

    @property
    def sure(self) -> bool:
        """Whether the words name the symptom even where the call shows another."""
        return self.symptom in SURE

    def lines(self) -> tuple[tuple[str, str], ...]:
        """(option that corrects it, value) of everything that was found."""
        shown = {
            "--symptom": self.symptom,
            "--prompt": "; ".join(map(_short, self.prompts)),
            "--dtype": self.dtype if self.dtype != "auto" else "",
            "--attn": self.attn,
            "--padding-side": self.padding,
            "--cache": self.cache,
            "--generate": "" if self.max_length else str(self.generate or ""),
            "max_length": str(self.max_length or ""),
            "truncated to": str(self.truncated or ""),
            "padded to": str(self.padded_to or ""),
            "--beams": str(self.beams) if self.beams > 1 else "",
            "--chat": "the chat template" if self.chat else "",
            "--compile": "torch.compile" if self.compiled else "",
            "do_sample": "True" if self.sampled else "",
            "turns": ", ".join(role for role, _ in self.turns[0]) if self.turns else "",
            "ids": ", ".join(f"{len(row)} tokens" for row in self.ids),
            "drawn ids": " x ".join(map(str, self.shape)),
            "generate()": ", ".join(f"{name}={value}" for name, value in self.changing),
            "not run": ", ".join(self._left_out()),
            "--difference": f"{self.difference:g}" if self.difference else "",
            **dict(self.versions),
        }
        return tuple((name, value) for name, value in shown.items() if value)

    def _left_out(self) -> Iterator[str]:
        """What the report does and this search does not."""
        if self.assisted:
            yield f"{self.assisted}="
        if self.quantised:
            yield f"{self.quantised} weights"


def _short(prompt: str) -> str:
    text = " ".join(prompt.split())
    return repr(text if len(text) <= 40 else f"{text[:37]}…") + f" ({len(prompt)} characters)"


def read_issue(text: str) -> Issue:
    """What an issue's text says of the call that it reports."""
    prose = FENCE.sub("\n", text)
    found = CodeReader()
    for block in (*FENCE.findall(text), *_outside_blocks(prose)):
        found.code(block)
    prompts = tuple(dict.fromkeys(found.prompts))
    versions = {name.lower(): number.rstrip(".") for name, number in VERSION.findall(text)}
    return replace(
        Issue(**_settings(found, prose)),
        prompts=prompts or (() if found.ids or found.shape else _quoted(prose)),
        turns=tuple(found.turns[each] for each in prompts if each in found.turns),
        ids=() if prompts else tuple(found.ids),
        shape=() if prompts or found.ids else found.shape,
        singly=found.together == {False},
        both_ways=found.together == {False, True},
        unvaried=bool(UNVARIED.search(prose)),
        changing=tuple(found.changing.items()),
        difference=_difference(text, prose),
        symptom=_symptom(found, text),
        short=bool(SHORT.search(prose)),
        endless=bool(ENDLESS.search(prose)),
        engine=bool(ENGINE.search(prose)),
        lost=bool(LOST.search(text)),
        text=text,
        versions=tuple(versions.items()),
    )


def _outside_blocks(prose: str) -> Iterator[str]:
    """The lines that may be code although no block marks them."""
    lines = [line for line in prose.split("\n") if CODE_SIGN.search(line)]
    yield "\n".join(line.strip() for line in lines)


def _settings(found: CodeReader, prose: str) -> dict[str, Any]:
    """The settings of the code, and what it leaves open as the prose says it."""
    settings: dict[str, Any] = dict(found.settings)
    implementations = set(found.implementations)
    if len(implementations) == 1:
        settings["attn"] = found.implementations[0]
    blamed = "\n".join(each for each in CLAUSES.split(prose) if not RIGHT.search(each))
    for name, rules in WORDS.items():
        text = blamed if name == "dtype" else prose
        said = [value for pattern, value in rules if re.search(pattern, text, re.I)]
        if len(said) == 1 and not (name == "attn" and implementations):
            settings.setdefault(name, said[0])
    settings["unmasked"] = found.masked == {False}
    if found.cached == {False}:
        settings.setdefault("cache", "off")
    if found.generates and "generate" not in settings:
        settings["generate"] = USUAL_LENGTH
        settings["default_length"] = "max_length" not in settings
    return settings


def _quoted(prose: str) -> tuple[str, ...]:
    prompts = (text for pattern in QUOTED for text in pattern.findall(prose))
    return tuple(dict.fromkeys(prompts))


def _difference(text: str, prose: str) -> float:
    """The largest difference of logits that the report states."""
    stated = [float(number) for number in (*DIFFERENCE.findall(prose), *PRINTED.findall(text))]
    return max((each for each in stated if 0 < each < 1e3), default=0.0)


def _symptom(found: CodeReader, text: str) -> str:
    if len(set(found.implementations)) > 1:
        return "implementation"
    return next((name for name, pattern in KINDS if re.search(pattern, text, re.I)), "")
