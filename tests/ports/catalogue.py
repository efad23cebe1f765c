"""Every hand-written port, and the probes that its fault must show in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ports import language_models as decoders
from ports import plain_modules as modules


@dataclass(frozen=True)
class Port:
    """A model by hand: `build(flaw)`; `probe` finds the fault, and `report` tells where it is from."""

    name: str
    build: Callable[[bool], nn.Module]
    probe: str
    report: str


def _decoder(kind: type[decoders.Plain], probe: str, report: str) -> Port:
    return Port(kind.__name__, lambda flaw: decoders.port(kind, flaw), probe, report)


def _module(kind: type[nn.Module], probe: str, report: str) -> Port:
    return Port(kind.__name__, lambda flaw: modules.module(kind, flaw), probe, report)


PORTS = (
    _decoder(decoders.Sized, "decode-paths", "positions of a step start at zero"),
    _decoder(decoders.CroppedCount, "cache-kinds", "rejected tokens stay in the cache"),
    _decoder(decoders.Reordered, "cache-kinds", "beams move the keys alone"),
    _decoder(decoders.RingBuffer, "decode-paths", "litgpt 2182"),
    _decoder(decoders.Capped, "future-token", "the mask goes through the cap"),
    _decoder(decoders.MaskedBehind, "future-token", "hidden keys count in the softmax"),
    _decoder(decoders.MaskTaken, "padding", "Baichuan-13B 79"),
    _decoder(decoders.FirstRowsMask, "padding", "one mask for the batch"),
    _decoder(decoders.PackedRaises, "document-leakage", "a triangle as wide as the position"),
    _decoder(decoders.Recomputed, "gradient", "MemoryVLA 18"),
    _decoder(decoders.Absorbed, "decode-paths", "latent attention scaled by the latent"),
    _decoder(decoders.Scaled, "repeatability", "embeddings scaled in place"),
    _decoder(decoders.Remembering, "repeatability", "a prompt memory keyed by a sum"),
    _decoder(decoders.PrefixCached, "repeatability", "a prompt memory keyed by the first block"),
    _decoder(decoders.TrainedSwitch, "repeatability", "a flag that training leaves set"),
    _decoder(decoders.LeftRaised, "repeatability", "a flag that an exception leaves set"),
    _decoder(decoders.FirstDtype, "repeatability", "a table in the first dtype seen"),
    _decoder(decoders.StepSees, "padding", "lengths from the sum of the mask"),
    _decoder(decoders.Compacted, "generate", "rows that ended leave without their keys"),
    _decoder(modules.Keywords, "decode-paths", "a forward of keywords, positions from zero"),
    _decoder(modules.DictOutput, "decode-paths", "a dictionary, positions one too far"),
    _module(modules.Nano, "future-token", "nanoGPT, the triangle one too wide"),
    _module(modules.NanoWhole, "future-token", "(logits, loss), the triangle one too wide"),
    _module(modules.Presents, "decode-paths", "tuples of keys, a square mask for chunks"),
    _module(modules.Wrapped, "padding", "a wrapper that drops the mask"),
)
