"""The part of a run that one machine does, where a run is split over several."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from attncheck.core.shard import Shard
from attncheck.suite.plan import Job


def part_of_run(jobs: Sequence[Job], shard: Shard) -> tuple[tuple[Job, ...], Shard]:
    """The jobs of one shard, each with its place in the whole run, and the shard with what tells
    this run from others. All settings of a target are in one shard.
    """
    names = shard.names(job.target for job in jobs)
    placed = (replace(job, place=at) for at, job in enumerate(jobs, 1) if job.target in names)
    return tuple(placed), replace(shard, jobs=len(jobs), run=_digest(jobs))


def _digest(jobs: Sequence[Job]) -> str:
    """A name for these jobs, the same on every machine: without folders, but for those in targets
    and in settings.
    """
    told = [(job.target, vars(job.settings), [list(call) for call in job.probes]) for job in jobs]
    text = json.dumps(told, default=str, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
