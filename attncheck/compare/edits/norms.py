"""Norms: kind, eps, the offset of one, and norms that are missing or stand elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from attncheck.compare.decoder.spec import DecoderSpec, LayerSpec, NormKind, NormSpec
from attncheck.compare.edits.edit import Edit, Fields

EPS = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
KINDS = {"rms": "RMS norm", "layer": "layer norm"}
FIELDS = {
    "before_attention": "norm before attention",
    "after_attention": "norm after attention",
    "before_mlp": "norm before the feed-forward block",
    "after_mlp": "norm after the feed-forward block",
}
AFTER_SUMS = {
    "before_attention": "norm after the attention's sum",
    "before_mlp": "norm after the feed-forward block's sum",
}
LATENTS = {"query_latent": "norm of the queries' latent", "key_latent": "norm of the keys' latent"}
QK = {"query_norm": "query norm", "key_norm": "key norm"}


def variants(norm: NormSpec) -> Iterator[tuple[str, str, str, NormSpec | None]]:
    """Every other norm that one may have become: name, what it has, what is right, and the norm;
    None is no norm at all.
    """
    yield "norm-missing", "missing", "", None
    kind: NormKind = "layer" if norm.kind == "rms" else "rms"
    yield "norm-kind", f"computed as {KINDS[kind]}", KINDS[norm.kind], replace(norm, kind=kind)
    for eps in EPS:
        if abs(eps - norm.eps) > 1e-3 * norm.eps:
            yield "norm-eps", f"with eps {eps:g}", f"{norm.eps:g}", replace(norm, eps=eps)
    yield "norm-doubled", "applied twice", "", replace(norm, times=2)
    outside = replace(norm, outside=True)
    yield "norm-eps", "with eps added after the root", "it inside the root", outside
    if norm.weight is not None:
        offset = 1.0 - norm.offset
        scales = ("its weight alone", "one plus its weight")
        got, want = scales if offset == 0 else scales[::-1]
        yield "norm-offset", f"scaled by {got}", want, replace(norm, offset=offset)
        yield "norm-weight", "without its weight", "", replace(norm, weight=None)
        if norm.bias is not None:
            yield "bias-missing", "without its bias", "", replace(norm, bias=None)


def norm_edits(layer: LayerSpec) -> Iterator[Edit]:
    """Every edit of a layer's norms: one norm, and all of them in one way."""
    called = FIELDS | AFTER_SUMS if layer.sum_norms else FIELDS
    for field, words in called.items():
        norm = getattr(layer, field)
        if norm is None:
            continue
        for name, got, want, _ in variants(norm):
            places = _shared(layer, field)
            if places[0] == field:
                apply = _several(places, got)
                yield _edit(name, f"{words} {got}", want, norm.module, apply, cost=2)
            if len(places) > 1 and name == "norm-missing":
                yield _edit(name, f"{words} {got}", want, norm.module, _one(field, got), cost=3)
    for field, words in QK.items():
        norm = getattr(layer.attention, field)
        for name, got, want, changed in variants(norm) if norm else ():
            if changed is not None:
                yield _edit(
                    name, f"{words} {got}", want, norm.module, _one_inside(field, got), cost=2
                )
    yield from _latents(layer)
    yield from _all_norms(layer)
    yield from _places(layer)


def _latents(layer: LayerSpec) -> Iterator[Edit]:
    """Norms of the latents of queries and of keys, each and both together."""
    latents = {each: getattr(layer.attention, each) for each in LATENTS}
    present = [each for each in LATENTS if latents[each] is not None and latents[each].norm]
    for chosen in (
        ([each] for each in present) if len(present) < 2 else (present, *([e] for e in present))
    ):
        first = latents[chosen[0]].norm
        words = "latent norms" if len(chosen) > 1 else LATENTS[chosen[0]]
        for name, got, want, _ in variants(first):

            def apply(each: LayerSpec, kind: str = got, chosen: list[str] = chosen) -> LayerSpec:
                attention = each.attention
                for field in chosen:
                    latent = getattr(attention, field)
                    changed = replace(latent, norm=_variant(latent.norm, kind))
                    attention = replace(attention, **{field: changed})
                return replace(each, attention=attention)

            yield _edit(name, f"{words} {got}", want, first.module, apply, cost=len(chosen))


