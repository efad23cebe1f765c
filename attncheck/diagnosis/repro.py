"""A failure as a script that needs only torch and transformers, kept only if it shows the fault.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Finding
from attncheck.diagnosis.failure import REFUSED
from attncheck.diagnosis.replay import spec_from_dict
from attncheck.model.compat import CACHE_NAMES
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.subject import Subject
from attncheck.targets.target import parse

LINES = 30
LETTERS = 80
PATIENCE = 180
UNWANTED = (
    "transformers_version",
    "architectures",
    "dtype",
    "torch_dtype",
    "_name_or_path",
    "model_type",
)

SCRIPT = '''"""{title}"""
import sys, torch, transformers
{model}
@torch.no_grad()
def logits(tokens, chunks=(), positions=None, mask=None, use_cache=False):
    ids, cache, outputs, start = torch.tensor(tokens), None, [], 0
    for size in chunks or (ids.shape[1],):
        stop = start + size
        call = {{"{ids}": ids[:, start:stop]}}{use_cache}{positions}{mask}
        output = model(**call, **({{"{cache}": cache}} if cache is not None else {{}}))
        cache, start = getattr(output, "{output}", None), stop
        outputs.append(output.logits)
    return torch.cat(outputs, 1)
want = {want}
got = {got}
model.double()
noise = (want - {want}).abs().max()
diff = (got - want).abs().amax(-1)
worst = int(diff.argmax())
print("expected", want[worst][:4].tolist(), "observed", got[worst][:4].tolist())
print(f"largest difference {{diff.max():.3g}} at {{worst}}, rounding explains {{noise:.1g}}")
sys.exit(bool(diff.max() > 10 * noise))
'''


def script_of(subject: Subject, finding: Finding) -> str:
    """The script for a finding that holds its two forwards.

    Raises:
        Unsupported: no script can be written; the reason says why.
    """
    if "got" not in finding.replay:
        raise Unsupported("the failing case does not compare two calls of the model")
    if subject.forward_adapter.fixed:
        raise Unsupported("the model needs more than token ids")
    got, want = (spec_from_dict(finding.replay[side]) for side in ("got", "want"))
    special = got.cache_kind or got.attentions or got.unpromoted or got.media or want.media
    if special or got.attn or want.attn:
        raise Unsupported("the call needs more than ids, positions, a mask and a cache")
    places = _compared(got, want)
    text = SCRIPT.format(
        title=_title(subject, finding),
        model=_model(subject),
        ids=subject.forward_adapter.ids_name,
        cache=subject.forward_adapter.cache_name or "past_key_values",
        output=_cache_attribute(subject),
        use_cache=_use_cache(got, want),
        positions=_positions(subject, got, want),
        mask=_mask(subject, got, want),
        got=_call(got, places[0]),
        want=_call(want, places[1]),
    )
    if text.count("\n") > LINES:
        raise Unsupported(f"it does not fit into {LINES} lines")
    return text


def with_script(subject: Subject, finding: Finding, directory: Path) -> Finding:
    """The finding with the path of its script, or with the reason why there is none."""
    try:
        script = {"script": str(offered(subject, finding, directory))}
    except (OSError, *REFUSED) as reason:
        script = {"no_script": str(reason)}
    return replace(finding, replay={**finding.replay, **script})


def offered(subject: Subject, finding: Finding, directory: Path) -> Path:
    """Write the script into `directory`, run it, and keep it only if it shows the fault.

    Raises:
        Unsupported: no script can be written, or the script does not show the fault.
    """
    text = script_of(subject, finding)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{_slug(subject)}-{finding.probe}.py"
    path.write_text(text, encoding="utf-8")
    try:
        ran = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        path.unlink()
        raise Unsupported(f"the script takes longer than {PATIENCE} s") from None
    if ran.returncode != 1 or "largest difference" not in ran.stdout:
        path.unlink()
        last = (ran.stderr or ran.stdout).strip().splitlines()
        raise Unsupported(
            f"the script does not show the fault ({last[-1] if last else 'it prints nothing'})"
        )
    return path


def _slug(subject: Subject) -> str:
    """A name for the target under its settings; no other target and no other setting has it."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in subject.name).strip("-")
    whole = json.dumps([subject.name, vars(subject.settings)], default=str, sort_keys=True)
    mark = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[-LETTERS:].strip('-')}-{mark}"


def _title(subject: Subject, finding: Finding) -> str:
    found = finding.diagnosis
    what = f"{found.how} by {found.fault}" if found is not None and found.fault else "unexplained"
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    case = finding.replay.get("case", finding.probe)
    return f"{subject.facts.class_name}, {case}: {what} ({versions}, seed {subject.settings.seed})."


def _model(subject: Subject) -> str:
    """The lines that build the model: a small random one from a config, or the loaded one."""
    target = parse(subject.name)
    if target.kind in ("builtin", "config"):
        if target.where.startswith("broken-"):
            raise Unsupported(
                "the fault is part of a built-in model of this tool, not of transformers"
            )
        return _random_model(subject)
    if target.kind == "factory":
        return _from_factory(Path(target.where).resolve(), target.attribute)
    where, extra = target.where, ""
    if target.kind == "gguf":
        path = Path(target.where).resolve()
        where, extra = str(path.parent), f", gguf_file={path.name!r}"
    loaded = f"transformers.{type(subject.model).__name__}.from_pretrained({where!r}{extra})"
    return f"model = {loaded}.float().eval()"


