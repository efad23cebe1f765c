"""Read the code of an issue as Python: which prompts, and which settings of the call.

Nothing is run: expressions of constants and of names that were assigned before have a value, any
other has none. Standard library only.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any, final

from attncheck.triage.issue_comparisons import comparisons, idle_configs
from attncheck.triage.issue_habits import habits
from attncheck.triage.issue_syntax import (
    UNKNOWN,
    called_name,
    computed,
    is_chat,
    is_text,
    keywords_of,
    of_a_model,
    statements,
    words_of_turn,
)
from attncheck.triage.issue_tables import (
    ASSISTED,
    CACHES,
    CHANGING,
    DTYPES,
    QUANTIZED,
    TOKENIZING,
    WARPING,
)

PROMPT_NAMES = re.compile(
    r"prompt|text|question|sentence|inputs?$|messages?$|conversation|batch", re.I
)
NO_TOKENS = re.compile(r"position|mask|label|seq|type|len", re.I)
"""Names of tensors that hold no token ids."""
TENSORS = ("tensor", "LongTensor", "IntTensor", "as_tensor", "array")
TEMPLATE = "apply_chat_template"


@final
@dataclass
class CodeReader:
    """Collects settings and prompts out of code."""

    settings: dict[str, Any] = field(default_factory=dict)
    prompts: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    turns: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    ids: list[tuple[int, ...]] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    changing: dict[str, Any] = field(default_factory=dict)
    mappings: dict[str, dict[str, ast.expr]] = field(default_factory=dict)
    loops: dict[str, list[Any]] = field(default_factory=dict)
    pipes: set[str] = field(default_factory=set)
    together: set[bool] = field(default_factory=set)
    implementations: list[str] = field(default_factory=list)
    generates: bool = False
    idle: set[int] = field(default_factory=set)
    cached: set[bool] = field(default_factory=set)
    masked: set[bool] = field(default_factory=set)

    def code(self, block: str) -> None:
        """One block: statements that parse, each by itself."""
        found = list(statements(block))
        self.idle |= idle_configs(found)
        for statement in found:
            for node in ast.walk(statement):
                self._node(node)
            self.settings.update(habits(statement))
        self.settings.update(comparisons(found))

    def _node(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assigned(node.targets[0], node.value)
        elif isinstance(node, ast.For):
            self._each(node.target, self._value(node.iter))
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            for each in node.generators:
                self._each(each.target, self._value(each.iter))
        elif isinstance(node, ast.Call):
            self._called(node)

    def _each(self, target: ast.expr, found: Any) -> None:
        """A loop: its name stands for the first of what it goes over."""
        if isinstance(target, ast.Name) and isinstance(found, list) and found:
            self.values[target.id] = found[0]
            self.loops[target.id] = found
            if PROMPT_NAMES.search(target.id):
                self._prompts(found)

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        found = self._value(value)
        if isinstance(target, ast.Attribute):
            self._setting(target.attr, value)
        elif isinstance(target, ast.Name):
            self._named(target.id, value, found)

    def _named(self, name: str, value: ast.expr, found: Any) -> None:
        """What a name stands for from here on."""
        if called_name(value) == "pipeline":
            self.pipes.add(name)
        if mapping := keywords_of(value):
            self.mappings[name] = mapping
        if not NO_TOKENS.search(name):
            self._tokens(value, found)
        if found is not None:
            self.values[name] = found
            if PROMPT_NAMES.search(name):
                self._prompts(found)

    def _tokens(self, value: ast.expr, found: Any) -> None:
        """Ids in a tensor, or the shape of drawn ones."""
        if called_name(value) == "randint" and isinstance(value, ast.Call):
            given = {each.arg: each.value for each in value.keywords}
            shapes = [self._value(each) for each in (*value.args, given.get("size")) if each]
            sizes = next((each for each in shapes if isinstance(each, list)), [])
            if sizes and all(isinstance(each, int) for each in sizes):
                self.shape = tuple(sizes[-2:]) if len(sizes) > 1 else (1, sizes[0])
        elif called_name(value) in TENSORS:
            rows = found if isinstance(found, list) else []
            rows = rows if rows and isinstance(rows[0], list) else [rows]
            texts = [tuple(row) for row in rows if is_text(row)]
            self.ids = max(self.ids, texts, key=lambda each: sum(map(len, each)))

    def _called(self, node: ast.Call) -> None:
        name = called_name(node)
        if name == "dict" or id(node) in self.idle:
            return  # what it holds counts where it is passed
        given = {each.arg: each.value for each in node.keywords if each.arg}
        for each in node.keywords:
            passed = getattr(each.value, "id", "") if each.arg is None else ""
            given |= self.mappings.get(passed, {})
        for argument, value in given.items():
            self._setting(argument, value)
        self._method(name, node, given)
        if name == "append" and isinstance(node.func, ast.Attribute) and node.args:
            self._appended(node.func.value, self._value(node.args[0]))
        elif "tok" in name.lower() or name in TOKENIZING:
            self._tokenized(node, given)
        elif name in self.pipes or called_name(node.func) == "pipeline":
            self._piped(node, given)
        if name in QUANTIZED:
            self.settings["quantised"] = QUANTIZED[name]

    def _appended(self, home: ast.expr, found: Any) -> None:
        """A list that grows: a conversation, mostly."""
        known = self._value(home)
        if isinstance(known, list) and found is not None:
            known.append(found)

    def _piped(self, node: ast.Call, given: dict[str, ast.expr]) -> None:
        """A call of a pipeline: a text, or a conversation, to go on with."""
        self.generates = True
        self.settings.setdefault("piped", "do_sample" not in given)
        value = self._read(node)
        self.settings.update({"chat": True, "unopened": False} if is_chat(value) else {})

    def _method(self, name: str, node: ast.Call, given: dict[str, ast.expr]) -> None:
        if name == "generate":
            self.generates = True
            if isinstance(limit := self._known(given, "max_length"), int):
                self.settings["max_length"] = limit
        if name in ("generate", "forward", "model"):
            self._model_called(node, given)
        self._prepared(name, node, given)

    def _model_called(self, node: ast.Call, given: dict[str, ast.expr]) -> None:
        """Whether a mask is passed, and ids that stand in the call itself."""
        given_all = any(each.arg is None for each in node.keywords) or len(node.args) > 1
        self.masked.add(given_all or "attention_mask" in given)
        if called_name(given.get("attention_mask", node.func)) in ("ones", "ones_like"):
            self.settings["mask_of_ones"] = True
        for each in (*node.args[:1], *([given["input_ids"]] if "input_ids" in given else [])):
            self._tokens(each, self._value(each))

    def _prepared(self, name: str, node: ast.Call, given: dict[str, ast.expr]) -> None:
        """Caches, casts, modes and templates."""
        if name in CACHES:
            self.settings["cache"] = CACHES[name]
        elif name == "compile":
            self.settings["compiled"] = True
        elif name in ("half", "bfloat16", "double") and not node.args:
            self.settings["dtype"] = DTYPES[name]
        elif name == "to":
            for each in node.args:
                self._setting("dtype", each)
        elif name == TEMPLATE:
            self._template(given)
        elif name in ("train", "eval") and of_a_model(node):
            self.settings["training_mode"] = name == "train"

    def _template(self, given: dict[str, ast.expr]) -> None:
        self.settings["chat"] = True
        opened = given.get("add_generation_prompt")
        self.settings["unopened"] = opened is None or self._value(opened) is False
        if self._known(given, "tokenize") is False:
            self.settings.setdefault("retokenized", True)

    def _tokenized(self, node: ast.Call, given: dict[str, ast.expr]) -> None:
        """The text, and whether it is cut or gets special tokens."""
        self._read(node)
        if self._known(given, "add_special_tokens") is False:
            self.settings["retokenized"] = False
        limit = self._known(given, "max_length")
        if self._known(given, "truncation") and isinstance(limit, int):
            self.settings["truncated"] = limit
        if self._known(given, "padding") == "max_length" and isinstance(limit, int):
            self.settings["padded_to"] = limit

    def _read(self, node: ast.Call) -> Any:
        """The first argument: the text of a call, several texts, or one of each turn of a loop."""
        given = node.args[0] if node.args else None
        value = None if given is None else self._value(given)
        several = isinstance(value, list) and len(value) > 1 and not is_chat(value)
        padded = any(each.arg == "padding" for each in node.keywords)
        if not any(each.arg == "tokenize" for each in node.keywords):  # text goes on elsewhere
            self.together.add(several or padded or not value)
        self._prompts(self.loops.get(getattr(given, "id", ""), value))
        return value

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
        self._special(name, found)

    def _special(self, name: str, found: Any) -> None:
        """Arguments that change what is generated, or the weights."""
        if name in CHANGING and found != CHANGING[name]:
            self.changing[name] = found
        elif name in WARPING and found is not None:
            self.settings["warped"] = (*self.settings.get("warped", ()), (name, found))
        elif name in ASSISTED:
            self.settings["assisted"] = name
        elif name in QUANTIZED and found is True:
            self.settings["quantised"] = QUANTIZED[name]

    def _prompts(self, value: Any) -> None:
        """Texts, lists of texts, and conversations, known by what the user says last."""
        if isinstance(value, str) and value.strip():
            self.prompts.append(value)
        elif is_chat(value):
            turns = tuple((str(each["role"]), words_of_turn(each.get("content"))) for each in value)
            last = next((words for role, words in reversed(turns) if role == "user"), UNKNOWN)
            if last != UNKNOWN:
                self.prompts.append(last)
                self.turns[last] = turns
        elif isinstance(value, list):
            for each in value:
                self._prompts(each)

    def _value(self, node: ast.expr) -> Any:
        """The value of an expression of constants and known names; None for any other."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.values.get(node.id)
        if isinstance(node, ast.JoinedStr):
            parts = [
                each.value if isinstance(each, ast.Constant) else self._value(each.value)
                for each in node.values
                if isinstance(each, (ast.Constant, ast.FormattedValue))
            ]
            return None if None in parts else "".join(map(str, parts))
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(each) for each in node.elts]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {self._value(key): self._value(value) for key, value in pairs if key}
        if isinstance(node, ast.Call) and called_name(node) in TENSORS and node.args:
            return self._value(node.args[0])
        if isinstance(node, ast.BinOp):
            return computed(node.op, self._value(node.left), self._value(node.right))
        return None
