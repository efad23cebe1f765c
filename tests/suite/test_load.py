"""Every error of a suite: one line with file, line, column, the text there and what was expected."""

from pathlib import Path

import pytest

from attncheck.core.errors import SuiteError
from attncheck.suite.expand import load_plan

GOOD = """\
settings:
  attn: [eager, sdpa]
probes:
  - future-token
  - document-leakage: {policy: isolate}
  - kv-*
models:
  - builtin:gqa
  - target: builtin:broken-mask
    settings: {attn: sdpa, dtype: float32}
expected_failures:
  - model: builtin:broken-*
    probe: future-token
    reason: injected
    expires: 2027-01-01
"""

MUTATIONS = [
    ("attn: [", "atn: [", "2:3: `atn`: unknown key; did you mean `attn`?"),
    (
        "policy:",
        "polcy:",
        "5:24: `polcy`: unknown option of probe document-leakage `polcy`: did you mean `policy`?",
    ),
    ("isolate}", "isolated}", "5:32: `isolated`: option `policy`: expected `allow` or `isolate`"),
    (
        "float32",
        "flot32",
        "10:35: `flot32`: expected `auto`, `float64`, `float32`, `bfloat16` or `float16`; did you mean `float32`?",
    ),
    (
        "- future-token",
        "- future-tokn",
        "4:5: `future-tokn`: unknown probe `future-tokn`: did you mean `future-token`?",
    ),
    (
        "builtin:gqa",
        "builtin:gqqa",
        "8:5: `builtin:gqqa`: builtin:gqqa: unknown built-in model `gqqa`: did you mean `gqa`?",
    ),
    (
        "2027-01-01",
        "2027-13-01",
        "15:14: `2027-13-01`: not a valid YAML value: month must be in 1..12",
    ),
    ("    reason: injected\n", "", "12:5: the key `reason` is missing here"),
    ("  - target:", "  - targt:", "9:5: `targt`: unknown key; did you mean `target`?"),
    ("models:", "modles:", "7:1: `modles`: unknown key; did you mean `models`?"),
    (
        "builtin:broken-*",
        "builtin:brken-*",
        "12:12: `builtin:brken-*`: unknown model of this suite `builtin:brken-*`: did you mean `builtin:broken-mask`?",
    ),
    (
        "probe: future-token",
        "probe: padding-x",
        "13:12: `padding-x`: unknown probe of this model `padding-x`: expected one of ",
    ),
    ("[eager, sdpa]", "[]", "2:9: `attn` is an empty list: leave it out, or name at least one"),
    ("[eager, sdpa]", "{eager: 1}", "2:9: expected a valid string, got a mapping"),
    (
        "- kv-*",
        "- ${NO_SUCH_VARIABLE}",
        "6:5: `${NO_SUCH_VARIABLE}`: the environment variable `NO_SUCH_VARIABLE` is not set",
    ),
    ("- kv-*", "- ./mine.py:Probe", "6:5: `./mine.py:Probe`: no such file `"),
    ("- kv-*", "- [a", "7:7: not valid YAML: expected ',' or ']', but got ':'"),
    (
        "  - kv-*\n",
        "  - kv-*\nprobes: []\n",
        "7:1: `probes`: this key is repeated; it was first given in line 3",
    ),
    ("- kv-*", "- &a [*a]", "6:5: an alias that expands without end"),
    (
        "- kv-*",
        "- !!python/object:os.system {}",
        "6:5: unknown tag `tag:yaml.org,2002:python/object:os.system`",
    ),
    (
        "settings:\n  attn",
        "include: other.yaml\nsettings:\n  attn",
        "1:10: `other.yaml`: no such file `",
    ),
    (
        "settings:\n  attn",
        "settings:\n  prompt: '@no.txt'\n  attn",
        "2:11: `@no.txt`: the prompt file `",
    ),
    ("builtin:gqa", "./nowhere", "8:5: `./nowhere`: ./nowhere: no such file or folder"),
]


@pytest.mark.parametrize(("old", "new", "message"), MUTATIONS)
def test_message(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    file = tmp_path / "suite.yaml"
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(SuiteError) as caught:
        load_plan(file)
    assert str(caught.value).startswith(f"{file}:{message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ":1:1: the file is empty"),
        (b"- a\n", ":1:1: expected a mapping with the key `models`, got a list"),
        (b"models: []\n", ":1:1: no models"),
        (b"a: 1\nb: \xff\n", ":2:1: not UTF-8 text: byte 8 is 0xff"),
        (b"a: 1\n\nb: '\x07'\n", ":3:1: a character that YAML does not allow"),
        (b"[" * 3000, ":1:1: nested too deeply"),
        (
            b"reports: {jso: x}\nmodels: [builtin:gqa]\n",
            ":1:11: `jso`: unknown key: expected `json`",
        ),
        (b"models: [builtin:gqa]\nseed: 1\n", ":2:1: `seed`: unknown key"),
        (b"models: [builtin:gqa]\nfail_on: fial\n", ":2:10: `fial`: expected `pass`, `fail`"),
        (b"models: 'x'\nprobes: true\n", ":1:9: `x`: expected a valid list"),
        (
            b"models: [builtin:gqa]\nprobes: true\n",
            ":2:9: `true`: expected a valid list, got a boolean",
        ),
        (b"models:\n  - target: null\n", ":2:13: `null`: expected a valid string, got null"),
        (b"models: [builtin:gqa]\n[a]: 1\n", ":2:1: expected a plain string as key"),
    ],
)
def test_whole_file(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "suite.yaml"
    file.write_bytes(content)
    with pytest.raises(SuiteError) as caught:
        load_plan(file)
    assert str(caught.value).startswith(f"{file}{message}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"no\.yaml: cannot be read: No such file or directory"):
        load_plan(tmp_path / "no.yaml")


def test_files_that_include_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("include: b.yaml\nmodels: [builtin:gqa]\n")
    (tmp_path / "b.yaml").write_text("include: a.yaml\n")
    with pytest.raises(SuiteError, match=r"b\.yaml:1:10: `a\.yaml`: a file cannot include itself"):
        load_plan(tmp_path / "a.yaml")


def test_an_error_in_an_included_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("include: [b.yaml]\nmodels: [builtin:gqa]\n")
    (tmp_path / "b.yaml").write_text("settings:\n  seed: x\n")
    with pytest.raises(SuiteError, match=r"b\.yaml:2:9: `x`: expected a valid integer"):
        load_plan(tmp_path / "a.yaml")


def test_too_many_combinations(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(
        f"settings:\n  seed: {list(range(40))}\n  length: {list(range(1, 40))}\nmodels: [builtin:gqa]\n"
    )
    with pytest.raises(
        SuiteError,
        match=r"suite\.yaml:4:10: `builtin:gqa`: 1560 combinations of settings; 1000 at most",
    ):
        load_plan(file)
