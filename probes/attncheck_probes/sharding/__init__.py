"""A model that is sharded over processes computes what the whole model computes.

What it checks
    Under `--tp`, the weights of all processes together are those of the whole model, and so are the
    logits: in one forward, in chunks on a cache, and for a left-padded batch.

Why it matters
    A tensor-parallel plan names for each layer how it is split and where the parts are added up. A
    sum that is left out, done twice, or done over a bias as well keeps every shape.

How it measures
    Rank 0 loads the whole model, which computes while the other processes wait. Both run in the
    highest precision that works. Where logits differ, the first module is named whose output
    differs from the whole model's. Outputs are compared by fingerprints, which are sums: the
    fingerprints of parts add up as the parts do, and that tells a missing sum from a doubled one.
    If all cases pass, the output of one reduction is doubled, and the comparison has to fail.

False alarms
    A whole model that does not fit beside the parts is a skip. Weights that differ where the logits
    agree are a `warn`: only a checkpoint saved from this model would be wrong.

References
    Shoeybi et al. 2019 (Megatron-LM). Hugging Face transformers, `base_model_tp_plan`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from attncheck.probing import (
    Control,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Verdict,
    pad_rows,
    sharded,
    verdict_of,
)
from attncheck_probes.sharding.whole_model import BesideWhole

PLAIN = "one forward"


@dataclass(frozen=True, kw_only=True)
class Sharding(Probe):
    """Compares the sharded model with the whole one."""

    name = "sharding"
    title = "the sharded model computes what the whole model computes"

    def measure(self, subject: Subject) -> Generator[Measurement, None, Control | None]:
        """The weights, then every forward; returns the control, where every case passed."""
        if not sharded.wanted(subject.settings):
            return None
        # rounding shrinks with a higher precision, and what sharding changed does not
        with subject.at(subject.higher_dtype()) as highest:
            beside, passed = BesideWhole(highest), True
            for case in _cases(beside):
                passed &= verdict_of(case) is Verdict.PASS
                yield case
            return _control(beside) if passed else None


def _cases(beside: BesideWhole) -> Generator[Measurement, None, None]:
    missing = beside.load()
    if missing is not None:
        yield missing
        return
    yield beside.weights()
    for name, spec in _forwards(beside.subject).items():
        yield beside.case(name, spec)


def _forwards(subject: Subject) -> dict[str, ForwardSpec]:
    tokens, length = subject.inputs.tokens, subject.inputs.length
    forwards = {PLAIN: ForwardSpec(tokens)}
    if subject.can.cache:
        chunks = (length // 3, length - length // 3 - 1, 1)
        forwards["in chunks on a cache"] = ForwardSpec(tokens, chunks=chunks)
    if subject.can.mask_2d:
        forwards["left-padded batch"] = pad_rows(subject).spec("left", salt=1)
    return forwards


def _control(beside: BesideWhole) -> Control | None:
    """The plain case with the output of one reduction doubled, which has to fail."""
    if not beside.joined:
        return None
    subject, spec = beside.subject, ForwardSpec(beside.subject.inputs.tokens)
    reduction = subject.model.get_submodule(beside.joined[-1])
    subject.passes.drop(spec)
    try:
        with reduction.register_forward_hook(lambda module, args, output: output * 2):
            case = beside.case(PLAIN, spec)
    finally:
        subject.passes.drop(spec)
    detected = verdict_of(case) is Verdict.FAIL
    return Control(
        fault="reduction-doubled", detected=detected, max_abs=case.max_abs, case=case.name
    )
