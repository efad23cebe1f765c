"""Read the text of an issue by plain rules: versions, dtype, attention, prompts and settings.

Code blocks are parsed as Python; what does not parse, and the prose around it, is searched for the
usual words. What was read is shown, so that the user can correct it by options. Standard library
only.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*\n(.*?)^[ \t]*(?:```|~~~)[ \t]*$", re.S | re.M)
DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
    "float64": "float64",
    "double": "float64",
}
CACHES = {
    "static": "static",
    "StaticCache": "static",
    "quantized": "quantised",
    "quantised": "quantised",
    "QuantizedCache": "quantised",
    "QuantoQuantizedCache": "quantised",
    "HQQQuantizedCache": "quantised",
    "dynamic": "dynamic",
    "DynamicCache": "dynamic",
    "offloaded": "offloaded",
    "OffloadedCache": "offloaded",
    "offloaded_static": "static offloaded",
}
LIBRARIES = ("transformers", "torch", "pytorch", "accelerate", "vllm", "peft", "python", "cuda")
MARKS = r"[`*\"' \t]*"
VERSION = re.compile(
    rf"\b({'|'.join(LIBRARIES)})\b{MARKS}(?:version)?{MARKS}(?:==|[:=@]|\bv|[ \t]){MARKS}\(?v?"
    r"(\d+\.\d+[\w.+-]*)",
    re.I,
)
DIFFERENCE = re.compile(
    r"(?:max(?:imum)?|largest)?[ _-]*(?:abs(?:olute)?)?[ _-]*diff(?:erence)?s?\b"
    r"[^\d\n]{0,24}?(\d+\.?\d*(?:e[-+]?\d+)?)",
    re.I,
)
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
PROMPT_NAMES = re.compile(
    r"prompt|text|question|sentence|inputs?$|messages?$|conversation|batch", re.I
)
QUOTED = re.compile(r"^[ \t>*-]*prompts?[^\n:]{0,20}:[ \t]*[`\"“'](.+?)[`\"”'][ \t]*$", re.I | re.M)
PROMPT_SIGN = re.compile(r"^[ \t]*(?:>>> ?|\.\.\. ?|In \[\d+\]: ?)")
LONGEST = 1 << 20


@final
@dataclass(frozen=True, kw_only=True)
class Issue:
    """What was read; the defaults stand for what the text does not say."""

    prompts: tuple[str, ...] = ()
    dtype: str = "auto"
    attn: str = ""
    padding: str = ""
    cache: str = ""
    generate: int = 0
    beams: int = 1
    chat: bool = False
    sampled: bool = False
    difference: float = 0.0
    versions: tuple[tuple[str, str], ...] = ()

    def lines(self) -> tuple[tuple[str, str], ...]:
        """(option that corrects it, value) of everything that was found."""
        shown = {
            "--prompt": "; ".join(map(_short, self.prompts)),
            "--dtype": self.dtype if self.dtype != "auto" else "",
            "--attn": self.attn,
            "--padding-side": self.padding,
            "--cache": self.cache,
            "--generate": str(self.generate or ""),
            "--beams": str(self.beams) if self.beams > 1 else "",
            "--chat": "the chat template" if self.chat else "",
            "do_sample": "True" if self.sampled else "",
            "--difference": f"{self.difference:g}" if self.difference else "",
            **dict(self.versions),
        }
        return tuple((name, value) for name, value in shown.items() if value)


def _short(prompt: str) -> str:
    text = " ".join(prompt.split())
    return repr(text if len(text) <= 40 else f"{text[:37]}…") + f" ({len(prompt)} characters)"


def read_issue(text: str) -> Issue:
    """What an issue's text says of the call that it reports."""
    found = _Reader()
    for block in FENCE.findall(text):
        found.code(block)
    prose = FENCE.sub("\n", text)
    settings: dict[str, Any] = dict(found.settings)
    for name, rules in WORDS.items():
        said = [value for pattern, value in rules if re.search(pattern, prose, re.I)]
        if len(said) == 1:
            settings.setdefault(name, said[0])
    prompts = tuple(dict.fromkeys(found.prompts)) or tuple(QUOTED.findall(prose))
    stated = [float(number) for number in DIFFERENCE.findall(prose)]
    versions = {name.lower(): number.rstrip(".") for name, number in VERSION.findall(text)}
    return replace(
        Issue(**settings),
        prompts=prompts,
        difference=max((each for each in stated if 0 < each < 1e3), default=0.0),
        versions=tuple(versions.items()),
    )