def eps_edits(layer: LayerSpec, field: str, eps: float) -> Iterator[Edit]:
    """An eps in all norms of a layer, and in one of them."""
    fields = [each for each in FIELDS if getattr(layer, each) is not None]
    for chosen, cost in ((fields, 1), ([field], 2)):

        def apply(each: LayerSpec, chosen: list[str] = chosen) -> LayerSpec:
            changed: Fields = {name: replace(getattr(each, name), eps=eps) for name in chosen}
            return replace(each, **changed)

        norm = getattr(layer, field)
        words = "norms" if len(chosen) > 1 else FIELDS[chosen[0]]
        got, want = f"{words} with eps {eps:g}", f"{norm.eps:g}"
        yield _edit("norm-eps", got, want, norm.module, apply, cost)


def _shared(layer: LayerSpec, field: str) -> list[str]:
    """The places where the norm of a place stands: a parallel block may have one for both."""
    module = getattr(layer, field).module
    norms = {each: getattr(layer, each) for each in FIELDS}
    return [each for each, norm in norms.items() if norm is not None and norm.module == module]


def _variant(norm: NormSpec | None, kind: str) -> NormSpec | None:
    return norm if norm is None else {got: n for _, got, _, n in variants(norm)}.get(kind, norm)


def _one(field: str, kind: str) -> Callable[[LayerSpec], LayerSpec]:
    def apply(layer: LayerSpec) -> LayerSpec:
        fields: Fields = {field: _variant(getattr(layer, field), kind)}
        return replace(layer, **fields)

    return apply


def _several(fields: list[str], kind: str) -> Callable[[LayerSpec], LayerSpec]:
    def apply(layer: LayerSpec) -> LayerSpec:
        for field in fields:
            layer = _one(field, kind)(layer)
        return layer

    return apply


def _one_inside(field: str, kind: str) -> Callable[[LayerSpec], LayerSpec]:
    def apply(layer: LayerSpec) -> LayerSpec:
        fields: Fields = {field: _variant(getattr(layer.attention, field), kind)}
        return replace(layer, attention=replace(layer.attention, **fields))

    return apply


def _all_norms(layer: LayerSpec) -> Iterator[Edit]:
    """The kind, eps or offset of all norms of a layer at once, with or without those inside the
    attention.
    """
    present = [each for each in FIELDS if getattr(layer, each) is not None]
    inside = [each for each in QK if getattr(layer.attention, each) is not None]
    if not present:
        return
    first = getattr(layer, present[0])
    for name, got, want, changed in variants(first):
        if changed is None:
            continue
        for within in ((), inside) if inside else ((),):

            def apply(each: LayerSpec, kind: str = got, within: object = within) -> LayerSpec:
                for field in present:
                    each = _one(field, kind)(each)
                for field in within:  # type: ignore[attr-defined]
                    each = _one_inside(field, kind)(each)
                return each

            words = (
                f"norms {got}" if len(present) + len(within) > 1 else f"{FIELDS[present[0]]} {got}"
            )
            yield _edit(name, words, want, first.module, apply, cost=1)


def _shared_norms(layer: LayerSpec) -> Iterator[Edit]:
    """One norm for both blocks of a parallel layer that has a norm for each."""
    first, second = layer.before_attention, layer.before_mlp
    if not layer.parallel or first is None or second is None or first.module == second.module:
        return
    for norm, words in ((first, FIELDS["before_attention"]), (second, FIELDS["before_mlp"])):

        def apply(each: LayerSpec, norm: NormSpec = norm) -> LayerSpec:
            return replace(each, before_attention=norm, before_mlp=norm)

        yield _edit("norm-shared", f"the {words} for both", "a norm for each", norm.module, apply)


