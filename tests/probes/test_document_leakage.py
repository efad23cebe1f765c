"""document-leakage: borders that a model overlooks, in one row and in the second of two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from conftest import tiny_llama
from probing import ACCUSING, HEALTHY, assert_caught, case, finding, loaded
from torch import Tensor, nn

from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.targets.load import load
from attncheck_probes.document_leakage.packed_rows import pack

PROBE = "document-leakage"
STRICT = "restarted positions, no mask, cache off"
BLOCKED = "4D block mask, restarted positions"


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_are_not_accused(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), PROBE)
    assert found.verdict not in ACCUSING


def test_controls_are_two_and_caught(subject: Subject) -> None:
    controls = finding(subject, PROBE).controls
    assert len(controls) == 2
    assert all(control.detected for control in controls)


@pytest.mark.parametrize(
    "fault",
    ["document-leak"],
)
def test_planted_faults_are_caught_and_leave_nothing_behind(subject: Subject, fault: str) -> None:
    assert_caught(subject, PROBE, fault)


@pytest.mark.parametrize("name", ["broken-mask", "broken-positions"])
def test_the_broken_builtins_do_not_fail_here(name: str) -> None:
    assert finding(loaded(f"builtin:{name}"), PROBE).verdict is not Verdict.FAIL


def test_a_leak_over_eos_alone_fails_only_when_isolation_is_asked_for(subject: Subject) -> None:
    strict = finding(subject, PROBE, policy="isolate")
    assert strict.verdict is Verdict.FAIL
    assert strict.summary.startswith("EOS alone: logits differ by ")
    assert finding(subject, PROBE).verdict is Verdict.WARN


def test_the_isolating_call_isolates_and_the_lookalikes_do_not(subject: Subject) -> None:
    cases = {case.name: verdict_of(case) for case in finding(subject, PROBE).cases}
    assert cases["4D block mask, restarted positions"] is Verdict.PASS
    assert cases["restarted positions, no mask, cache off"] is Verdict.PASS
    assert cases["restarted positions, no mask, default cache"] is Verdict.WARN
    assert cases["restarted positions, 2D mask of ones, cache off"] is Verdict.WARN


def test_rows_hold_three_documents_whose_borders_differ(subject: Subject) -> None:
    packed = pack(subject.inputs)
    assert packed.boundaries == ((0, 4, 12, 24), (0, 9, 15, 24))
    assert packed.lengths == ((4, 8, 12), (9, 6, 9))
    assert packed.restarting[1] == (*range(9), *range(6), *range(9))
    assert packed.mask.segments[0] == (0,) * 4 + (1,) * 8 + (2,) * 12
    assert packed.watched == ((12, 24), (9, 15))
    for row, (start, stop) in enumerate(packed.replaced):
        other = packed.changed(subject.inputs).rows[row]
        assert {at for at in range(24) if other[at] != packed.rows[row][at]} == set(
            range(start, stop)
        )
    assert [packed.rows[0][at] for at in (3, 11)] == [subject.inputs.eos] * 2


@pytest.mark.parametrize("length", [4, 5, 7])
def test_short_rows_hold_two_documents_at_least(length: int) -> None:
    packed = pack(load("builtin:gqa", Settings(length=length)).inputs)
    assert all(
        len(lengths) >= 2 and min(lengths[:-1]) >= 2 and sum(lengths) == length
        for lengths in packed.lengths
    )


def test_a_border_behind_the_first_one_is_overlooked(
    monkeypatch: pytest.MonkeyPatch, subject: Subject
) -> None:
    builder: Any = transformers.masking_utils
    right = builder.find_packed_sequence_indices

    def first_restart_only(position_ids: Any) -> Any:
        found = right(position_ids)
        return found.clamp(max=1) if found is not None else None

    assert verdict_of(case(finding(subject, "document-leakage"), STRICT)) is Verdict.PASS
    monkeypatch.setattr(builder, "find_packed_sequence_indices", first_restart_only)
    found = finding(loaded("builtin:gqa"), "document-leakage")
    broken = case(found, STRICT)
    assert found.verdict is verdict_of(broken) is Verdict.FAIL
    assert broken.divergence.first_position == 15, (
        "the third document of the second row moves with its second"
    )
    assert verdict_of(case(found, BLOCKED)) is Verdict.PASS


def test_angles_of_the_first_row_for_every_row_show_beside_a_mask_of_blocks() -> None:
    model = tiny_llama().double()

    def of_row_0(module: Any, args: Any, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**call, "position_ids": call["position_ids"][:1]}

    model.model.rotary_emb.register_forward_pre_hook(of_row_0, with_kwargs=True)
    found = finding(Subject.of(model, "row 0", dtype="float64"), "document-leakage")
    broken = case(found, BLOCKED)
    assert found.verdict is verdict_of(broken) is Verdict.FAIL
    assert broken.note == "row 1"
    assert broken.divergence.first_position == 12, (
        "where the first row restarts, inside the second row's second document"
    )


def test_a_leak_that_one_row_shows_is_about_that_row() -> None:
    found = finding(loaded("config:opt"), "document-leakage")
    broken = case(found, STRICT)
    assert verdict_of(broken) is Verdict.FAIL
    assert broken.rerun is not None
    assert [len(side.tokens) for side in (broken.rerun.got, broken.rerun.want)] == [1, 1]
    assert broken.divergence.first_position == 4


class PackedByPositions(nn.Module):
    """Reads the mean of the document so far; documents begin where the first row restarts."""

    def __init__(self, own_rows: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own_rows = own_rows
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """logits_BTV."""
        x, length = self.embed(input_ids), input_ids.shape[1]
        places = torch.arange(length)[None] if position_ids is None else position_ids
        places = places.expand(input_ids.shape)
        begins = (places if self.own_rows else places[:1].expand(input_ids.shape)) == 0
        number = begins.cumsum(1)
        same = (number[:, :, None] == number[:, None]) & torch.ones(length, length).tril().bool()
        return self.head(x + (same / same.sum(-1, keepdim=True)).to(x.dtype) @ x)


@pytest.mark.parametrize("own_rows", [True, False])
def test_documents_of_one_row_used_for_all_fail_though_nothing_promises_isolation(
    own_rows: bool,
) -> None:
    subject = Subject.of(PackedByPositions(own_rows).double(), "packed", dtype="float64")
    broken = case(finding(subject, "document-leakage"), STRICT)
    assert verdict_of(broken) is (Verdict.PASS if own_rows else Verdict.FAIL)
    assert broken.note.endswith("; one row alone isolates them") is not own_rows


class TellsNothingApart(nn.Module):
    """Attention of one layer over all tokens so far, with positions for its embedding alone; with
    `second` another layer, which does separate documents.
    """

    def __init__(self, second: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.second, self.embed, self.place = second, nn.Embedding(64, 16), nn.Embedding(64, 16)
        self.layers = nn.ModuleList([Reading(), Reading()])
        self.head = nn.Linear(16, 64)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """logits_BTV."""
        length = input_ids.shape[1]
        places = torch.arange(length)[None] if position_ids is None else position_ids
        x = self.embed(input_ids) + self.place(places)
        plain = torch.ones(length, length).tril().bool()[None]
        number = (places == 0).cumsum(1)
        own = plain & (number[:, :, None] == number[:, None])
        return self.head(self.layers[1](self.layers[0](x, plain), own if self.second else plain))


class Reading(nn.Module):
    """Attention of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        """x and what it reads."""
        q, k, v = (each(x)[:, None] for each in (self.q, self.k, self.v))
        scores = (q @ k.mT / 4).masked_fill(~allowed[:, None], -torch.inf)
        return x + (scores.softmax(-1) @ v)[:, 0]


@pytest.mark.parametrize("second", [False, True])
def test_a_model_in_which_nothing_separates_documents_is_not_asked_to(second: bool) -> None:
    subject = Subject.of(TellsNothingApart(second).double(), "apart", dtype="float64")
    asked = case(finding(subject, "document-leakage"), STRICT)
    assert verdict_of(asked) is (Verdict.WARN if second else Verdict.SKIP)
    if not second:
        assert "nothing in this model separates documents" in asked.note
        strict = case(finding(subject, "document-leakage", policy="isolate"), STRICT)
        assert verdict_of(strict) is Verdict.WARN
