"""What the code of an issue compares, read off its syntax over several statements: losses, training
mode with evaluation, embeddings with ids. Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from attncheck.triage.issue_syntax import called_name, of_a_model

CONFIG, EMBEDS = "GenerationConfig", "inputs_embeds"
LEARNING = ("backward", "step", "Trainer", "SFTTrainer")


def comparisons(found: Sequence[ast.stmt]) -> dict[str, Any]:
    """The settings of an issue that such code stands for."""
    nodes = [node for statement in found for node in ast.walk(statement)]
    settings: dict[str, Any] = {}
    if _is_called_in_training(found):
        settings["training_mode"] = True
    if embeds := _embedded(nodes):
        settings["embeds"] = embeds
    if _labels_are_ids(nodes) and not _learns(nodes):
        settings["padding_labelled"] = True
    losses = any(isinstance(node, ast.Attribute) and node.attr == "loss" for node in nodes)
    if losses and not _learns(nodes):
        settings["losses"] = True
    return settings


def idle_configs(found: Sequence[ast.stmt]) -> set[int]:
    """The generation configs, by the id of their node, that are given a name which no call of
    generate() and no model gets, although the code calls generate().
    """
    nodes = [node for statement in found for node in ast.walk(statement)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if not any(called_name(each) == "generate" for each in calls):
        return set()
    names = [node for node in nodes if isinstance(node, ast.Name)]
    read = {each.id for each in names if isinstance(each.ctx, ast.Load)}
    made = [node for node in nodes if isinstance(node, ast.Assign)]
    return {
        id(node.value)
        for node in made
        if called_name(node.value) == CONFIG
        and all(isinstance(each, ast.Name) and each.id not in read for each in node.targets)
    }


def _labels_are_ids(nodes: Sequence[ast.AST]) -> bool:
    """Whether padded ids are passed as labels, as they are."""
    made = [node for node in nodes if isinstance(node, ast.Assign)]
    for node in nodes:
        given = node.keywords if isinstance(node, ast.Call) else []
        for value in (each.value for each in given if each.arg == "labels"):
            name, _, field = ast.unparse(value).rstrip("'\"])").partition("input_ids")
            before = [each for each in made if each.lineno <= value.lineno]
            home = [each for each in before if ast.unparse(each.targets[0]) == name.strip(".['\"")]
            if name and not field and home and _pads(max(home, key=lambda each: each.lineno)):
                return True
    return False


def _pads(statement: ast.Assign) -> bool:
    """Whether a tokenizer pads what it returns here."""
    given = getattr(statement.value, "keywords", [])
    return any(each.arg == "padding" and ast.unparse(each.value) != "False" for each in given)


def _learns(nodes: Sequence[ast.AST]) -> bool:
    return any(called_name(node) in LEARNING for node in nodes)


def _is_called_in_training(found: Sequence[ast.stmt]) -> bool:
    """Whether a model is called between `train()` and `eval()` by code that trains nothing."""
    nodes = [node for statement in found for node in ast.walk(statement)]
    if _learns(nodes):
        return False
    active = False
    for name, node in _calls(found):
        if name in ("train", "eval") and of_a_model(node):
            active = name == "train"
        elif active and name in ("model", "generate", "forward"):
            return True
    return False


def _calls(found: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.Call]]:
    for statement in found:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield called_name(node), node


def _embedded(nodes: Sequence[ast.AST]) -> str:
    """`module` where embeddings are passed in the place of ids, `table` where they are looked up in
    the weight itself; "" where none are passed.
    """
    given = [
        each.value
        for node in nodes
        if isinstance(node, ast.Call)
        for each in node.keywords
        if each.arg == EMBEDS
    ]
    names = {each.id for each in given if isinstance(each, ast.Name)}
    made = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id in names for each in node.targets)
    ]
    if not given:
        return ""
    return "table" if any(map(_of_the_weight, (*given, *made))) else "module"


def _of_the_weight(node: ast.expr) -> bool:
    """Whether rows of a weight are taken: `F.embedding(ids, w)`, or a weight that is indexed."""
    inner = list(ast.walk(node))
    weights = any(isinstance(each, ast.Attribute) and each.attr == "weight" for each in inner)
    by_call = any(called_name(each) == "embedding" for each in inner)
    return weights and (by_call or isinstance(node, ast.Subscript))
