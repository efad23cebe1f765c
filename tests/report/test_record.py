"""Reports to JSON and back."""

from __future__ import annotations

import json

from report.reports import everything

from attncheck.report.record import from_json, to_json
from attncheck.report.schema import first_complaint


def test_json_fits_its_schema_and_keeps_lists_of_numbers_on_one_line() -> None:
    text = to_json(everything())
    assert first_complaint(json.loads(text)) == ""
    assert '"cuts": [12]' in text
    assert json.loads(text)["targets"][0]["results"][0]["controls"][0]["max_abs"] == 2.4


def test_a_report_of_a_later_version_can_be_read() -> None:
    data = json.loads(to_json(everything()))
    data["later"] = 1
    for result in data["targets"][0]["results"]:
        for part in (
            result,
            *result["cases"],
            *result["controls"],
            result["diagnosis"],
            result["location"],
            result["known"],
        ):
            (part or {})["later"] = 1
    assert to_json(from_json(json.dumps(data))) == to_json(everything())
