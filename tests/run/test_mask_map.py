"""mask: what is really read, as a picture, on healthy and on broken models."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from attncheck.__main__ import main
from attncheck.cli.mask_drawing import png, svg
from attncheck.core.capability import Capability
from attncheck.core.errors import Unsupported, UsageError
from attncheck.core.settings import Settings
from attncheck.model.subject import Subject
from attncheck.run.mask_map import LayerMap, alike, layer_maps, map_spec, shrunk
from attncheck.targets.load import load


def maps(subject: Subject, **call: Any) -> list[LayerMap]:
    return layer_maps(subject, map_spec(subject, **call))


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"chunks": (5, 1, 2, 16)},
        {"padding": 5},
        {"padding": 4, "side": "right"},
        {"padding": 3, "chunks": (10, 1, 16)},
        {"documents": (9, 15)},
    ],
)
def test_a_healthy_model_reads_what_its_config_specifies(
    subject: Subject, call: dict[str, Any]
) -> None:
    found = maps(subject, **call)
    assert [layer.index for layer in found] == [0, 1, 2, 3]
    assert {layer.wrong for layer in found} == {0}
    assert len(list(alike(found))) == 1


def test_pictures_of_windows_padding_and_documents(subject: Subject) -> None:
    window = maps(load("builtin:window", Settings()))
    assert [layer.expected for layer in window] == ["a window of 8", "the whole past"] * 2
    assert window[0].rows[9] == "..########.............."
    padded = maps(subject, padding=3)[0].rows
    assert (padded[2], padded[5]) == (" " * 27, "...###" + "." * 21)
    packed = maps(subject, documents=(9, 15))[0].rows
    assert packed[10] == "." * 9 + "##" + "." * 13


def test_a_mask_that_reads_one_ahead_is_drawn() -> None:
    found = maps(load("builtin:broken-mask", Settings()))
    assert found[0].rows[2] == "###+...................."
    assert [layer.passed for layer in found] == [False] * 4


def test_without_a_kernel_to_ask_the_gradient_answers() -> None:
    alone = load("builtin:alibi", Settings())
    alone.can.learn("watch", Capability("nothing can be watched"))
    found = maps(alone)
    assert {layer.how for layer in found} == {"gradient"}
    assert found[0].rows[23] == "#" * 24
    assert found[0].rows[1] == " " * 24
    with pytest.raises(
        Unsupported, match="nothing can be watched: the gradient shows forwards without"
    ):
        maps(alone, padding=3)


def test_attention_of_a_models_own_is_drawn_as_well() -> None:
    found = maps(load("builtin:alibi", Settings()))
    assert {layer.how for layer in found} == {"kernel"}
    assert found[0].rows[1] == "##" + "." * 22


def test_large_pictures_shrink_to_the_worst_of_each_square() -> None:
    assert shrunk(["#...", "##..", "##+.", "####"], 2) == ["#.", "#+"]
    assert shrunk(["##", "##"], 2) == ["##", "##"]


def test_svg_and_png_hold_the_picture(subject: Subject) -> None:
    found = maps(subject)
    drawn = svg(found)
    assert drawn.startswith("<svg ")
    assert "layers 0, 1, 2, 3: the whole past" in drawn
    assert drawn.count("<rect ") == 1 + 4 + 24 + 23
    image = png(found)
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    start = image.index(b"IDAT")
    size = int.from_bytes(image[start - 4 : start], "big")
    assert len(zlib.decompress(image[start + 4 : start + 4 + size])) == 24 * 8 * (1 + 24 * 8 * 3)


def test_lengths_that_do_not_fit_are_refused(subject: Subject) -> None:
    for call, said in [
        ({"chunks": (3,)}, "3 tokens, but the input has 24"),
        ({"documents": (3, 4)}, "7 tokens, but the input has 24"),
        ({"documents": (9, 15), "padding": 2}, "packed sequences are not padded"),
    ]:
        with pytest.raises(UsageError, match=said):
            maps(subject, **call)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["builtin:gqa", "--layer", "1"], 0, "layer 1: the whole past"),
        (["builtin:broken-mask", "--layer", "0"], 1, "pairs are not as expected"),
        (["builtin:gqa", "--layer", "9"], 2, "this model has 0, 1, 2, 3"),
        (["builtin:gqa", "--padding", "up:3"], 2, "expected left:N or right:N"),
        (["builtin:gqa", "--packed", "9,x"], 2, "expected lengths"),
        (["builtin:alibi", "--padding", "left:3"], 0, "seen at the kernel"),
    ],
)
def test_the_command(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mask", *arguments]) == code
    out, err = capsys.readouterr()
    assert said in " ".join((out + err).split())


def test_the_command_writes_pictures(tmp_path: Path) -> None:
    assert (
        main(
            [
                "mask",
                "builtin:gqa",
                "--svg",
                str(tmp_path / "m.svg"),
                "--png",
                str(tmp_path / "m.png"),
            ]
        )
        == 0
    )
    assert (tmp_path / "m.svg").read_text().endswith("</svg>\n")
    assert (tmp_path / "m.png").stat().st_size > 200
