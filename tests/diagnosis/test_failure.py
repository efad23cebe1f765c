"""A failing case taken apart: the trusted path beside both sides."""

from __future__ import annotations

import torch
from probing import loaded

from attncheck.diagnosis.failure import _padding, max_diff_at, open_case, unmeasured
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.padding import pad_rows
from attncheck.model.subject import Subject


def test_the_healthy_model_equals_the_trusted_path() -> None:
    for target in ("builtin:gqa", "builtin:mha", "builtin:window", "builtin:moe"):
        subject = loaded(target)
        spec = (
            ForwardSpec(subject.inputs.tokens, chunks=(9, 1, subject.inputs.length - 10)),
            ForwardSpec(subject.inputs.tokens),
        )
        assert open_case(subject, unmeasured("healthy", *spec)).wrong == ()


def test_values_that_are_not_finite_must_be_so_on_both_sides() -> None:
    left, right = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)
    left[0, 0, 0] = torch.nan
    assert max_diff_at(left, right) == float("inf")
    right[0, 0, 0] = torch.nan
    assert max_diff_at(left, right) == 0.0
    assert max_diff_at(left, right, torch.tensor([[False, True]])) == 0.0


def test_the_sequences_that_fail_are_those_that_both_sides_have_otherwise(
    subject: Subject,
) -> None:
    padded = pad_rows(subject)
    batch = padded.spec("right")
    last = len(batch.tokens) - 1
    alone = ForwardSpec((padded.rows[last],))
    assert open_case(subject, unmeasured("alone", batch, alone)).failing_rows() == [last]
    first, second = subject.inputs.row, subject.inputs.other(subject.inputs.row)
    got, want = ForwardSpec((first, first)), ForwardSpec((first, second))
    assert open_case(subject, unmeasured("batch", got, want)).failing_rows() == [1]
    foreign = ForwardSpec((subject.inputs.fresh(5, salt=9),))
    assert open_case(subject, unmeasured("foreign", got, foreign)).failing_rows() == [0, 1]


def test_padding_that_moves_tokens_is_told_from_padding_behind_them() -> None:
    rows, behind, before = ((3, 4, 5),), Mask2D(((1, 1, 0),)), Mask2D(((0, 1, 1),))
    assert _padding(ForwardSpec(rows)) == 0
    assert _padding(ForwardSpec(rows, mask=Mask2D(((1, 1, 1),)))) == 0
    assert _padding(ForwardSpec(rows, mask=behind)) == 1
    assert _padding(ForwardSpec(rows, mask=before, positions=((0, 0, 1),))) == 1
    assert _padding(ForwardSpec(rows, mask=before)) == 2
