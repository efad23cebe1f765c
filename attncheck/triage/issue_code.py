"""Read the code of an issue as Python: which prompts, and which settings of the call.

Nothing is run: expressions of constants and of names that were assigned before have a value, any
other has none. Standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

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
PROMPT_NAMES = re.compile(
    r"prompt|text|question|sentence|inputs?$|messages?$|conversation|batch", re.I
)
PROMPT_SIGN = re.compile(r"^[ \t]*(?:>>> ?|\.\.\. ?|In \[\d+\]: ?)")
LONGEST = 1 << 20
TEMPLATE = "apply_chat_template"


@final
@dataclass
class CodeReader:
    """Collects settings and prompts out of code."""

    settings: dict[str, Any] = field(default_factory=dict)
    prompts: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    implementations: list[str] = field(default_factory=list)
    generates: bool = False
    cached: set[bool] = field(default_factory=set)
    masked: set[bool] = field(default_factory=set)

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
        given = {each.arg: each.value for each in node.keywords if each.arg}
        for argument, value in given.items():
            self._setting(argument, value)
        self._method(name, node, given)
        if "tok" in name.lower() or name in ("encode", TEMPLATE, "processor"):
            self._tokenized(node, given)

    def _method(self, name: str, node: ast.Call, given: dict[str, ast.expr]) -> None:
        if name in ("generate", "forward", "model"):
            given_all = any(each.arg is None for each in node.keywords) or len(node.args) > 1
            self.masked.add(given_all or "attention_mask" in given)
        if name in CACHES:
            self.settings["cache"] = CACHES[name]
        elif name in ("half", "bfloat16", "double") and not node.args:
            self.settings["dtype"] = DTYPES[name]
        elif name == "to":
            for each in node.args:
                self._setting("dtype", each)
        elif name == TEMPLATE:
            self._template(given)
        elif name == "generate":
            self.generates = True
            if isinstance(limit := self._known(given, "max_length"), int):
                self.settings["max_length"] = limit
        elif name in ("train", "eval") and _of_a_model(node):
            self.settings["training_mode"] = name == "train"

    def _template(self, given: dict[str, ast.expr]) -> None:
        self.settings["chat"] = True
        opened = given.get("add_generation_prompt")
        self.settings["unopened"] = opened is None or self._value(opened) is False
        if self._known(given, "tokenize") is False:
            self.settings.setdefault("retokenized", True)

    def _tokenized(self, node: ast.Call, given: dict[str, ast.expr]) -> None:
        """The text, and whether it is cut or gets special tokens."""
        self._prompts(self._value(node.args[0]) if node.args else None)
        if self._known(given, "add_special_tokens") is False:
            self.settings["retokenized"] = False
        limit = self._known(given, "max_length")
        if self._known(given, "truncation") and isinstance(limit, int):
            self.settings["truncated"] = limit

    def _known(self, given: dict[str, ast.expr], name: str) -> Any:
        return self._value(given[name]) if name in given else None

    def _setting(self, name: str, value: ast.expr) -> None:
        found = self._value(value)
        word = value.attr if isinstance(value, ast.Attribute) else found
        if name in ("torch_dtype", "dtype") and isinstance(word, str):
            dtype = DTYPES.get(word.removeprefix("torch."))
            self.settings.update({"dtype": dtype} if dtype else {})
        elif name in ("attn_implementation", "_attn_implementation") and isinstance(found, str):
            self.implementations.append(found)
        elif name == "padding_side" and found in ("left", "right"):
            self.settings["padding"] = found
        elif name == "cache_implementation" and found in CACHES:
            self.settings["cache"] = CACHES[found]
        elif name == "use_cache" and isinstance(found, bool):
            self.cached.add(found)
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


def _of_a_model(node: ast.Call) -> bool:
    """Whether it is `model.train()` and no trainer's call of that name."""
    home = node.func.value if isinstance(node.func, ast.Attribute) else None
    name = getattr(home, "id", getattr(home, "attr", ""))
    return bool(name) and "train" not in name.lower() and not node.args


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
