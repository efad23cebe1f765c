"""What a sweep over many models would cost, by simulation from the times of a measured one.

python -m scripts.sweep_cost REPORT.json… [--models 10000] [--workers 8,64,256] [--lost 0.01]

Each simulated model takes the seconds of a measured target, drawn at random. Workers take the next
model as they become free, as `--jobs` and `--executor ray` do; a share of the models loses its worker
half-way, and begins again. `--start` seconds go by before a worker takes its first model.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attncheck.report.record import from_json


@dataclass(frozen=True)
class SweepCost:
    """What one simulated sweep takes: hours until the last model is done, hours of all workers
    while they work, and the share of the time in which a worker has something to do.
    """

    workers: int
    hours: float
    worker_hours: float

    @property
    def busy(self) -> float:
        """Share of the workers' time that is work."""
        return self.worker_hours / (self.workers * self.hours) if self.hours else 0.0


def simulated(
    seconds: Sequence[float], models: int, workers: int, lost: float, start: float, seed: int = 0
) -> SweepCost:
    """One sweep over `models` models whose times are drawn from `seconds`."""
    draw = random.Random(seed)
    free = [start] * workers
    heapq.heapify(free)
    work = end = 0.0
    for _ in range(models):
        takes = draw.choice(seconds)
        takes *= 1.5 if draw.random() < lost else 1.0
        done = heapq.heappop(free) + takes
        heapq.heappush(free, done)
        work, end = work + takes, max(end, done)
    return SweepCost(workers, end / 3600, work / 3600)


def measured(paths: Sequence[Path]) -> list[float]:
    """The seconds of every target that was checked in some reports."""
    reports = [from_json(path.read_text(encoding="utf-8")) for path in paths]
    return [each.seconds for report in reports for each in report.targets if each.results]


def table(seconds: Sequence[float], arguments: argparse.Namespace) -> str:
    """The costs as a Markdown table, with what they were made of."""
    spread = statistics.quantiles(seconds, n=20) if len(seconds) > 1 else [seconds[0]] * 19
    lines = [
        f"{len(seconds)} targets measured: median {statistics.median(seconds):.1f} s, 95 % below "
        f"{spread[-1]:.1f} s. {arguments.models:,} models, {arguments.lost:.0%} of which lose a worker:",
        "",
        "| workers | hours | worker hours | busy |",
        "|---|---|---|---|",
    ]
    for workers in map(int, arguments.workers.split(",")):
        cost = simulated(seconds, arguments.models, workers, arguments.lost, arguments.start)
        lines.append(
            f"| {workers} | {cost.hours:.2f} | {cost.worker_hours:.1f} | {cost.busy:.0%} |"
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="scripts.sweep_cost")
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--workers", default="2,8,64,256")
    parser.add_argument("--lost", type=float, default=0.01)
    parser.add_argument("--start", type=float, default=60.0)
    arguments = parser.parse_args(given)
    print(table(measured(arguments.reports), arguments))


if __name__ == "__main__":
    main()
