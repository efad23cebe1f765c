"""What this machine offers: versions, devices, memory, attention implementations, caches."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from attncheck.core import registry
from attncheck.core.errors import AttncheckError, Unsupported, first_line
from attncheck.core.settings import Settings
from attncheck.core.version import __version__
from attncheck.model.forward_spec import ForwardSpec
from attncheck.targets.load import load

PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "gguf")
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2")
GIB = 1 << 30


def survey() -> Iterator[tuple[str, str]]:
    """(name, value) in the order in which they are shown."""
    yield "attncheck", __version__
    yield "python", platform.python_version()
    for package in PACKAGES:
        yield package, _version(package)
    yield "platform", platform.platform()
    yield "devices", _devices()
    memory = psutil.virtual_memory()
    free, total = memory.available / GIB, memory.total / GIB
    yield "memory", f"{free:.1f} GiB free of {total:.1f}, {torch.get_num_threads()} threads"
    for name in IMPLEMENTATIONS:
        yield f"attention {name}", _implementation(name)
    yield "hub cache", _cache()
    yield "probes", f"{len(registry.installed())} installed"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    cuda = range(torch.cuda.device_count())
    names = ["cpu", *(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in cuda)]
    return ", ".join([*names, *(["mps"] if torch.backends.mps.is_available() else [])])


def _implementation(name: str) -> str:
    """Whether one forward of the built-in model runs under it."""
    try:
        subject = load("builtin:gqa", Settings(dtype="float32"))
        subject.logits(ForwardSpec(subject.inputs.tokens, attn=name))
    except (Unsupported, AttncheckError) as reason:
        return f"no: {reason}"
    except Exception as error:
        return f"no: {first_line(error)}"
    return "works"


def _cache() -> str:
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")) / "hub"
    models = list(home.glob("models--*")) if home.is_dir() else []
    return f"{home} ({len(models)} models)"
