"""One verdict in every precision and for every seed: where do the probes disagree?

    python -m scripts.precisions run --out RESULTS.jsonl config:llama config:gpt2
    python -m scripts.precisions run --out RESULTS.jsonl --dtype float32 --seeds 5 config:llama
    python -m scripts.precisions show RESULTS.jsonl

`run` checks each target in each dtype with all probes and their controls, one line of JSON for each;
what the file holds already is not run again, so that a long run may be cut into short ones. Without
targets it takes the forty types below. `show` prints what low precision fails, breaks on or leaves
vacuous although float64 does not, what float64 fails and low precision passes, and the verdicts
that change with the seed. Exit code 1 where there is any. A failure that low precision has for a
reason of its own, named and shown by repair, is listed and not counted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TYPES = tuple(
    f"config:{name}"
    for name in [
        "llama",
        "gpt2",
        "gpt_neox",
        "gptj",
        "codegen",
        "gpt_neo",
        "gpt_bigcode",
        "gpt_oss",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi",
        "phi3",
        "olmo2",
        "cohere",
        "cohere2",
        "falcon",
        "bloom",
        "mpt",
        "opt",
        "xglm",
        "biogpt",
        "stablelm",
        "starcoder2",
        "deepseek_v2",
        "deepseek_v3",
        "hunyuan_v1_dense",
        "inkling_text",
        "minimax",
        "granite",
        "smollm3",
        "glm4",
        "mamba2",
        "bamba",
    ]
)
DTYPES = ("float64", "float32", "bfloat16", "float16")
BAD = ("fail", "error", "vacuous")
Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Run or show; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="check targets, one line of JSON for each")
    run.add_argument("targets", nargs="*", default=TYPES)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--dtype", action="append", choices=DTYPES, help="default: all four")
    run.add_argument("--seeds", type=int, default=1, help="the seeds 0 to N - 1")
    run.add_argument("--probe", action="append", help="default: all")
    run.add_argument("--seconds", type=float, default=float("inf"), help="begin no target later")
    show = commands.add_parser("show", help="print the disagreements")
    show.add_argument("results", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    if given.command == "show":
        return shown([row for path in given.results for row in _rows(path)])
    _run(given)
    return 0


def _rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _run(given: argparse.Namespace) -> None:
    done = {(row["target"], row["dtype"], row["seed"]) for row in _rows(given.out)}
    started = time.perf_counter()
    wanted = itertools.product(given.targets or TYPES, given.dtype or DTYPES, range(given.seeds))
    for target, dtype, seed in wanted:
        if (target, dtype, seed) in done:
            continue
        if time.perf_counter() - started > given.seconds:
            return
        row = checked(target, dtype, seed, given.probe)
        with given.out.open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
        bad = [f"{name} {each['verdict']}" for name, each in row["probes"].items()]
        bad = [words for words in bad if words.endswith(BAD)]
        print(f"{target} {dtype} seed {seed}: {', '.join(bad) or 'clean'}", file=sys.stderr)


def checked(target: str, dtype: str, seed: int = 0, probes: list[str] | None = None) -> Row:
    """All probes on one target in one dtype: verdict, sentence, and the cases that did not pass."""
    from attncheck.core import registry
    from attncheck.core.settings import Settings
    from attncheck.run.implicit import implicit_findings
    from attncheck.run.runner import ProbeFinished, run_probes
    from attncheck.run.traps import Traps
    from attncheck.targets.load import load

    names = probes or list(registry.installed())
    row: Row = {"target": target, "dtype": dtype, "seed": seed, "probes": {}}
    try:
        subject = load(target, Settings(dtype=dtype, seed=seed))
    except Exception as error:
        row["probes"]["load"] = {"verdict": "error", "summary": str(error), "cases": {}}
        return row
    events = run_probes(subject, map(registry.load, names), traps=Traps())
    findings = implicit_findings(subject)
    findings += [event.finding for event in events if isinstance(event, ProbeFinished)]
    for found in findings:
        row["probes"][found.probe] = _finding(found)
    row["forwards"] = subject.loaded.forwards
    return row


def _finding(found: Any) -> dict[str, Any]:
    from attncheck.core.measurement import verdict_of

    worst = [case for case in found.cases if verdict_of(case) is found.verdict]
    return {
        "verdict": str(found.verdict),
        "summary": found.summary,
        "cases": {case.name: str(verdict_of(case)) for case in found.broken},
        "repaired": bool(worst) and all(case.cause.repaired for case in worst),
        "error": found.error,
    }


def shown(rows: list[Row]) -> int:
    """Print the three lists; the exit code."""
    found = {(row["target"], row["dtype"], row["seed"]): row["probes"] for row in rows}
    low_only: list[str] = []
    named: list[str] = []
    missed: list[str] = []
    for (target, dtype, seed), probes in found.items():
        usual = found.get((target, "float64", seed))
        if usual is None or dtype == "float64":
            continue
        for probe, each in probes.items():
            high = usual.get(probe, {"verdict": "absent", "summary": ""})
            words = f"{target} {dtype} {probe}: {each['verdict']} ({each['summary'][:150]})"
            words += f"; float64 {high['verdict']}"
            if each["verdict"] in BAD and high["verdict"] not in BAD:
                (named if each.get("repaired") else low_only).append(words)
            if high["verdict"] == "fail" and each["verdict"] != "fail":
                missed.append(f"{words} ({high['summary'][:150]})")
    flips = list(_flips(rows))
    checked = len({row["target"] for row in rows})
    print(f"{checked} targets, {len(rows)} runs")
    for title, lines in (
        ("only in low precision", low_only),
        ("only in low precision, named and shown by repair", named),
        ("fails in float64 and not in low precision", missed),
        ("changes with the seed", flips),
    ):
        print(f"\n{title}: {len(lines)}", *sorted(lines), sep="\n  ")
    return 1 if low_only or missed or flips else 0


def _flips(rows: list[Row]) -> Iterator[str]:
    verdicts: dict[tuple[str, str, str], dict[int, str]] = defaultdict(dict)
    for row in rows:
        for probe, each in row["probes"].items():
            verdicts[row["target"], row["dtype"], probe][row["seed"]] = each["verdict"]
    for (target, dtype, probe), by_seed in verdicts.items():
        if len(set(by_seed.values())) > 1:
            yield f"{target} {dtype} {probe}: {by_seed}"


if __name__ == "__main__":
    sys.exit(main())
