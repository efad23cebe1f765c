"""Controls are tried in the order of what they take."""

from __future__ import annotations

from attncheck.model.subject import Subject
from attncheck.run.worth.chosen import Chosen
from attncheck.run.worth.cover import Ranked
from attncheck.run.worth.pricing import priced

QUESTION = "labels of one row"


def test_cheap_controls_come_first_and_those_without_a_place_last(subject: Subject) -> None:
    order = (Ranked("labels", QUESTION, 1, 1, 1, 1, chosen=True),)
    # no layer has a window, and attention by groups is looked up before it is changed
    known = {"window-ignored": QUESTION, "kv-groups-tiled": QUESTION, "label-shift": QUESTION}
    controls = priced(Chosen(order, {"labels": known}), subject)
    assert next(iter(controls["labels"])) == "label-shift"
    assert controls["labels"].keys() == known.keys()
