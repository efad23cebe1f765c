"""What a target is beside its name: the files that it is read from, the code that checks it, and,
where only loading can tell, the weights themselves.

Two runs whose identities are equal give the same report.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.core import registry
from attncheck.core.errors import AttncheckError
from attncheck.core.settings import Settings
from attncheck.suite.plan import Job
from attncheck.targets.adapters import base_of
from attncheck.targets.checkpoints import reachable
from attncheck.targets.target import Target, parse

LIBRARIES = ("torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers", "gguf")
RUNTIMES = ("mlx", "mlx-lm", "ctranslate2")
SOURCES = ("attncheck", "attncheck_probes", "transformers")
"""Packages that are developed in place, where an edit leaves the version as it is."""
READ_WHOLE = 64 << 20
"""Bytes up to which a file is told by its content; a larger one by its size and times."""
PATIENCE = 10.0


def digest(*parts: Any) -> str:
    """A name for data: 32 hexadecimal digits."""
    text = json.dumps(parts, default=str, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def identity(job: Job) -> str | None:
    """The identity of a job's target as far as files and the hub tell it; None where they do not.

    A factory may read anything: only what it returns can be compared.
    """
    try:
        found = _of_target(parse(job.target), job.settings)
    except AttncheckError as error:
        found = [str(error)]
    return None if found is None else digest(found)


def _of_target(target: Target, settings: Settings) -> list[Any] | None:
    if target.kind in ("builtin", "config"):
        return [target.where]
    if target.kind in ("factory", "server", "runtime"):
        return None
    if target.kind == "hub":
        commit = _commit(target, settings)
        return None if commit is None else [target.where, commit]
    place = Path(target.where).resolve()
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    own = [_stamp(each) for each in files if each.is_file()]
    if target.kind != "adapter":
        return [str(place), own]
    base = _of_target(parse(base_of(place)), settings)
    return None if base is None else [str(place), own, base]


def _commit(target: Target, settings: Settings) -> str | None:
    """The commit of a repository that a load would read now."""
    import huggingface_hub

    revision = target.revision or settings.revision
    if not settings.offline and reachable():
        with suppress(Exception):  # whatever the client raises: the cache may know it
            found = huggingface_hub.HfApi().model_info(
                target.where, revision=revision, timeout=PATIENCE
            )
            return found.sha
    cached = huggingface_hub.try_to_load_from_cache(target.where, "config.json", revision=revision)
    return Path(cached).parent.name if isinstance(cached, str) else None


def _stamp(path: Path) -> list[Any]:
    stat = path.stat()
    if stat.st_size > READ_WHOLE:
        return [path.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    return [path.name, hashlib.sha256(path.read_bytes()).hexdigest()]


def code_of(job: Job) -> str:
    """The code that checks: libraries, probes given as files, and a map of devices."""
    files = [job.home / name.rpartition(":")[0] for name, _ in job.probes if registry.is_path(name)]
    files += [Path(job.settings.device_map or "auto")]
    return digest(_installed(), [_stamp(each) for each in files if each.is_file()])


@cache
def _installed() -> str:
    """The versions of libraries, and the sources of those that may be edited in place."""
    sources = []
    for package in SOURCES:
        for root in _homes_of(package):
            files = sorted(Path(root).rglob("*.py"))
            sources += [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    return digest(sys.version, [_version(name) for name in (*LIBRARIES, *RUNTIMES)], sources)


def _version(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return ""


def of_loaded(model: nn.Module) -> str:
    """The identity of a model in memory: its weights, its settings, what was hooked into it, and
    the source files that it brought along.
    """
    whole = hashlib.sha256()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        whole.update(_bytes(tensor))
    plain = [(name, _plain(module)) for name, module in model.named_modules()]
    config = getattr(model, "config", None)
    return digest(whole.hexdigest(), repr(model), str(config), plain, list(_own_sources()))


def _bytes(tensor: Tensor) -> bytes:
    kept = tensor.detach().contiguous().cpu().flatten()
    return kept.view(torch.uint8).numpy().tobytes() if kept.numel() else b""


def _plain(module: nn.Module) -> dict[str, Any]:
    """Attributes and hooks of a module, as far as they are plain values or functions."""
    own = {key: value for key, value in vars(module).items() if key not in ("_modules", *TENSORS)}
    return {key: _described(value) for key, value in own.items()}


TENSORS = ("_parameters", "_buffers")
DEPTH = 4
"""How far a function is followed into those that it wraps."""


def _described(value: Any, depth: int = DEPTH) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth == 0 or isinstance(value, (nn.Module, Tensor)):
        return type(value).__qualname__
    if isinstance(value, Mapping):
        return [[str(key), _described(each, depth - 1)] for key, each in value.items()]
    if isinstance(value, (tuple, list)):
        return [_described(each, depth - 1) for each in value]
    if isinstance(value, partial):
        return _described((value.func, value.args, value.keywords), depth)
    code = getattr(value, "__code__", None)
    if not isinstance(code, CodeType):
        return type(value).__qualname__
    cells = getattr(value, "__closure__", None) or ()
    inner = [_described(each.cell_contents, depth - 1) for each in cells]
    constants = [each for each in code.co_consts if isinstance(each, (int, float, str))]
    return [code.co_name, code.co_code.hex(), code.co_names, constants, inner]


def _own_sources() -> Iterator[list[Any]]:
    """The files of modules that belong to no installed package."""
    homes = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platlib", "purelib")]
    homes += [Path(place) for name in SOURCES for place in _homes_of(name)]
    files = {getattr(each, "__file__", None) for each in list(sys.modules.values())}
    for path in sorted(Path(each) for each in files if isinstance(each, str)):
        if path.suffix == ".py" and path.is_file() and not _within(path, homes):
            yield [str(path), _stamp(path)]


def _homes_of(package: str) -> Iterable[str]:
    spec = find_spec(package)
    return (spec.submodule_search_locations or ()) if spec else ()


def _within(path: Path, homes: list[Path]) -> bool:
    return any(path.is_relative_to(home) for home in homes)
