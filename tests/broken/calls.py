"""Calls that cannot work: targets, factories, options, suites and reports, made on the spot."""

from __future__ import annotations

import json

FACTORIES = """
import sys
import torch

def zero(): return 1 / 0
def key(): return {}["nonsense"]
def index(): return [][3]
def leaves(): sys.exit(0)
def leaves_with_words(): sys.exit("all is well")
def base(): raise BaseException("from below")
def memory(): raise MemoryError
def gpu(): raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
def nothing(): return None
def a_class(): return torch.nn.Linear
def a_text(): return "model"
def needs(config): return config
def three(): return 1, 2, 3
def escapes(): raise ValueError("\\x1b[2J\\x1b[31mred\\x07 \\u202egnp")
def colon(): raise ValueError("these are wrong:\\n  the first\\n  the second")
def colons(): raise ValueError("these are wrong:\\nand these:\\n  the first")
def wordless(): raise ValueError
def long(): raise ValueError("x" * 5000)
def lines(): raise ValueError("first\\nsecond\\nthird")
def deep(): return deep()
def empty(): return torch.nn.Identity()
def imports(): import nothing_of_that_name
def stops(): raise StopIteration
def asserts(): assert 1 == 2, "one is not two"
def warns(): raise UserWarning("a warning")
def a_text_beside(): return torch.nn.Linear(2, 2), "a tokenizer"
def no_ids(): return torch.nn.Linear(2, 2), lambda text, **named: {"input_ids": text}
def no_keys(): return torch.nn.Linear(2, 2), lambda text, **named: []
def raising(): return torch.nn.Linear(2, 2), lambda text, **named: 1 / 0
value = 3
"""
FACTORY_NAMES = (
    *(line.split("(")[0].removeprefix("def ") for line in FACTORIES.splitlines() if "def " in line),
    "value",
    "absent",
    "",
    "not a name",
    "zero()",
)
MODULES = {
    "import: missing": "import nothing_of_that_name",
    "import: no syntax": "def f(:",
    "import: leaves": "import sys; sys.exit(0)",
    "import: from below": "raise BaseException('from below')",
    "import: divides": "1 / 0",
    "import: with an escape": "raise ValueError('\\x1b[31mred')",
    "import: empty": "",
}
TARGETS = (
    "",
    " ",
    "\t",
    ":",
    "::",
    "@",
    "@main",
    "org/name@",
    "org/",
    "org//name",
    "/",
    "a/b/c",
    "-name",
    "name-",
    "na me",
    "na..me",
    "ümlaut/model",
    "a" * 97,
    "x" * 5000,
    "./" + "x" * 5000,
    "builtin:" + "x" * 5000,
    "config:" + "x" * 5000,
    "a\0b",
    "\x1b[31mred",
    "red\u202egnp",
    "two\nlines",
    "builtin:",
    "builtin:gaq",
    "builtins:gqa",
    "buildin:gqa",
    "config:",
    "config:/",
    "config:lama",
    "config:qqqq",
    "config:zzz*",
    "config:nope/llama",
    "config:masked/llama",
    "config:nowhere.json",
    "config:empty",
    "confg:llama",
    "nowhere.py:make",
    "nowhere.gguf",
    "nowhere.safetensors",
    "nowhere.json",
    "./nowhere",
    "/nowhere",
    "~/nowhere",
    "..",
    "empty",
    "notes.txt",
    "make.py",
    "folder.gguf",
    "https://huggingface.co/org/name",
    "C:\\models\\mine",
)
GQA, MODEL = "builtin:gqa", "model"
OPTIONS = (
    (GQA, "--layers", "99"),
    (GQA, "--layers", "0"),
    (GQA, "--layers", "-1"),
    (GQA, "--layers", "two"),
    (MODEL, "--layers", "99"),
    (GQA, "--revision", "main"),
    (MODEL, "--revision", "main"),
    (MODEL, "--revision", ""),
    ("org/name@one", "--revision", "two", "--offline"),
    (GQA, "--random-init"),
    (GQA, "--prompt", "hello"),
    (MODEL, "--prompt", "hello"),
    ("config:llama", "--prompt", "hello"),
    (GQA, "--prompt", ""),
    (GQA, "--prompt", "@nowhere.txt"),
    (GQA, "--prompt", "@empty"),
    (GQA, "--length", "3"),
    (GQA, "--length", "-1"),
    (GQA, "--seed", "x"),
    (GQA, "--seed", str(1 << 70)),
    (GQA, "--dtype", "float8"),
    (GQA, "--dtype", ""),
    (GQA, "--device", "quantum"),
    (GQA, "--device", ""),
    (GQA, "--device-map", "auto"),
    (MODEL, "--device-map", "nowhere.json"),
    (MODEL, "--device-map", "notes.json"),
    (MODEL, "--device-map", "everywhere"),
    (MODEL, "--device-map", ""),
    (GQA, "--attn", "nonsense"),
    (GQA, "--attn", "spda"),
    (GQA, "--attn", ""),
    (MODEL, "--attn", "nonsense"),
    ("config:llama", "--attn", "nonsense"),
    (GQA, "--memory", "-1"),
    (GQA, "--memory", "0"),
    (GQA, "--memory", "nan"),
    (GQA, "--timeout", "-1"),
    (GQA, "--timeout", "nan"),
    (GQA, "--jobs", "0"),
    (GQA, "--jobs", "-2"),
    (GQA, "--fail-on", "wran"),
    (GQA, "--format", "jsn"),
    (GQA, "--report", "jsn=x"),
    (GQA, "--report", "json"),
    (GQA, "--report", "json="),
    (GQA, "--report", "json=nowhere/x.json"),
    (GQA, "--report", "json=" + "x" * 300),
    (GQA, "--report", "json=a.json", "--report", "html=a.json"),
    (GQA, "--baseline", "nowhere.json"),
    (GQA, "--baseline", "notes.txt"),
    (GQA, "--suite", "nowhere.yaml"),
    (GQA, "--probe", "decode-path"),
    (GQA, "--probe", "zzz*"),
    (GQA, "--probe", "nowhere.py:Mine"),
    (GQA, "--probe", "make.py:absent"),
    (GQA, "--probe", "make.py:value"),
    (GQA, "--skip", "decode-path"),
    (GQA, "--tag", "slow"),
    (GQA, "--no-such-option"),
    (GQA, "--tp"),
)
SUITES = {
    "suite: empty": "",
    "suite: a list": "- a\n",
    "suite: no models": "models: []\n",
    "suite: a mistyped key": "modles: [builtin:gqa]\n",
    "suite: an unknown built-in": "models: [builtin:gaq]\n",
    "suite: an unknown probe": "models: [builtin:gqa]\nprobes: [decode-path]\n",
    "suite: a wrong dtype": "models:\n  - target: builtin:gqa\n    settings: {dtype: float8}\n",
    "suite: no layers": "models:\n  - target: builtin:gqa\n    settings: {layers: 0}\n",
    "suite: a tab": "models:\n\t- builtin:gqa\n",
    "suite: an anchor that is missing": "models: *none\n",
    "suite: itself": "include: [suite.yaml]\nmodels: [builtin:gqa]\n",
}
REPORT = {
    "schema": "attncheck/1",
    "attncheck": "0.1.0",
    "command": "attncheck run",
    "started": "2026-11-29T14:00:00Z",
    "seconds": 1.0,
    "exit_code": 1,
    "environment": {},
    "targets": [],
    "summary": dict.fromkeys(("pass", "fail", "warn", "noise", "vacuous", "skip", "error"), 0),
}
REPORTS = {
    "report: empty": "",
    "report: no JSON": "{",
    "report: a list": "[]",
    "report: another schema": '{"schema": "other/1"}',
    "report: no fields": '{"schema": "attncheck/1"}',
    "report: targets a number": json.dumps({**REPORT, "targets": 3}),
    "report: nothing failed": json.dumps(REPORT),
    "report: an unknown exit code": json.dumps({**REPORT, "exit_code": 77}),
    "report: seconds below zero": json.dumps({**REPORT, "seconds": -1}),
}
COMMANDS = (
    ("rnu",),
    ("explain", "decode-pths"),
    ("validate", "nowhere.yaml"),
    ("replay", "nowhere.json"),
    ("replay", "empty"),
    ("compare", GQA, "--left", "dtype=float8"),
    ("compare", GQA, "--left", "nonsense=1"),
    ("compare", GQA, "nowhere.json"),
    ("triage", "builtin:gaq"),
    ("mask", "builtin:gaq"),
    ("selftest", "builtin:gaq"),
    ("record", "builtin:gaq", "out.json"),
)
