"""Lines and pages of text, rendered as a camera or a scanner might see them; sentences as token numbers."""

from __future__ import annotations

import functools
import io
import unicodedata
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.sources import SHARED_DATA, Split, fonts, sentences, wheel_path, zoo

__all__ = ["CORE", "TEXT", "line", "page", "real_page", "token_ids", "wordpiece"]

Array = np.ndarray[Any, np.dtype[Any]]
# Values of a page's label map: inside a line's box, and in the middle half of its height.
TEXT, CORE = 1, 2
SEQUENCE = 128
_SEEDS = {"calibration": 101, "evaluation": 202}


def stream(kind: str, split: Split, index: int) -> np.random.Generator:
    """Return the generator of sample `index`: a sample does not depend on how many are made."""
    return np.random.default_rng([*kind.encode(), _SEEDS[split], index])


@functools.lru_cache(maxsize=512)
def _font(number: int, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(io.BytesIO(fonts()[number]), size)


def _any_font(rng: np.random.Generator, size: int) -> ImageFont.FreeTypeFont:
    return _font(int(rng.integers(len(fonts()))), size)


def _words(split: Split, rng: np.random.Generator, longest: int) -> str:
    """Return a piece of a sentence of at most `longest` characters, or a code such as a robot reads."""
    if rng.random() < 0.25:
        return _code(rng)
    words = sentences(split)[int(rng.integers(len(sentences(split))))].split()
    start = int(rng.integers(len(words)))
    text = words[start][:longest]
    for word in words[start + 1 :]:
        if len(text) + 1 + len(word) > longest:
            break
        text += " " + word
    return text.upper() if rng.random() < 0.1 else text


def _code(rng: np.random.Generator) -> str:
    digits = "".join(str(d) for d in rng.integers(0, 10, 8))
    letters = "".join(chr(65 + int(d)) for d in rng.integers(0, 26, 4))
    forms = (
        f"{letters}-{digits[:5]}",
        f"{digits[:2]}.{digits[2:4]}.20{digits[4:6]}",
        f"No. {digits[:6]}",
        f"{digits[:3]}.{digits[3:5]} kg",
        f"S/N {letters[:2]}{digits}",
        f"Room {digits[:3]}{letters[0]}",
        f"{digits[:2]}:{digits[2:4]} h",
    )
    return forms[int(rng.integers(len(forms)))]


def _colors(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return paper and ink, at least 90 levels apart; one in five is light on dark."""
    paper = (
        rng.integers(170, 256, 3) if rng.random() < 0.6 else rng.integers(140, 256) + rng.integers(-12, 13, 3)
    )
    ink = paper - rng.integers(90, 140) if rng.random() < 0.3 else rng.integers(0, 60, 3)
    if rng.random() < 0.2:
        paper, ink = ink, paper
    return tuple(int(v) for v in np.clip(paper, 0, 255)), tuple(int(v) for v in np.clip(ink, 0, 255))


def _quad(rng: np.random.Generator, size: tuple[int, int], amount: float) -> tuple[float, ...]:
    """Return corners for Image.QUAD: the picture's own, each moved by up to `amount` of its height."""
    width, height = size
    moves = rng.uniform(-amount, amount, 8) * height
    corners = (0, 0, 0, height, width, height, width, 0)
    return tuple(float(at + move) for at, move in zip(corners, moves, strict=True))


def _seen(picture: Image.Image, rng: np.random.Generator, softness: float) -> Image.Image:
    """Return a picture with the light, blur, noise and compression of a camera."""
    if rng.random() < 0.5:
        picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.2, softness))))
    levels: Array = np.asarray(picture, dtype=np.float32)
    if rng.random() < 0.4:
        ramp = np.linspace(rng.uniform(0.75, 1.0), rng.uniform(0.9, 1.1), levels.shape[1])
        levels = levels * ramp[None, :, None]
    levels = levels + rng.normal(0.0, rng.uniform(0.0, 9.0), levels.shape)
    picture = Image.fromarray(np.clip(np.rint(levels), 0, 255).astype(np.uint8))
    if rng.random() < 0.4:
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=int(rng.integers(45, 95)))
        picture = Image.open(buffer).convert("RGB")
    return picture


def line(split: Split, index: int, kind: str, longest: int) -> tuple[Array, str]:
    """Return one line of text as uint8 [H, W, 3] (RGB), and the text.

    kind: seeds another series.  longest: characters.
    """
    rng = stream(kind, split, index)
    text = _words(split, rng, longest)
    font = _any_font(rng, int(rng.integers(28, 56)))
    paper, ink = _colors(rng)
    left, top, right, bottom = (int(v) for v in font.getbbox(text))
    pad_x, pad_y = (int(v) for v in rng.integers(3, 12, 2))
    size = (right - left + 2 * pad_x, bottom - top + 2 * pad_y)
    picture = Image.new("RGB", size, paper)
    ImageDraw.Draw(picture).text((pad_x - left, pad_y - top), text, fill=ink, font=font)
    if rng.random() < 0.5:
        quad = _quad(rng, size, 0.05)
        picture = picture.transform(
            size, Image.Transform.QUAD, quad, Image.Resampling.BICUBIC, fillcolor=paper
        )
    return np.asarray(_seen(picture, rng, 1.2)), text


