"""The structure of the tree: imports point down without cycles, packages, files and functions stay
small, and code, tests, probes and faults have each other's names.
"""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROBES = ROOT / "probes" / "attncheck_probes"
FAULTS = ROOT / "attncheck" / "faults"
TESTS = ROOT / "tests"
SOURCES = sorted((ROOT / "attncheck").rglob("*.py")) + sorted(PROBES.rglob("*.py"))
LEVELS = (
    ("attncheck.cli", "attncheck.__main__"),
    ("attncheck.pytest_plugin", "attncheck.api"),
    ("attncheck.run", "attncheck.triage", "attncheck.compare"),
    ("attncheck.golden",),
    ("attncheck.suite", "attncheck.report", "attncheck.diagnosis", "attncheck.engines"),
    ("attncheck.observation",),
    ("attncheck.probing", "attncheck.faults"),
    ("attncheck.judge", "attncheck.targets", "attncheck.media"),
    ("attncheck.distributed",),
    ("attncheck.model",),
    ("attncheck.attention",),
    ("attncheck.numerics",),
    ("attncheck.core",),
)
"""Who stands above whom. `attncheck` itself and the probes stand above all of them."""
COLUMNS = 100
FILE_LINES = 300
PROBE_LINES = 180
FUNCTION_LINES = 60
PACKAGE_SHARE = 0.15
TOGETHER = {
    "cli/test_suite_commands.py",
    "distributed/test_tensor_parallel.py",
    "media/test_planted.py",
    "suite/test_samples.py",
    "triage/test_reports.py",
}
"""Tests of several modules at once."""
HEADINGS = ["What it checks", "Why it matters", "How it measures", "False alarms", "References"]


def module_of(path: Path) -> str:
    root = PROBES.parent if path.is_relative_to(PROBES) else ROOT
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The modules that a file imports anywhere: in functions and for types too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = names & MODULES.keys()
            found |= submodules | ({node.module} if names - submodules else set())
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found)


def level(module: str) -> int:
    for depth, names in enumerate(LEVELS):
        if any(module == name or module.startswith(name + ".") for name in names):
            return depth
    return -1


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def probe_names() -> set[str]:
    """The probes by module name: one file or one folder each."""
    found = (path for path in PROBES.iterdir() if path.is_dir() or path.suffix == ".py")
    return {path.stem for path in found if not path.name.startswith("_")}


def fault_files() -> list[Path]:
    files = (path for path in sorted(FAULTS.glob("*/*.py")) if path.parent.name != "engine")
    return [path for path in files if not path.name.startswith("_")]


def test_every_module_of_the_engine_has_a_level() -> None:
    homeless = [name for name in MODULES if level(name) < 0]
    assert [name for name in homeless if not name.startswith("attncheck_probes")] == ["attncheck"]


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_point_down(path: Path) -> None:
    here = level(module_of(path))
    up = {name for name in imports_of(path) & MODULES.keys() if level(name) < here}
    assert up <= {"attncheck"} - {module_of(path)}, f"{module_of(path)} imports {sorted(up)}"


def test_there_are_no_import_cycles() -> None:
    graph = {
        name: {other for other in imports_of(path) if other in MODULES and other != name}
        for name, path in MODULES.items()
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


@pytest.mark.parametrize("path", sorted(PROBES.rglob("*.py")), ids=module_of)
def test_probes_import_the_public_surface_only(path: Path) -> None:
    own = {name for name in imports_of(path) if name.partition(".")[0] == "attncheck"}
    assert own <= {"attncheck.probing"}


def test_the_engine_names_no_probe() -> None:
    naming = {
        name
        for name, path in MODULES.items()
        if name.startswith("attncheck.")
        and any(other.startswith("attncheck_probes") for other in imports_of(path))
    }
    assert naming == set()


def test_the_public_surface_is_what_probes_use() -> None:
    import attncheck.probing

    offered = set(attncheck.probing.__all__)
    used = {
        alias.name
        for path in PROBES.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module == "attncheck.probing"
        for alias in node.names
    }
    assert used == offered
    assert all(hasattr(attncheck.probing, name) for name in offered)


def test_no_package_is_larger_than_its_share() -> None:
    sizes: Counter[str] = Counter()
    for path in SOURCES:
        home = path.relative_to(ROOT).parts[:2]
        sizes["attncheck" if home[-1].endswith(".py") else ".".join(home)] += len(lines_of(path))
    share = {name: size / sizes.total() for name, size in sizes.items()}
    assert {name: round(part, 3) for name, part in share.items() if part > PACKAGE_SHARE} == {}


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_files_and_functions_are_small_and_documented(path: Path) -> None:
    assert path.stem != "utils"
    assert ast.get_docstring(tree_of(path)), f"{path} has no docstring"
    assert len(lines_of(path)) <= (PROBE_LINES if path.is_relative_to(PROBES) else FILE_LINES)
    assert [number for number, line in enumerate(lines_of(path), 1) if len(line) > COLUMNS] == []
    assert [each.name for each in functions_of(path) if length_of(each) > FUNCTION_LINES] == []


def test_most_functions_are_short() -> None:
    lengths = [length_of(each) for path in SOURCES for each in functions_of(path)]
    assert statistics.median(lengths) < 10


@pytest.mark.parametrize(
    "command",
    [["--help"], ["run", "--help"], ["probes"], ["explain", "decode-paths"], ["--version"]],
)
def test_light_commands_load_neither_torch_nor_transformers(command: list[str]) -> None:
    code = (
        "import sys\nfrom attncheck.__main__ import main\n"
        f"code = main({command!r})\n"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert code == 0 and not heavy, (code, heavy)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("name", sorted(probe_names()))
def test_each_probe_is_documented_under_five_headings(name: str) -> None:
    path = PROBES / name / "__init__.py" if (PROBES / name).is_dir() else PROBES / f"{name}.py"
    lines = (ast.get_docstring(tree_of(path)) or "").splitlines()
    assert [line for line in lines if line in HEADINGS] == HEADINGS


def test_each_probe_is_installed_and_has_one_file_or_folder_of_tests() -> None:
    from attncheck.core import registry

    installed = {entry.module.split(".")[1] for entry in registry.documented().values()}
    assert installed == probe_names()
    tests = [path.stem.removeprefix("test_") for path in (TESTS / "probes").iterdir()]
    assert Counter(name for name in tests if not name.startswith("__")) == Counter(probe_names())


def test_each_fault_has_one_file_of_tests() -> None:
    tests = {path.stem.removeprefix("test_") for path in (TESTS / "faults").glob("test_*.py")}
    assert tests - {"engine", "registry"} == {path.stem for path in fault_files()}


def test_tests_stand_where_the_code_stands() -> None:
    elsewhere = {
        str(path.relative_to(TESTS))
        for folder in sorted((ROOT / "attncheck").iterdir())
        if folder.is_dir() and folder.name != "faults"
        for path in sorted((TESTS / folder.name).rglob("test_*.py"))
        if not _module_tested_by(path).exists()
    }
    assert elsewhere <= TOGETHER


def _module_tested_by(path: Path) -> Path:
    module = path.relative_to(TESTS).with_name(path.name.removeprefix("test_"))
    folder = ROOT / "attncheck" / module.with_suffix("")
    return folder if folder.is_dir() else ROOT / "attncheck" / module
