"""`attncheck record`: a run written down, to be compared under another release, on another machine,
after a change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attncheck.cli import options as o
from attncheck.cli.options import check_dtype, prompt_text
from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings

Target = Annotated[
    str,
    typer.Argument(
        help="Hub id, folder, .gguf file, builtin:NAME, config:TYPE or file.py:factory."
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "-o", "--output", envvar="ATTNCHECK_OUTPUT", help="Where to write: PATH.safetensors."
    ),
]
Attn = Annotated[
    str | None, typer.Option("--attn", envvar="ATTNCHECK_ATTN", help="Attention implementation.")
]


def record(
    target: Target,
    output: Out = Path("trace.safetensors"),
    attn: Attn = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    random_init: o.RandomInit = False,
    layers: o.Layers = None,
    seed: o.Seed = 0,
    prompt: o.Prompt = None,
    length: o.Length = None,
    offline: o.Offline = False,
    no_progress: o.NoProgress = False,
) -> None:
    """Write down logits, a fingerprint of every module's output and of every weight; `compare PATH
    TARGET` reads it.
    """
    if output.suffix != ".safetensors":
        raise UsageError(f"--output {output}: expected a name that ends in `.safetensors`")
    if not output.resolve().parent.is_dir():
        raise UsageError(f"--output {output}: no such folder `{output.parent}`")
    settings = Settings(
        attn=attn,
        dtype=check_dtype(dtype),
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
        random_init=random_init,
        layers=layers,
        seed=seed,
        prompt=prompt_text(prompt),
        length=length,
        offline=offline,
    )
    from attncheck.cli.progress import Progress
    from attncheck.compare.record import described
    from attncheck.compare.record import record as recorded
    from attncheck.compare.trace import save
    from attncheck.targets.load import load

    with Progress(not no_progress, 1) as bar:
        bar.says(f"loading {target}")
        found = recorded(load(target, settings))
    save(found, output)
    typer.echo(
        f"{output}: {described(found)}, {len(found.ways)} ways of asking, {len(found.weights)} weights"
    )
