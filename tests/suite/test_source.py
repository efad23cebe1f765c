"""Mutated suites: each is either a plan or one error that names a line; nothing else comes out."""

import random
import re
from collections.abc import Callable
from pathlib import Path

from attncheck.core.errors import SuiteError
from attncheck.suite.expand import load_plan

SAMPLES = Path(__file__).parents[2] / "sample_configs"
COUNT = 2_000
WORDS = [
    "null",
    "[]",
    "{}",
    "-1",
    "1e999",
    "yes",
    "2026-99-99",
    "${X}",
    "*a",
    "&a",
    "!!int x",
    "!x y",
    "<<: *a",
    "?",
    "'",
    '"',
    "\t",
    "|",
    "#",
    "🙂",
    "\x00",
    "@",
    "- -",
]
LINE = re.compile(r"^[^\n]*\.yaml:[1-9]\d*:[1-9]\d*: \S[^\n]*$")


def _character(text: str, dice: random.Random) -> str:
    at = dice.randrange(len(text))
    return text[:at] + dice.choice("[]{}:-#&*!|>'\"%@`,? \n\tax0") + text[at + dice.randint(0, 2) :]


def _word(text: str, dice: random.Random) -> str:
    words = list(re.finditer(r"[\w.\-/]+", text))
    if not words:
        return text
    found = dice.choice(words)
    return text[: found.start()] + dice.choice(WORDS) + text[found.end() :]


def _line(text: str, dice: random.Random) -> str:
    lines = text.splitlines(keepends=True) or ["a"]
    at, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    changed = dice.choice([lines[at] * 2, "", " " + lines[at], lines[other], lines[at].lstrip()])
    return "".join([*lines[:at], changed, *lines[at + 1 :]])


def _cut(text: str, dice: random.Random) -> str:
    return text[: dice.randrange(len(text))]


MUTATORS: list[Callable[[str, random.Random], str]] = [_character, _word, _line, _cut]


def rejection(file: Path) -> str | None:
    try:
        load_plan(file)
    except SuiteError as error:
        return str(error)
    return None


def test_two_thousand_mutated_suites(tmp_path: Path) -> None:
    samples = [path.read_text(encoding="utf-8") for path in sorted(SAMPLES.glob("*.yaml"))]
    dice, file, rejections = random.Random(0), tmp_path / "suite.yaml", []
    for _ in range(COUNT):
        text = dice.choice(samples)
        for _ in range(dice.randint(1, 3)):
            text = dice.choice(MUTATORS)(text or "a", dice)
        file.write_text(text, encoding="utf-8")
        rejections.append(rejection(file))
    rejected = [each for each in rejections if each is not None]
    assert [each for each in rejected if not LINE.match(each)] == []
    # Fewer would mean that the mutations are too tame to prove anything.
    assert len(rejected) > COUNT // 4
