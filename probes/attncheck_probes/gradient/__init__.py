"""The gradient: causal to the bit, and the derivative of what forward computes.

What it checks
    Logits before a cut have no gradient at all with respect to later embeddings. The gradient of
    the query, key and value projections is the derivative of forward. Gradient checkpointing,
    reentrant and with the cache left on as well, and the attention implementations give the same
    gradient.

Why it matters
    A leak into the past of one part in a hundred million drowns in the rounding of logits, and
    shows in the gradient, where a healthy model has exactly zero. Keys that were detached, or a
    checkpointed layer that lost its mask, leave forward as it was and train another model.

How it measures
    Embeddings become leaves, and a fixed random mixture of logits is differentiated. The derivative
    along a random direction of all projections is compared with a central difference in float64,
    and that of each kind alone where the two disagree. Then the layers are halved until the last
    one with a wrong gradient is found, and each of its matrices is asked alone, with the rows and
    columns that get none. There are several steps; how well
    neighbouring ones agree is the budget, and a kink (a router, a clipped activation) that keeps
    them from agreeing skips the case. A row of 12 tokens is enough where no border depends on
    length. The weights stay as they are: operators are given moved ones, widened one at a time.
    Training mode runs with every dropout at zero, and what is still drawn at random is the same
    each time; under gradient checkpointing the last tokens are padding, and the gradients of the
    smallest weights are compared too.

    A weight that moves the logits and gets no gradient at all, or a row or column of which gets
    none, never trains: that is a `fail`. A gradient that is there and is not the derivative is a
    `warn`.

False alarms
    Some models cut their gradient on purpose (steps of a recurrence without one), which leaves a
    gradient that is off but not zero: hence the `warn`. Where training steps differ although they
    draw the same random numbers, checkpointing is skipped. Models that read ahead by design are not
    asked.

References
    Griewank and Walther 2008 (central differences and their steps). Chen et al. 2016 (gradient
    checkpointing).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attncheck.probing import (
    Cause,
    Comparison,
    Divergence,
    Measurement,
    Probe,
    Subject,
    Verdict,
    asked,
    attempt,
    directional_derivative,
    holes,
    input_gradient,
    later_budget,
    max_abs,
    merged,
    projections,
    skipped,
    switched_gradient,
    verdict_of,
    why_no_derivative,
)
from attncheck_probes.gradient import checkpoints, cuts

# Axes: B batch, T positions, W hidden width.

CUTS = 3


@dataclass(frozen=True, kw_only=True)
class Gradient(Probe):
    """Differentiates logits with respect to embeddings and projections."""

    name = "gradient"
    title = "the gradient is causal and is the derivative of forward"
    cost = "expensive"
    needs = ("decodes",)
    controls = (
        "gradient-detached",
        "causal-mask-missing",
        "leak-outside-attention",
        "recomputed-on-cache",
    )

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Causality, derivatives along the projections, checkpointing, implementations."""
        yield attempt("no gradient to later embeddings", self._causal, subject)
        yield from self._derivatives(subject)
        yield attempt(checkpoints.USUAL, checkpoints.checkpointed, subject)
        yield attempt(checkpoints.LOOP, checkpoints.reentrant, subject)
        for attn in ("eager", "sdpa"):
            if attn != subject.attn and subject.attn is not None:
                name = f"gradient, {attn} vs {subject.attn}"
                yield attempt(name, switched_gradient, subject, name, attn)

    def _causal(self, subject: Subject) -> Measurement:
        inputs = subject.inputs
        cuts = sorted(
            {inputs.cuts[0], inputs.cuts[-1], *inputs.cuts[:: max(1, len(inputs.cuts) // CUTS)]}
        )
        cases = list[Comparison]()
        for cut in cuts:
            cases.append(self._cut(subject, cut))
            if cases[-1].beyond and subject.passes.injected:
                break  # a control stops at the first difference
        return merged("no gradient to later embeddings", cases)

    def _cut(self, subject: Subject, cut: int) -> Comparison:
        gradient_BTW = input_gradient(subject, upto=cut)
        later_T = gradient_BTW[:, cut:].abs().amax((0, 2))
        budget = later_budget(subject, gradient_BTW, cut)
        read = (later_T > budget.value).nonzero()
        divergence = Divergence(
            max_abs=float(later_T.max()),
            scale=max_abs(gradient_BTW),
            positions=gradient_BTW.shape[1] - cut,
            first_position=cut + int(read[0]) if len(read) else None,
            nonfinite=holes(gradient_BTW),
        )
        return Comparison(
            "no gradient to later embeddings",
            divergence,
            budget.value,
            budget.source,
            unit="gradients",
            note=f"of the logits before position {cut}",
        )

    def _derivatives(self, subject: Subject) -> Iterator[Measurement]:
        name = "derivative along projections"
        kinds = projections(subject.model)
        reason = (
            why_no_derivative(subject) if kinds else "no query, key or value projection was found"
        )
        if reason is not None:
            yield skipped(name, reason)
            return
        together = attempt(name, _derivative, subject, name, *kinds)
        yield together
        if together.judged and verdict_of(together) is Verdict.PASS:
            return
        for kind in kinds:
            alone = f"derivative along {kind} weights"
            yield attempt(alone, _derivative, subject, alone, kind)
        if together.judged or not asked(name.__eq__):
            yield attempt(cuts.NAME, cuts.last_cut, subject)


def _derivative(subject: Subject, name: str, *kinds: str) -> Measurement:
    found = directional_derivative(subject, *kinds)
    if not found.decides:
        seen = f"differences agree to {found.trust:.1g} of {found.size:.1g}"
        return skipped(name, f"a kink, or nothing to see: {seen}")
    return Comparison(
        name,
        Divergence(max_abs=abs(found.analytic - found.numeric), scale=found.size, positions=1),
        found.budget,
        "two neighbouring steps of the central difference",
        broken=Verdict.FAIL if found.analytic == 0.0 else Verdict.WARN,
        unit="derivatives",
        note=f"autograd says {found.analytic:.6g}, the central difference {found.numeric:.6g}",
        cause=Cause("gradient-detached" if found.analytic == 0.0 else ""),
    )
