"""Parameters of the scores that differ from the specified ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attncheck.attention.reference import AttentionParams
from attncheck.observation.deviation import Deviation
from attncheck.observation.kernel import Used
from attncheck.observation.names import named
from attncheck.observation.scores import score_changes
from attncheck.observation.summary import Extent, grouped_parts
from attncheck.observation.words import worded

LENGTH = 4
EXTENT = Extent(layers=frozenset({0}), rows=1, length=LENGTH, starts=(0,))
DISTANCE = torch.arange(LENGTH).float() - torch.arange(LENGTH).float()[:, None]


def told(observed: Tensor | None, specified: Tensor | None) -> tuple[str, str, str]:
    """The words for a bias (1, 1, T, S), its fault and the family."""
    used, right = (
        AttentionParams(
            scale=1.0,
            allowed=torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool),
            heads=(0,),
            bias=None if bias is None else bias[None, None],
        )
        for bias in (observed, specified)
    )
    states = torch.ones(1, 1, LENGTH, 2)
    token_BGS = torch.arange(LENGTH)[None, None]
    changes = score_changes(Used(states, states, states, used), right, token_BGS, 0, 1e-9)
    members = [
        Deviation(what="scores", how=how, layer=0, amount=amount, dtype=dtype)
        for how, amount, dtype in changes
    ]
    groups = worded(grouped_parts(members, EXTENT), EXTENT)
    faults, family = named(groups, EXTENT)
    return groups[0].part.text, *(faults or ("",)), family


@pytest.mark.parametrize(
    ("observed", "specified", "words", "fault", "family"),
    [
        (
            torch.ones(LENGTH, LENGTH).tril(),
            None,
            "a mask is added to the scores as ones and zeros, and hides nothing",
            "",
            "softmax-scale",
        ),
        (
            DISTANCE,
            None,
            "a bias of up to 3 is added to the scores, where none is specified",
            "",
            "softmax-scale",
        ),
        (
            2 * DISTANCE,
            DISTANCE,
            "the specified bias is added to the scores times 2",
            "",
            "alibi-local",
        ),
        (
            DISTANCE.square(),
            DISTANCE,
            "the bias on the scores is not the specified one",
            "",
            "alibi-local",
        ),
        (
            None,
            DISTANCE,
            "the specified bias is not added to the scores",
            "",
            "alibi-local",
        ),
    ],
)
def test_a_bias_is_told_by_what_is_specified(
    observed: Tensor | None, specified: Tensor | None, words: str, fault: str, family: str
) -> None:
    assert told(observed, specified) == (words, fault, family)


def test_biases_of_other_heads_are_told() -> None:
    specified_HTS = torch.stack([DISTANCE**2, 3 * DISTANCE**2 + DISTANCE]).double()
    params = {"scale": 1.0, "heads": (0, 1), "allowed": torch.ones(1, 2, 4, 4, dtype=torch.bool)}
    states, token_BGS = torch.ones(1, 2, LENGTH, 2), torch.arange(LENGTH).expand(1, 2, LENGTH)

    def changes(observed_HTS: Tensor) -> list[str]:
        used, right = (
            AttentionParams(bias=each[None], **params) for each in (observed_HTS, specified_HTS)
        )
        found = score_changes(Used(states, states, states, used), right, token_BGS, 0, 1e-9)
        return [dtype for _, _, dtype in found]

    assert changes(specified_HTS) == []
    assert changes(specified_HTS.flip(0)) == ["other heads"]
    assert changes(specified_HTS[:1].expand(2, LENGTH, LENGTH)) == ["other heads"]
    assert changes(specified_HTS.flip(0) + specified_HTS[:1] / 3) == [""]
