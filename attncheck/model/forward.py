"""Call a model's forward by the meaning of its arguments, whatever they are named.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.core.errors import CallFailed, Unsupported, contained
from attncheck.model.cache_kinds import own_cache
from attncheck.model.codebooks import Codebooks, codebooks_of
from attncheck.model.compat import CACHE_NAMES, cache_of, config_of, text_config
from attncheck.model.inputs import fixed_input, for_rows
from attncheck.model.media_recipes import PICTURES
from attncheck.model.refusal import REFUSALS
from attncheck.model.signature import LABELS, USUAL, is_opaque, parameters_of, with_fields
from attncheck.numerics.constants import without_constants

TOKEN_TYPES = "token_type_ids"
Edit = Callable[[dict[str, Any]], dict[str, Any]]


@final
@dataclass(frozen=True)
class ForwardOutput:
    """What one forward returned: logits_BTV, the cache and the whole output."""

    logits_BTV: Tensor
    cache: Any
    output: Any


@final
@dataclass
class ForwardAdapter:
    """Calls one model. `fixed` holds arguments that every call gets, such as an encoder's input;
    `codebooks` adds to the ids what stands beside each; `marks_suffix` marks text as no part of a
    prefix, which the model would read both ways.

    Older releases refuse a cache without `cache_position`, or return none unless one is passed in:
    both are found by trying.
    """

    model: nn.Module
    fixed: dict[str, Any] = field(default_factory=dict)
    fed: int = field(default=0, init=False)
    codebooks: Codebooks | None = None
    marks_suffix: bool = False

    def __post_init__(self) -> None:
        self.opaque = is_opaque(self.model)
        parameters = USUAL if self.opaque else parameters_of(self.model)

        def first(*names: str) -> str | None:
            return next((name for name in names if name in parameters), None)

        ids_name = first("decoder_input_ids", "input_ids")
        self.ids_name = ids_name or (parameters[0] if parameters else "")
        decoder = "decoder_" if self.ids_name.startswith("decoder") else ""
        self.mask_name = first(f"{decoder}attention_mask")
        self.positions_name = first("decoder_position_ids", "position_ids")
        self.cache_name = first(*CACHE_NAMES)
        self.takes_use_cache = "use_cache" in parameters or "kwargs" in parameters
        self.takes_cache_position = "cache_position" in parameters
        self.needs_cache_position = False
        self.needs_own_cache = False
        self.labels_name = first(*LABELS)
        self.needs_labels = False
        self.replies_in_shape = False

    def share_with(self, other: ForwardAdapter) -> None:
        """Give another model's encoder the same input, where both have one of that name."""
        if self.fixed.keys() == other.fixed.keys():
            other.fixed = self.fixed

    @property
    def text_config(self) -> Any:
        """The part of the config that describes the text decoder."""
        return text_config(config_of(self.model))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(
            (p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32
        )

    def arguments(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
    ) -> dict[str, Any]:
        """Keyword arguments for `forward`; anything None is left to the model.

        Raises:
            Unsupported: the model has no argument of that meaning.
        """
        fixed = {name: for_rows(value, ids_BT, self.dtype) for name, value in self.fixed.items()}
        call = {**self.token_arguments(ids_BT), **fixed}
        for meaning, name, value in (
            ("position_ids", self.positions_name, positions_BT),
            ("attention_mask", self.mask_name, mask),
            ("cache", self.cache_name, cache),
        ):
            if value is None:
                continue
            if name is None:
                raise Unsupported(f"{type(self.model).__name__}.forward takes no `{meaning}`")
            call[name] = value
        if use_cache is not None and self.takes_use_cache:
            call["use_cache"] = use_cache
        return call

    def token_arguments(self, ids_BT: Tensor) -> dict[str, Any]:
        """The ids with all that stands beside each: codes of codebooks, and the type of a token
        that is no part of a prefix.
        """
        ids = {self.ids_name: ids_BT}
        if self.codebooks is not None:
            ids = self.codebooks.arguments(self.ids_name, ids_BT)
        return ids | ({TOKEN_TYPES: torch.ones_like(ids_BT)} if self.marks_suffix else {})

    def call(
        self,
        ids_BT: Tensor,
        *,
        before: int = 0,
        extra: dict[str, Any] | None = None,
        media: dict[str, Any] | None = None,
        **given: Any,
    ) -> ForwardOutput:
        """One forward; `before` is how many tokens the cache holds, which some releases need.

        `media` are the arguments of pictures and sounds; logits of items in front of the text are
        left out.

        Raises:
            Unsupported: the output holds no logits of shape (B, T, V).
            CallFailed: it does not, where those of another call did.
        """
        wants_cache = given.get("use_cache") is True
        if self.needs_own_cache and wants_cache and given.get("cache") is None:
            given["cache"] = own_cache(self.model, ids_BT.shape[0], self.dtype)
        arguments = {**self.arguments(ids_BT, **given), **(extra or {}), **(media or {})}
        if self.needs_labels and self.labels_name:
            arguments.setdefault(self.labels_name, ids_BT)
        output = with_fields(self._run(ids_BT, arguments, before, given.get("cache")))
        logits_BTV = getattr(output, "logits", None)
        if self._keeps_last(logits_BTV, ids_BT):
            return self.call(ids_BT, before=before, extra=extra, media=media, **given)
        if media and isinstance(logits_BTV, Tensor) and logits_BTV.shape[1] > ids_BT.shape[1]:
            output.logits = logits_BTV[:, -ids_BT.shape[1] :]
        logits_BTV = self._logits(output, ids_BT)
        cache = cache_of(output)
        if cache is None and wants_cache:
            cache = given.get("cache")
            if self.cache_name and not self.needs_own_cache:
                self.needs_own_cache = True
                return self.call(ids_BT, before=before, extra=extra, media=media, **given)
        return ForwardOutput(logits_BTV, cache, output)

    def _keeps_last(self, logits_BTV: Any, ids_BT: Tensor) -> bool:
        """Whether the last token alone got logits for want of labels; later calls get them."""
        alone = isinstance(logits_BTV, Tensor) and logits_BTV.ndim == 3 and logits_BTV.shape[1] == 1
        known = self.needs_labels or self.replies_in_shape or not self.labels_name
        if not alone or ids_BT.shape[1] == 1 or known:
            return False
        self.needs_labels = True
        return True

    def _logits(self, output: Any, ids_BT: Tensor) -> Tensor:
        """logits_BTV of an output; where one call gave logits of this shape, every other must."""
        kind, logits_BTV = type(self.model).__name__, getattr(output, "logits", None)
        if not isinstance(logits_BTV, Tensor) or logits_BTV.ndim != 3:
            raise Unsupported(f"{kind} returns no logits for every position")
        if logits_BTV.shape[:2] == ids_BT.shape:
            self.replies_in_shape = True
        elif self.replies_in_shape:
            raise CallFailed(
                f"{kind} returns logits of shape {tuple(logits_BTV.shape)} "
                f"for ids of shape {tuple(ids_BT.shape)}"
            )
        elif logits_BTV.shape[1] != ids_BT.shape[1]:
            raise Unsupported(f"{kind} returns no logits for every position")
        return without_constants(logits_BTV)

    def _run(self, ids_BT: Tensor, arguments: dict[str, Any], before: int, cache: Any) -> Any:
        self.fed = before
        """The model's output, with `cache_position` where the model needs it."""
        slots_T = torch.arange(before, before + ids_BT.shape[1], device=ids_BT.device)
        if self.needs_cache_position and cache is not None:
            return self._model({**arguments, "cache_position": slots_T})
        try:
            return self._model(arguments)
        except (ValueError, TypeError, AttributeError):
            if cache is None or not self.takes_cache_position:
                raise
            output = self._model({**arguments, "cache_position": slots_T})
            self.needs_cache_position = True
            return output

    def _model(self, arguments: dict[str, Any]) -> Any:
        with contained():
            return self.model(**arguments)


def adapted_forward(model: nn.Module, pool: tuple[int, ...]) -> ForwardAdapter:
    """The adapter of a model, with the encoder's input and the codebooks that it needs."""
    adapter = ForwardAdapter(model, fixed_input(model, pool))
    adapter.codebooks = codebooks_of(model, adapter.ids_name)
    adapter.marks_suffix = _marks_suffix(adapter, pool)
    return adapter


def _marks_suffix(adapter: ForwardAdapter, pool: tuple[int, ...]) -> bool:
    """Whether a model that takes pictures reads tokens of type 0 both ways, and of type 1 only
    backwards.
    """
    names = parameters_of(adapter.model)
    if TOKEN_TYPES not in names or not any(name in names for name in PICTURES) or len(pool) < 5:
        return False
    device = next((each.device for each in adapter.model.parameters()), torch.device("cpu"))
    rows_BT = torch.tensor([pool[:4], (*pool[:3], pool[4])], device=device)
    reads_ahead = []
    for kind in (0, 1):
        types_BT = torch.full_like(rows_BT, kind)
        try:
            with torch.no_grad():
                output = adapter.call(rows_BT, use_cache=False, extra={TOKEN_TYPES: types_BT})
        except (*REFUSALS, Unsupported):
            return False
        first_BTV, second_BTV = output.logits_BTV[:, :3]
        reads_ahead.append(not torch.equal(first_BTV, second_BTV))
    return reads_ahead == [True, False]


def wrap_forward(model: nn.Module, edit: Edit) -> None:
    """Pass the keyword arguments of every later call of this model through `edit` first."""
    inner = model.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **edit(kwargs))

    model.forward = forward


@contextlib.contextmanager
def edited(model: nn.Module, edit: Edit) -> Iterator[None]:
    """`wrap_forward` for a while."""
    before = model.__dict__.get("forward")
    wrap_forward(model, edit)
    try:
        yield
    finally:
        del model.forward
        if before is not None:
            model.forward = before
