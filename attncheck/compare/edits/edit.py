"""One change of a decoder, with the name of the fault that it is and its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from attncheck.compare.decoder.spec import DecoderSpec, LayerSpec

ROUNDING_ONLY = ""
"""The name of an edit that changes rounding and is no fault."""
Fields = dict[str, Any]
"""Fields of a part and their values."""
OnLayer = Callable[[LayerSpec], LayerSpec]
OnDecoder = Callable[[DecoderSpec], DecoderSpec]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Edit:
    """A fault: its `name`, the `part` that has it ("attention"), the `module` of the reference that
    computes the part, and in words what the other model does (`got`) and what is right (`want`).

    `fix` is how it is put right. Of edits that explain the same, the one with the lowest `cost` is
    named. `key` is the same for one fault in several layers.
    """

    name: str
    part: str
    got: str
    want: str = ""
    fix: str = ""
    module: str = ""
    cost: int = 1
    on_layer: OnLayer | None = None
    on_decoder: OnDecoder | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes this the same fault in several layers."""
        return self.name, self.part, self.got

    @property
    def words(self) -> str:
        """What differs, in a clause."""
        return f"{self.got} where the reference has {self.want}" if self.want else self.got

    @property
    def cure(self) -> str:
        """How it is put right, in a gerund."""
        return self.fix or (f"putting {self.want} in" if self.want else "putting it right")
