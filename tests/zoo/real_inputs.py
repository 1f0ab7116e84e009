"""Real inputs for the trained models: photos, pages, lines, speech and files of ../shared/data."""

from __future__ import annotations

import hashlib
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from edgefuse.runtime.preprocess import from_dict

Feeds = dict[str, np.ndarray]


def real_inputs(name: str, entry: dict[str, Any], data: Path) -> Iterator[Feeds]:
    """Yield a few feeds for the zoo model `name`, described by its entry in examples/zoo.toml."""
    make: Callable[[dict[str, Any], Path], Iterator[Feeds]] = {
        "photos": _images,
        "pages": _images,
        "scenes": _images,
        "lines": _lines,
        "speech": _speech,
        "music": _music,
        "files": _files,
        "sentences": _sentences,
    }[entry["inputs"]]
    return make(entry, data)


def _pictures(kind: str, data: Path) -> list[Path]:
    if kind == "photos":
        return sorted((data / "photos").glob("*.jpg"))[:2]
    if kind == "scenes":
        return sorted((data / "detect").glob("*.jpg"))[:2]
    return [data / "textpage.png", data / "skimage_page.png"]


def _images(entry: dict[str, Any], data: Path) -> Iterator[Feeds]:
    steps = from_dict(entry["preprocess"])
    (name,) = entry["shapes"]
    for path in _pictures(entry["inputs"], data):
        yield {name: steps.apply(np.asarray(Image.open(path).convert("RGB")))}


def _lines(entry: dict[str, Any], data: Path) -> Iterator[Feeds]:
    steps = from_dict(entry["preprocess"])
    (name,) = entry["shapes"]
    page = np.asarray(Image.open(data / "textpage.png").convert("RGB"))
    height = max(page.shape[0] // 12, 24)
    for top in (height, 5 * height):
        yield {name: steps.apply(np.ascontiguousarray(page[top : top + height]))}


def _sound(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        frames = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        return (frames.reshape(-1, file.getnchannels())[:, 0] / 32768.0).astype(np.float32)


def _speech(entry: dict[str, Any], data: Path) -> Iterator[Feeds]:
    sound = _sound(data / "short_wav_easy10s.wav")
    for start in (16000, 40000):
        yield {"input": sound[None, start : start + 576], "state": np.zeros((2, 1, 128), np.float32)}


def _music(entry: dict[str, Any], data: Path) -> Iterator[Feeds]:
    (name,) = entry["shapes"]
    sound = np.resize(_sound(data / "marvin.wav"), 43844)
    yield {name: sound.reshape(1, -1, 1)}


def _files(entry: dict[str, Any], data: Path) -> Iterator[Feeds]:
    for path in (data / "textpage.png", Path(__file__)):
        content = np.frombuffer(path.read_bytes(), np.uint8).astype(np.int32)
        both = np.full(2048, 256, np.int32)
        head, tail = content[:1024], content[-1024:]
        both[: len(head)] = head
        both[2048 - len(tail) :] = tail
        yield {"bytes": both[None]}


def _sentences(entry: dict[str, Any], data: Path) -> Iterator[Feeds]:
    """Word numbers by hash: the tokenizer is not here, and the arithmetic does not depend on it."""
    for text in ("the robot picks up the red cup and puts it on the table", "edge deployment"):
        words = [1000 + int(hashlib.sha256(w.encode()).hexdigest(), 16) % 28000 for w in text.split()]
        ids = np.zeros((1, 128), np.int64)
        ids[0, : len(words) + 2] = [101, *words, 102]
        mask = (ids != 0).astype(np.int64)
        yield {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
