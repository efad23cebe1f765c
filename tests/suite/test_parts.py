"""The jobs of one machine: all settings of a target together, each with its place in the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from attncheck.core.settings import Settings
from attncheck.core.shard import Shard
from attncheck.suite.parts import part_of_run
from attncheck.suite.plan import Job

JOBS = tuple(
    Job(target=f"org/{name}", settings=Settings(attn=attn), probes=(("window", {}),))
    for name in "abcde"
    for attn in ("eager", "sdpa")
)


def test_all_settings_of_a_target_are_in_one_part_and_keep_their_places() -> None:
    found = [part_of_run(JOBS, Shard(index=index, count=3)) for index in (1, 2, 3)]
    placed = sorted((job.place, job.target) for jobs, _ in found for job in jobs)
    assert placed == [(place, job.target) for place, job in enumerate(JOBS, 1)]
    for jobs, shard in found:
        targets = [job.target for job in jobs]
        assert all(targets.count(target) == 2 for target in targets)
        assert shard.jobs == len(JOBS)
    assert len({shard.run for _, shard in found}) == 1


def test_a_run_is_told_by_what_it_runs_and_not_by_where() -> None:
    def run(jobs: tuple[Job, ...]) -> str:
        return part_of_run(jobs, Shard(index=1, count=2))[1].run

    assert run(JOBS) == run(tuple(replace(job, home=Path("/elsewhere")) for job in JOBS))
    assert run(JOBS) != run(JOBS[:-1])
    assert run(JOBS) != run((*JOBS[:-1], replace(JOBS[-1], settings=Settings(seed=1))))
    assert run(JOBS) != run((*JOBS[:-1], replace(JOBS[-1], probes=())))