def _random_model(subject: Subject) -> str:
    config = subject.config
    data = {key: value for key, value in config.to_diff_dict().items() if key not in UNWANTED}
    attn = f'\nmodel.set_attn_implementation("{subject.attn}")' if subject.attn else ""
    if hasattr(subject.model, "set_experts_implementation"):
        attn += '\nmodel.set_experts_implementation("eager")'
    return (
        f"config = transformers.{type(config).__name__}(**{_literal(data)})\n"
        f"torch.manual_seed({subject.settings.seed})\n"
        f"model = transformers.{type(subject.model).__name__}(config).eval(){attn}\n"
        "for name, p in model.named_parameters():  # unit gain: at 0.02 rounding can hide a leak\n"
        "    if p.ndim > 1 and p.requires_grad: "
        "torch.nn.init.normal_(p, std=1.0 if 'embed' in name else p.shape[-1] ** -0.5)"
    )


def _literal(data: Mapping[str, Any]) -> str:
    """The data as Python source; numbers that are not finite have no literal of their own."""
    return re.sub(
        r"(?<=[ \[{(])(-?)(inf|nan)(?=[,\]})])",
        r"float('\1\2')",
        repr(json.loads(json.dumps(data))),
    )


def _from_factory(path: Path, attribute: str) -> str:
    return (
        f"sys.path.insert(0, {str(path.parent)!r})\n"
        f"made = __import__({path.stem!r}).{attribute}()\n"
        "model = (made[0] if isinstance(made, tuple) else made).float().eval()"
    )


def _cache_attribute(subject: Subject) -> str:
    with torch.no_grad():
        output = subject.passes.call(subject.inputs.tokens, use_cache=True).output
    return next(
        (name for name in CACHE_NAMES if getattr(output, name, None) is not None), "past_key_values"
    )


def _use_cache(got: ForwardSpec, want: ForwardSpec) -> str:
    call = "call['use_cache'] = bool(chunks) or use_cache"
    if any(side.use_cache is None for side in (got, want)):
        return f"\n        if use_cache is not None or chunks: {call}"
    return f"\n        {call}"


def _positions(subject: Subject, got: ForwardSpec, want: ForwardSpec) -> str:
    if got.positions is None and want.positions is None:
        return ""
    name = subject.forward_adapter.positions_name
    return f"\n        if positions: call['{name}'] = torch.tensor(positions)[:, start:stop]"


def _mask(subject: Subject, got: ForwardSpec, want: ForwardSpec) -> str:
    kinds = {type(side.mask) for side in (got, want) if side.mask is not None}
    if not kinds:
        return ""
    if len(kinds) > 1:
        raise Unsupported("the two calls need masks of two forms")
    name = subject.forward_adapter.mask_name
    if kinds == {Mask2D}:
        return f"\n        if mask: call['{name}'] = torch.tensor(mask)[:, :stop]"
    return (
        "\n        segment = torch.tensor(mask or [[0] * ids.shape[1]] * len(ids))[:, None]"
        "\n        allowed = (segment[..., None] == segment[..., None, :]).tril()"
        "[:, :, start:stop, :stop]"
        f"\n        if mask: call['{name}'] = "
        "(~allowed * torch.finfo(torch.float32).min).to(model.dtype)"
    )


def _call(spec: ForwardSpec, place: str) -> str:
    arguments = [repr(_lists(spec.tokens))]
    if spec.chunks:
        arguments.append(f"chunks={spec.chunks}")
    if spec.positions is not None:
        arguments.append(f"positions={_lists(spec.positions)}")
    if spec.mask is not None:
        mask = spec.mask.rows if isinstance(spec.mask, Mask2D) else spec.mask.segments
        arguments.append(f"mask={_lists(mask)}")
    if spec.use_cache is not False and not spec.chunks:
        arguments.append(f"use_cache={spec.use_cache}")
    return f"logits({', '.join(arguments)}){place}"


def _lists(rows: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    return [list(row) for row in rows]


def _compared(got: ForwardSpec, want: ForwardSpec) -> tuple[str, str]:
    """Which logits (T, V) of the two calls must agree, as indexing.

    Raises:
        Unsupported: the two forwards do not say it.
    """
    for row, tokens in enumerate(got.tokens):
        for start in range(got.length - want.length + 1):
            if tokens[start : start + want.length] == want.tokens[0] and len(want.tokens) == 1:
                return f"[{row}, {start}:{start + want.length}]", "[0]"
    if len(got.tokens) == len(want.tokens) == 1 and got.length == want.length:
        changed = [t for t in range(got.length) if got.tokens[0][t] != want.tokens[0][t]]
        place = f"[0, :{changed[0]}]" if changed[0] else f"[0, {changed[-1] + 1}:]"
        return place, place
    raise Unsupported("it is unknown which positions of the two calls must agree")