@final
@dataclass
class _Reader:
    """Collects settings and prompts out of code blocks."""

    settings: dict[str, Any] = field(default_factory=dict)
    prompts: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def code(self, block: str) -> None:
        """One block: statements that parse, each by itself."""
        for statement in _statements(block):
            for node in ast.walk(statement):
                self._node(node)

    def _node(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assigned(node.targets[0], node.value)
        elif isinstance(node, ast.Call):
            self._called(node)

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        found = self._value(value)
        if isinstance(target, ast.Attribute):
            self._setting(target.attr, value)
        elif isinstance(target, ast.Name) and found is not None:
            self.values[target.id] = found
            if PROMPT_NAMES.search(target.id):
                self._prompts(found)

    def _called(self, node: ast.Call) -> None:
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        for argument in node.keywords:
            self._setting(argument.arg or "", argument.value)
        if name in CACHES:
            self.settings["cache"] = CACHES[name]
        elif name in ("half", "bfloat16", "double") and not node.args:
            self.settings["dtype"] = DTYPES[name]
        elif name == "to":
            for each in node.args:
                self._setting("dtype", each)
        elif name == "apply_chat_template":
            self.settings["chat"] = True
        elif name == "generate":
            self.settings.setdefault("generate", 20)  # the library's default length
        if "tok" in name.lower() or name in ("encode", "apply_chat_template", "processor"):
            self._prompts(self._value(node.args[0]) if node.args else None)

    def _setting(self, name: str, value: ast.expr) -> None:
        found = self._value(value)
        word = value.attr if isinstance(value, ast.Attribute) else found
        if name in ("torch_dtype", "dtype") and isinstance(word, str):
            dtype = DTYPES.get(word.removeprefix("torch."))
            self.settings.update({"dtype": dtype} if dtype else {})
        elif name in ("attn_implementation", "_attn_implementation") and isinstance(found, str):
            self.settings["attn"] = found
        elif name == "padding_side" and found in ("left", "right"):
            self.settings["padding"] = found
        elif name == "cache_implementation" and found in CACHES:
            self.settings["cache"] = CACHES[found]
        elif name == "use_cache" and found is False:
            self.settings.setdefault("cache", "off")
        elif name in ("max_new_tokens", "num_beams") and isinstance(found, int):
            self.settings["generate" if name == "max_new_tokens" else "beams"] = found
        elif name == "do_sample" and isinstance(found, bool):
            self.settings["sampled"] = found

    def _prompts(self, value: Any) -> None:
        """Texts, lists of texts, and what the user says in a conversation."""
        if isinstance(value, str) and value.strip():
            self.prompts.append(value)
        elif isinstance(value, dict) and value.get("role") == "user":
            self._prompts(value.get("content"))
        elif isinstance(value, list):
            for each in value:
                self._prompts(each)

    def _value(self, node: ast.expr) -> Any:
        """The value of an expression of constants and known names; None for any other."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.values.get(node.id)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(each) for each in node.elts]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {self._value(key): self._value(value) for key, value in pairs if key}
        if isinstance(node, ast.BinOp):
            return _computed(node.op, self._value(node.left), self._value(node.right))
        return None


def _computed(operator: ast.operator, left: Any, right: Any) -> Any:
    """Texts and lists added and repeated, as long prompts are written."""
    if isinstance(operator, ast.Add):
        both = (isinstance(left, kind) and isinstance(right, kind) for kind in (str, list))
        return left + right if any(both) else None
    if isinstance(operator, ast.Mult):
        what, times = (left, right) if isinstance(right, int) else (right, left)
        known = isinstance(what, (str, list)) and isinstance(times, int)
        if known and 0 < times * len(what) <= LONGEST:
            return what * times
    return None


def _statements(block: str) -> Iterator[ast.stmt]:
    """The statements of a block, without prompts of a shell; of a broken one those that parse."""
    lines = [PROMPT_SIGN.sub("", line) for line in block.split("\n")]
    lines = ["" if line.lstrip().startswith(("!", "%", "$")) else line for line in lines]
    while lines:
        try:
            yield from ast.parse(_dedented(lines)).body
            return
        except (SyntaxError, ValueError, RecursionError) as error:
            at = getattr(error, "lineno", None) or 1
        broken = min(max(at, 1), len(lines))
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            yield from ast.parse(_dedented(lines[: broken - 1])).body
        lines = lines[broken:]


def _dedented(lines: list[str]) -> str:
    first = next((line for line in lines if line.strip()), "")
    margin = len(first) - len(first.lstrip())
    return "\n".join(line[margin:] if line[:margin].isspace() else line for line in lines)
