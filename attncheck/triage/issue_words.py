"""The words of an issue's prose and what they stand for. Standard library only."""

from __future__ import annotations

import re

WORDS: dict[str, tuple[tuple[str, str], ...]] = {
    "dtype": (
        (r"\bb(?:f|float)16\b", "bfloat16"),
        (r"\b(?:fp|float)16\b|\bhalf precision", "float16"),
        (r"\b(?:fp|float)32\b", "float32"),
    ),
    "attn": (
        (r"\bflex[ _]attention", "flex_attention"),
        (r"\bsdpa\b", "sdpa"),
        (r"\beager\b", "eager"),
    ),
    "padding": (
        (r"\bleft[ -]pad|padding[ _]side\W{1,6}left|pad\w* on the left", "left"),
        (r"\bright[ -]pad|padding[ _]side\W{1,6}right|pad\w* on the right", "right"),
    ),
    "cache": (
        (r"\bstatic[ _]?(?:kv[ _-]?)?cache", "static"),
        (r"\bquanti[sz]ed[ _]?(?:kv[ _-]?)?cache", "quantised"),
    ),
}
"""What prose says of each setting. Where it names two values, as comparisons do, none is taken."""
QUOTED = (
    re.compile(r"\bprompts?\b[^\n:]{0,20}:[ \t]*[`\"“'](\S.*?)[`\"”'][ \t.,;)]*$", re.I | re.M),
    re.compile(r"\bprompt\b[^\n:`\"“]{0,20}:?[ \t]*[`\"“](\w[^`\"”\n]* [^`\"”\n]*)[`\"”]", re.I),
)
KINDS = (
    ("packing", r"\bpack(?:ed|ing)?\b|padding[- ]free|\bvarlen\b|cu_seqlens"),
    (
        "training",
        r"\b(?:train\w*|fine[- ]?tun\w*|sft)\b.*\bloss\b|\bloss\b.*\b(?:train\w*|fine[- ]?tun\w*)"
        r"|gradient[ _]accumulation|grad(?:ient)?[ _]norm",
    ),
    (
        "implementation",
        r"\b(?:sdpa|eager|flash|flex)\w*\b.{0,40}\b(?:vs\.?|versus|and|than|but|with)\b.{0,20}"
        r"\b(?:sdpa|eager|flash|flex)",
    ),
    (
        "long",
        r"\blong(?:er)? (?:prompts?|contexts?|inputs?|texts?|sequences?|generations?|answers?)\b|"
        r"\b(?:after|beyond|past|more than|longer than|around) (?:about |~ ?)?\d+ tokens",
    ),
    ("cache", r"use_cache|past_key_values|\bkv[ _-]?cach|\bcach(?:e|ed|ing)\b"),
    ("padding", r"\bpad(?:s|ded|ding)?\b"),
    ("batch", r"\bbatch"),
)
"""The words of a symptom; the first that occurs is taken."""
SURE = ("packing", "training", "implementation")
"""Symptoms that the words name even where the call itself shows another."""
SHORT = re.compile(
    r"\b(?:too|very) short\b|\bshorter\b.{0,16}\b(?:answers?|outputs?|responses?|texts?)\b|"
    r"\btruncat|\bcut[ -]?off|\bincomplete|\bempty\b|\bnothing (?:is|was) generated|"
    r"\b(?:only|just)\b.{0,24}\b(?:words?|tokens?)\b|"
    r"\bstops? (?:early|after|too|generat)|\bends? (?:early|abruptly|mid)",
    re.I,
)
"""Complaints about the length of an answer."""
ENDLESS = re.compile(
    r"\b(?:never|doesn'?t|does not|won'?t|not) (?:stops?|ends?|terminat)|\bkeeps? (?:on )?generat|"
    r"\bwithout (?:stopping|end)|\bendless|\bno eos\b",
    re.I,
)
"""Complaints about an answer that does not end."""
UNVARIED = re.compile(
    r"\b(?:temperature|top_[pk]|min_p)\b.*\b(?:same|identical|no (?:effect|difference)|ignored?|"
    r"n[o']t (?:do|change)\w*|without effect|nothing)|"
    r"\b(?:same|identical|no (?:effect|difference)|ignor\w+|nothing)\b.*\b(?:temperature|top_[pk])",
    re.I | re.S,
)
"""Complaints about settings of sampling that change nothing."""
LOST = re.compile(r"\bnans?\b|isnan|isfinite|\binfs?\b", re.I)
"""Complaints about numbers that are not finite."""
ENGINE = re.compile(r"\bvllm|\bllama[._]?cpp|\bollama|\bsglang|\bTGI\b|\bTensorRT|\bmlx\b", re.I)
CLAUSES = re.compile(r"[.,;:!?\n](?:\s|$)|\b(?:but|while|whereas|although)\b", re.I)
RIGHT = re.compile(
    r"\b(?:fine|work(?:s|ed)?|correct(?:ly)?|perfect(?:ly)?|good|ok(?:ay)?)\b|"
    r"\bno (?:issue|problem)s?\b",
    re.I,
)
"""Words of a clause about what is right: its dtype is not the one that is reported."""
