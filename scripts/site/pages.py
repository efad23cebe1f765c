"""The pages of the site as Markdown: those of the repository, and one for each probe and fault."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from attncheck.core import registry
from attncheck.faults import registry as faults
from scripts.site.pictures import picture, probes_of, shown_by

ROOT = Path(__file__).parents[2]
COPIED = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs",
    "sample_configs",
    "tests/findings",
    "upstream",
)
"""What is copied as it is, so that links between these files work on the site as well."""
SECTION = re.compile(r"^(\S[^\n]*)\n((?:    [^\n]*\n|\n)+)", re.MULTILINE)


def write_pages(folder: Path, kept: Path) -> None:
    """Write the sources of the site into a folder; pictures are kept in another."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in COPIED:
        source, place = ROOT / name, folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(source, place)
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    _write(folder / "probes" / "index.md", _probe_list())
    _write(folder / "faults" / "index.md", _fault_list())
    for name in registry.documented():
        _write(folder / "probes" / f"{name}.md", probe_page(name, kept))
    for name in faults.names():
        _write(folder / "faults" / f"{name}.md", fault_page(name, kept))
    samples = sorted(each.name for each in (ROOT / "sample_configs").iterdir())
    listed = "\n".join(f"- [{name}]({name})" for name in samples)
    _write(folder / "sample_configs" / "index.md", f"# Samples\n\n{listed}\n")
    style = (ROOT / "attncheck/report/templates/report.css").read_text(encoding="utf-8")
    _write(folder / "report.css", _of_figures(style))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def probe_page(name: str, kept: Path) -> str:
    """The page of one probe: its docstring, a picture of what it catches, its controls."""
    title, _, rest = registry.documentation(name).strip().partition("\n")
    controls = tuple(getattr(registry.load(name), "controls", ()))
    shown, drawn = shown_by(name, controls, kept)
    lines = [f"# {name}", f"*{title}*", sections(rest)]
    if drawn:
        lines += [f"## What it sees\n\nInjected: [{shown}](../faults/{shown}.md).", drawn]
    if controls:
        listed = ", ".join(f"[{each}](../faults/{each}.md)" for each in controls)
        lines.append(
            f"## Controls\n\nAfter a pass, two of these are injected in your model: {listed}."
        )
    lines.append(f"## Try it\n\n```\nattncheck run builtin:gqa --probe {name} -v\n```")
    return "\n\n".join(lines) + "\n"


def fault_page(name: str, kept: Path) -> str:
    """The page of one fault: its docstring, a picture, and the probes that must notice it."""
    text = faults.documentation(name).partition("\n\n")[2]
    probes = probes_of(name)
    drawn = next((each for probe in probes if (each := picture(name, probe, kept))), "")
    lines = [f"# {name}", sections(text)]
    if drawn:
        lines += ["## What it looks like", drawn]
    if probes:
        listed = ", ".join(f"[{each}](../probes/{each}.md)" for each in probes)
        lines.append(f"## Probes that take it as a control\n\n{listed}")
    lines.append(f"## Try it\n\n```\nattncheck selftest builtin:gqa --fault {name}\n```")
    return "\n\n".join(lines) + "\n"


def sections(text: str) -> str:
    """A docstring with headings and indented paragraphs as Markdown."""
    found = SECTION.sub(
        lambda part: f"## {part[1]}\n\n{_plain(part[2])}\n\n", text.strip("\n") + "\n"
    )
    return found.strip()


def _plain(text: str) -> str:
    lines = [line.removeprefix("    ") for line in text.strip("\n").split("\n")]
    return "\n".join(line.replace("<", "&lt;") if "`" not in line else line for line in lines)


def _probe_list() -> str:
    rows = "\n".join(
        f"| [{name}]({name}.md) | {_headline(name)} |" for name in registry.documented()
    )
    return f"# Probes\n\nEach asks one question about a model's attention.\n\n| probe | asks |\n|---|---|\n{rows}\n"


def _headline(name: str) -> str:
    return registry.documentation(name).strip().partition("\n")[0].replace("|", "\\|")


def _fault_list() -> str:
    rows = "\n".join(_fault_rows())
    head = "# Faults\n\nWhat is injected to back a pass, and what a diagnosis names.\n\n"
    return f"{head}| fault | is | group |\n|---|---|---|\n{rows}\n"


def _fault_rows() -> Iterator[str]:
    for name in faults.names():
        text = faults.documentation(name).partition("\n\n")[2]
        first = " ".join(text.partition("\n\n")[0].split("\n")[1:]).split()
        sentence = " ".join(first).partition(". ")[0].rstrip(".").replace("|", "\\|")
        yield f"| [{name}]({name}.md) | {sentence}. | {faults.path_of(name).parent.name} |"


def _of_figures(style: str) -> str:
    """The rules of a report's pictures, for the figures of the site."""
    root = style[: style.index("* {")].replace("color-scheme: light dark;", "")
    used = (
        ".strips",
        ".axis",
        ".chart",
        ".bars",
        ".span",
        ".key",
        ".soft",
        ".v ",
        ".fail",
        ".pass",
    )
    rules = [line for line in style.splitlines() if line.startswith(used)]
    return "\n".join([root, *rules, FIGURE])


FIGURE = """
figure.attncheck { margin: 1em 0; width: 100%; text-align: left; } figure.attncheck svg { max-width: 100%; height: auto; }
figure.attncheck .strips svg { height: 18px; } figure.attncheck h3 { font-size: .8rem; margin: .6em 0 .3em; }
figure.attncheck figcaption { max-width: none; margin: .4em 0; font-style: normal; font-size: .72rem; text-align: left; }
"""
