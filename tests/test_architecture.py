"""The shape of the house, held by a test: imports point down, no cycles, small files, small
functions, light start.
"""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "attncheck").rglob("*.py")) + sorted((ROOT / "probes").rglob("*.py"))
LEVELS = (
    ("attncheck.cli", "attncheck.__main__"),
    ("attncheck.pytest_plugin", "attncheck.api"),
    ("attncheck.run", "attncheck.triage", "attncheck.compare"),
    ("attncheck.suite", "attncheck.report", "attncheck.diagnosis"),
    ("attncheck.probing", "attncheck.faults"),
    ("attncheck.judge", "attncheck.targets"),
    ("attncheck.distributed", "attncheck.model"),
    ("attncheck.attention",),
    ("attncheck.numerics",),
    ("attncheck.core",),
)
FILE_LINES = 300
FUNCTION_LINES = 60


def module_of(path: Path) -> str:
    root = ROOT / "probes" if "probes" in path.relative_to(ROOT).parts[:1] else ROOT
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, at_import_time: bool) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in _nodes(tree, at_import_time):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def _nodes(tree: ast.AST, at_import_time: bool) -> list[ast.AST]:
    if not at_import_time:
        return list(ast.walk(tree))
    nodes: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not typing_only and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes += [node, *_nodes(node, at_import_time)]
    return nodes


def level(module: str) -> int | None:
    for depth, names in enumerate(LEVELS):
        if any(module == name or module.startswith(name + ".") for name in names):
            return depth
    return None


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_point_down(path: Path) -> None:
    here = level(module_of(path))
    if here is None:
        return
    up = {
        name
        for name in imports_of(path, True)
        if (there := level(name)) is not None and there < here
    }
    assert not up, f"{module_of(path)} imports upwards: {sorted(up)}"


def test_every_module_of_the_engine_has_a_level() -> None:
    homeless = [
        module_of(p)
        for p in SOURCES
        if level(module_of(p)) is None and not module_of(p).startswith("attncheck_probes")
    ]
    assert homeless == ["attncheck"]


def test_there_are_no_import_cycles() -> None:
    modules = {module_of(path): path for path in SOURCES}
    graph = {
        name: {other for other in imports_of(path, True) if other in modules and other != name}
        for name, path in modules.items()
    }
    done: set[str] = set()

    def walk(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"cycle: {' -> '.join([*above[above.index(name) :], name])}"
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*above, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def test_the_engine_names_no_probe_file() -> None:
    naming = [
        module_of(p)
        for p in SOURCES
        if "attncheck_probes" in " ".join(imports_of(p, False)) and "probes" not in p.parts
    ]
    assert naming == []


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_files_and_functions_are_small_and_documented(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{path} says not what it is for"
    assert len(text.splitlines()) <= FILE_LINES
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 <= FUNCTION_LINES, (
                f"{path}: {node.name} is too long"
            )


def test_most_functions_are_short() -> None:
    lengths = [
        node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.end_lineno
    ]
    assert statistics.median(lengths) < 10


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["run", "--help"],
        ["triage", "--help"],
        ["probes"],
        ["explain", "decode-paths"],
        ["--version"],
    ],
)
def test_light_commands_load_neither_torch_nor_transformers(command: list[str]) -> None:
    code = (
        "import sys\nfrom attncheck.__main__ import main\n"
        f"code = main({command!r})\n"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert code == 0 and not heavy, (code, heavy)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_probe_files_have_their_five_headings() -> None:
    headings = ["What it checks", "Why it matters", "How it measures", "False alarms", "References"]
    for path in sorted((ROOT / "probes" / "attncheck_probes").glob("*.py")):
        if path.name.startswith("_"):
            continue
        lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
        assert [line for line in lines if line in headings] == headings, path.name
        assert 80 <= len(path.read_text(encoding="utf-8").splitlines()) <= 180, path.name