def _places(layer: LayerSpec) -> Iterator[Edit]:
    yield from _shared_norms(layer)
    present = [each for each in FIELDS if getattr(layer, each) is not None]
    for one, other in combinations(present, 2):
        pair = (getattr(layer, one), getattr(layer, other))

        def apply(each: LayerSpec, one: str = one, other: str = other) -> LayerSpec:
            return replace(each, **{one: getattr(each, other), other: getattr(each, one)})

        yield _edit(
            "norm-placement",
            f"the {FIELDS[one]} and the {FIELDS[other]} exchanged",
            "",
            pair[0].module,
            apply,
        )
    moves = (("before_attention", "after_attention"), ("before_mlp", "after_mlp"))
    both = [(a, b) for a, b in moves if getattr(layer, a) is not None]
    for chosen in ([each] for each in both):
        if getattr(layer, chosen[0][1]) is None:
            yield _moved(layer, chosen)
    if len(both) == 2 and all(getattr(layer, b) is None for _, b in both):
        yield _moved(layer, both)
        yield _edit(
            "norm-placement",
            "norms after the sums",
            "them before the blocks",
            getattr(layer, both[0][0]).module,
            lambda each: replace(each, sum_norms=True),
        )
    if layer.sum_norms:
        got, want, module = "norms before the blocks", "them after the sums", layer.module
        yield _edit(
            "norm-placement", got, want, module, lambda each: replace(each, sum_norms=False)
        )

    behind = [(b, a) for a, b in moves if getattr(layer, b) is not None and not getattr(layer, a)]
    for chosen in ([behind] if len(behind) == 2 else []) + [[each] for each in behind]:
        yield _moved(layer, chosen)


def _moved(layer: LayerSpec, moves: list[tuple[str, str]]) -> Edit:
    def apply(each: LayerSpec) -> LayerSpec:
        for before, after in moves:
            each = replace(each, **{after: getattr(each, before), before: None})
        return each

    first = getattr(layer, moves[0][0])
    if layer.sum_norms:
        got = f"{AFTER_SUMS[moves[0][0]].replace(' after', ' before')}"
        return _edit("norm-placement", got, "it after the sum", first.module, apply)
    way, other = FIELDS[moves[0][1]].split()[1], FIELDS[moves[0][0]].split()[1]
    where = "the blocks" if len(moves) > 1 else FIELDS[moves[0][0]].removeprefix(f"norm {other} ")
    return _edit("norm-placement", f"norm {way} {where}", f"it {other}", first.module, apply)


def _edit(
    name: str,
    got: str,
    want: str,
    module: str,
    apply: Callable[[LayerSpec], LayerSpec],
    cost: int = 1,
) -> Edit:
    fix = "putting the norm back" if name in ("norm-missing", "norm-placement") else ""
    return Edit(
        name=name,
        part="norm",
        got=got,
        want=want,
        fix=fix,
        module=module,
        cost=cost,
        on_layer=apply,
    )


def final_eps_edit(spec: DecoderSpec, norm: NormSpec, eps: float) -> Edit:
    """An edit of the eps of the norm before the head."""
    return Edit(
        name="norm-eps",
        part="norm",
        got=f"final norm with eps {eps:g}",
        want=f"{norm.eps:g}",
        module=norm.module,
        on_decoder=lambda each: replace(each, final_norm=replace(norm, eps=eps)),
    )


def outer_norm_edits(spec: DecoderSpec, field: str) -> Iterator[Edit]:
    """Every edit of the `final_norm` or the `embedding_norm`."""
    norm, words = getattr(spec, field), field.replace("_", " ")
    for name, got, want, changed in variants(norm) if norm is not None else ():

        def apply(
            each: DecoderSpec, field: str = field, changed: NormSpec | None = changed
        ) -> DecoderSpec:
            fields: Fields = {field: changed}
            return replace(each, **fields)

        yield Edit(
            name=name,
            part="norm",
            got=f"{words} {got}",
            want=want,
            fix="putting the norm back" if changed is None else "",
            module=norm.module,
            on_decoder=apply,
        )