def page(split: Split, index: int, kind: str, size: tuple[int, int]) -> tuple[Array, Array]:
    """Return a page as uint8 [H, W, 3] (RGB), and where its text is: uint8 [H, W] of 0, TEXT and CORE.

    size: width and height in pixels.
    """
    rng = stream(kind, split, index)
    paper, ink = _colors(rng)
    picture, where = Image.new("RGB", size, paper), Image.new("L", size, 0)
    draw, mark = ImageDraw.Draw(picture), ImageDraw.Draw(where)
    columns = int(rng.integers(1, 3)) if size[0] > 400 else 1
    for column in range(columns):
        _fill(split, rng, (draw, mark), ink, (size[0] * column // columns, size[0] // columns, size[1]))
    if rng.random() < 0.6:
        quad = _quad(rng, size, 0.04)
        picture = picture.transform(
            size, Image.Transform.QUAD, quad, Image.Resampling.BICUBIC, fillcolor=paper
        )
        where = where.transform(size, Image.Transform.QUAD, quad, Image.Resampling.NEAREST)
    return np.asarray(_seen(picture, rng, 0.9)), np.asarray(where)


def _fill(
    split: Split,
    rng: np.random.Generator,
    draws: tuple[ImageDraw.ImageDraw, ImageDraw.ImageDraw],
    ink: tuple[int, ...],
    column: tuple[int, int, int],
) -> None:
    """Write lines down one column (left, width, height in pixels), a heading now and then."""
    draw, mark = draws
    left, width, height = column
    margin = int(rng.integers(10, 25))
    body = int(rng.integers(15, 28))
    number = int(rng.integers(len(fonts())))
    y = margin + int(rng.integers(0, height // 3))
    while y < height - body - margin:
        size = int(body * rng.uniform(1.2, 1.7)) if rng.random() < 0.15 else body
        font = _font(number, size)
        text = _words(split, rng, max(4, int((width - 2 * margin) / (0.58 * size))))
        while len(text) > 2 and font.getlength(text) > width - 2 * margin:
            text = text[:-1].rstrip()
        x = left + margin
        box = [round(v) for v in draw.textbbox((x, y), text, font=font)]
        draw.text((x, y), text, fill=ink, font=font)
        mark.rectangle((box[0], box[1], box[2], box[3]), fill=TEXT)
        quarter = (box[3] - box[1]) // 4
        mark.rectangle((box[0] + quarter, box[1] + quarter, box[2] - quarter, box[3] - quarter), fill=CORE)
        y += int(size * rng.uniform(1.35, 1.7)) if rng.random() < 0.85 else size * int(rng.integers(2, 5))


def real_page(split: Split, index: int, kind: str, size: tuple[int, int]) -> Array:
    """Return a part of a photographed page, uint8 [H, W, 3]; each split has its own page.

    size: width and height in pixels of the part at the page's own scale; the page is cut where it is smaller.
    """
    if split == "calibration":
        source: Any = io.BytesIO(zoo().read_member(wheel_path("zoo:images"), "skimage/data/page.png"))
    else:
        source = SHARED_DATA / "textpage.png"
    if isinstance(source, Path) and not source.is_file():
        source = io.BytesIO(zoo().read_member(wheel_path("zoo:images"), "skimage/data/text.png"))
    rng = stream(kind + "real", split, index)
    with Image.open(source) as opened:
        picture = opened.convert("RGB")
    width, height = (min(want, has) for want, has in zip(size, picture.size, strict=True))
    left = int(rng.integers(0, picture.width - width + 1))
    top = int(rng.integers(0, picture.height - height + 1))
    return np.asarray(picture.crop((left, top, left + width, top + height)))


@functools.cache
def _vocabulary() -> dict[str, int]:
    outer = zoo().read_member(wheel_path("sentences"), "all_minilm_l6_v2/model.zip")
    with zipfile.ZipFile(io.BytesIO(outer)) as archive:
        tokenizer = msgspec.json.decode(archive.read("tokenizer.json"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    return vocabulary


def wordpiece(word: str, vocabulary: dict[str, int], unknown: str = "[UNK]") -> list[int]:
    """Return the numbers of one word's pieces: the longest known piece first; [UNK] where none is known.

    Wu et al. 2016, as BERT has it: pieces after the first begin with ##.

    >>> wordpiece("unable", {"un": 1, "##able": 2, "[UNK]": 0})
    [1, 2]
    """
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            number = vocabulary.get(("##" if start else "") + word[start:end])
            if number is not None:
                pieces.append(number)
                start = end
                break
        else:
            return [vocabulary[unknown]]
    return pieces


def _basic_tokens(text: str) -> list[str]:
    """Return lower-case words and single marks of punctuation, accents dropped (BERT's basic tokenizer)."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    spaced = "".join(f" {c} " if not (c.isalnum() or c.isspace()) else c for c in plain)
    return spaced.split()


def token_ids(text: str) -> Array:
    """Return int64 [128]: [CLS], the pieces, [SEP], zeros."""
    vocabulary = _vocabulary()
    pieces = [number for word in _basic_tokens(text) for number in wordpiece(word, vocabulary)][
        : SEQUENCE - 2
    ]
    ids = np.zeros(SEQUENCE, dtype=np.int64)
    ids[: len(pieces) + 2] = [vocabulary["[CLS]"], *pieces, vocabulary["[SEP]"]]
    return ids
