"""A tiny model of any type in a folder, whose rotary fields are nobody's default: an engine that
does not read one of them is seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attncheck.core.errors import TargetError, Unsupported, first_line
from attncheck.core.settings import Settings
from attncheck.engines.guesses.fields import rope_bases
from attncheck.engines.twin import Twin
from attncheck.model.compat import text_config
from attncheck.model.subject import Subject
from attncheck.targets import builtin, random_init
from attncheck.targets.target import Target

BASE = 3217.0
"""A rotary base that no model has."""
SHARES = {0.5: 0.75, 0.25: 0.5, 0.75: 0.5}
"""A rotating share of each head in place of the usual one."""
SHARE = "partial_rotary_factor"


def saved_tiny(target: Target, settings: Settings, folder: str) -> str:
    """The folder, with a tiny model in it.

    Raises:
        TargetError: the library cannot build or save such a model.
    """
    where = target.where
    made = (
        builtin.build(where, settings.attn)
        if target.kind == "builtin"
        else random_init.build(where, settings)
    )
    model = unusual(made)
    try:
        model.float().save_pretrained(folder)
    except Exception as error:
        raise TargetError(f"{target.text}: not saved: {first_line(error)}") from error
    return str(Path(folder))


def add_old_keys(folder: str) -> bool:
    """Add the rotary fields of a folder under the keys of transformers 4; False if it has none."""
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    table = config.get("rope_parameters")
    if not isinstance(table, dict) or any(isinstance(each, dict) for each in table.values()):
        return False
    plain = {key: value for key, value in table.items() if key not in ("rope_type", "type")}
    old = {**config, **plain}
    if table.get("rope_type", "default") != "default":
        old["rope_scaling"] = {**table, "type": table["rope_type"]}
    path.write_text(json.dumps(old), encoding="utf-8")
    return True


def unusual(model: Any) -> Any:
    """The model with unusual rotary fields, where its class takes them."""
    twin = Twin(Subject.of(model, "tiny", dtype="float64"))
    for edit in _edits(twin):
        try:
            twin = twin.rebuilt(edit)
        except Unsupported:
            continue
    return twin.subject.model


def _edits(twin: Twin) -> Iterator[Any]:
    for _, _, put in rope_bases(twin):
        yield lambda config, put=put: put(text_config(config), BASE)
    table = getattr(text_config(twin.subject.model.config), "rope_parameters", None)
    share = table.get(SHARE) if isinstance(table, dict) else None
    if share in SHARES:
        yield lambda config: text_config(config).rope_parameters.update({SHARE: SHARES[share]})
