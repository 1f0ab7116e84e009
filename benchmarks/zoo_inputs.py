"""Real inputs of every zoo model, for calibration and for evaluation, and what its outputs are worth.

    from benchmarks.zoo_inputs import run, samples, score
    inputs = samples("ppocrv4_rec", "evaluation", 200)
    score("ppocrv4_rec", run("ppocrv4_rec", float_model, inputs), run("ppocrv4_rec", int8_model, inputs))

    python -m benchmarks.zoo_inputs [NAME ...] [--count 100]        what the float models make of them

The two splits share no text, file, page, photo or recording. A sample is seeded by its number: the first ten
of a hundred are the ten. Photos, street pictures and recordings lie in ../shared/data; texts, fonts, pictures
and files come out of pinned wheels (sources.toml). What is slow to make is kept in zoo/inputs.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import file_inputs, sound_inputs, sources, text_inputs
from benchmarks.metrics import METRICS, score, truth
from benchmarks.sources import SHARED_DATA, Split, zoo, zoo_model
from edgefuse.datasets.images import read_image
from edgefuse.errors import InputError
from edgefuse.runtime.preprocess import Preprocess, from_dict

__all__ = [
    "METRICS",
    "alphabet",
    "feeds",
    "float_model",
    "labels",
    "model_path",
    "photo_files",
    "run",
    "run_shaped",
    "samples",
    "score",
    "truth",
    "zoo_model",
]

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]
CALIBRATION_PHOTOS = 100
STREETS: dict[Split, tuple[str, ...]] = {
    "calibration": ("fd0.jpg", "fd1.jpg"),
    "evaluation": ("fd2.jpg", "fd3.jpg", "fd4.jpg"),
}
STATE, MASK = "state", "attention_mask"


def samples(name: str, split: Split, count: int) -> dict[str, Array]:
    """Return `count` samples of zoo model `name`: arrays named as its inputs, [samples, ...], in its dtype.

    The rest of a shape is the model's own without its first 1: [count, 3, 224, 224] for [1, 3, 224, 224],
    [count, 2, 1, 128] for [2, 1, 128]. `feeds` gives them one by one in the model's shape.
    Raises InputError for a name that the zoo has not, more samples than there are, or absent photos.
    """
    return _made(name, split, count)[0]


def labels(name: str, split: Split, count: int) -> list[Any]:
    """Return what is right for each of the samples, as `truth` reads it; None where it is not known."""
    return _made(name, split, count)[1]


def model_path(name: str) -> Path:
    """Return the path of the model's ONNX file, fetched where it is not there."""
    path: Path = zoo().get(name)
    return path


def feeds(name: str, inputs: Arrays, index: int) -> dict[str, Array]:
    """Return sample `index` in the shapes of the model's inputs."""
    return _fed(zoo_model(name)["shapes"], inputs, index)


def _fed(shapes: Mapping[str, Sequence[int]], inputs: Arrays, index: int) -> dict[str, Array]:
    return {key: array[index].reshape(shapes[key]) for key, array in inputs.items()}


def run(name: str, call: Callable[[dict[str, Array]], Arrays], inputs: Arrays) -> dict[str, Array]:
    """Return the outputs of `call` for each sample, [samples, ...]; see `run_shaped`."""
    return run_shaped(zoo_model(name)["shapes"], call, inputs)


def run_shaped(
    shapes: Mapping[str, Sequence[int]], call: Callable[[dict[str, Array]], Arrays], inputs: Arrays
) -> dict[str, Array]:
    """Return the outputs of `call` for each sample, [samples, ...].

    shapes: of the model's inputs, by name.  A first axis of 1 becomes that of the samples. Where there is a
    `state`, it is the call's own `stateN` of the sample before, but at the start of a clip (where the given
    state is zero). Where there is an `attention_mask`, outputs are 0 in the padding, which nobody reads.
    """
    rows: dict[str, list[Array]] = {}
    last: Arrays = {}
    for index in range(len(next(iter(inputs.values())))):
        fed = _fed(shapes, inputs, index)
        if STATE in fed and last and fed[STATE].any():
            fed[STATE] = last["stateN"]
        last = call(fed)
        for key, array in last.items():
            rows.setdefault(key, []).append(array[0] if array.shape[:1] == (1,) else array)
    outputs = {key: np.stack(each) for key, each in rows.items()}
    if MASK in inputs:
        mask = inputs[MASK][:, :, None] != 0
        outputs = {key: np.where(mask, array, 0) for key, array in outputs.items()}
    return outputs


def float_model(name: str) -> Callable[[dict[str, Array]], Arrays]:
    """Return the model itself in ONNX Runtime with its optimiser off."""
    from edgefuse.graph.reference import judge_session

    session = judge_session(model_path(name).read_bytes())
    names = [output.name for output in session.get_outputs()]
    return lambda fed: dict(zip(names, session.run(names, fed), strict=True))


def _made(name: str, split: Split, count: int) -> tuple[dict[str, Array], list[Any]]:
    kind = zoo_model(name)["inputs"]
    if count < 1 or split not in STREETS:
        raise InputError("no such samples", "a split and a count of at least 1", f"{split!r}, {count}")
    if kind in {"photos", "scenes"}:
        return _MAKERS[kind](name, split, count)
    path = _cache() / f"{name}-{split}-{count}-{_version()}.npz"
    if path.is_file():
        with np.load(path) as stored:
            kept = {key: stored[key] for key in stored.files if key != "labels"}
            return kept, pickle.loads(stored["labels"].tobytes())  # noqa: S301  (our own file, see _version)
    arrays, right = _MAKERS[kind](name, split, count)
    _keep(path, arrays, right)
    return arrays, right


def _cache() -> Path:
    return Path(os.environ.get("EDGEFUSE_ZOO_INPUTS", str(zoo().CACHE / "inputs")))


@functools.cache
def _version() -> str:
    """Return a digest of all that decides what samples look like."""
    folder = Path(__file__).parent
    names = (
        "zoo_inputs.py",
        "text_inputs.py",
        "sound_inputs.py",
        "file_inputs.py",
        "sources.py",
        "sources.toml",
    )
    text = b"".join((folder / each).read_bytes() for each in names) + zoo().TABLE.read_bytes()
    present = str(SHARED_DATA.is_dir()) + sys.version
    return hashlib.sha256(text + present.encode()).hexdigest()[:16]


def _keep(path: Path, arrays: dict[str, Array], right: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        np.savez(file, labels=np.frombuffer(pickle.dumps(right), np.uint8), **arrays)  # type: ignore[arg-type]
    os.replace(temporary, path)


def _steps(name: str) -> tuple[str, Preprocess]:
    entry = zoo_model(name)
    (key,) = entry["shapes"]
    return key, from_dict(entry["preprocess"])


def _images(name: str, pictures: list[Array]) -> dict[str, Array]:
    key, steps = _steps(name)
    return {key: np.concatenate([steps.apply(picture) for picture in pictures])}


def photo_files(split: Split) -> list[Path]:
    """Return the photos by sha256 of their names: the first 100 calibrate, the others evaluate."""
    files = sorted(
        (SHARED_DATA / "photos").glob("*.jpg"),
        key=lambda path: hashlib.sha256(path.name.encode()).hexdigest(),
    )
    if not files:
        raise InputError("the photos are not here", "../shared/data/photos beside this checkout", "none")
    return files[:CALIBRATION_PHOTOS] if split == "calibration" else files[CALIBRATION_PHOTOS:]


def _first(files: list[Any], count: int, what: str) -> list[Any]:
    if count > len(files):
        raise InputError(f"there are fewer {what}", f"at most {len(files)} samples", str(count))
    return files[:count]


def _photos(name: str, split: Split, count: int) -> tuple[dict[str, Array], list[Any]]:
    files = _first(photo_files(split), count, f"{split} photos")
    right = [int(path.name.split("_", 1)[0]) for path in files]
    return _images(name, [read_image(path) for path in files]), right


def _scenes(name: str, split: Split, count: int) -> tuple[dict[str, Array], list[Any]]:
    """Street pictures (whole, four quarters that overlap, each mirrored too), and photos between them."""
    streets: list[Array] = []
    for file in STREETS[split]:
        whole = read_image(SHARED_DATA / "detect" / file)
        high, wide = whole.shape[0] * 3 // 5, whole.shape[1] * 3 // 5
        parts = [
            whole,
            whole[:high, :wide],
            whole[:high, -wide:],
            whole[-high:, :wide],
            whole[-high:, -wide:],
        ]
        streets += [side for part in parts for side in (part, part[:, ::-1])]
    chosen = [*streets, *photo_files(split)]
    order = np.random.default_rng(7).permutation(len(chosen))
    ordered = _first([chosen[index] for index in order], count, f"{split} scenes")
    pictures = [
        read_image(each) if isinstance(each, Path) else np.ascontiguousarray(each) for each in ordered
    ]
    return _images(name, pictures), [None] * count


def _pages(name: str, split: Split, count: int) -> tuple[dict[str, Array], list[Any]]:
    key, steps = _steps(name)
    size = (320, 320) if name == "ppocrv4_det" else (480, 600)
    rows, right = [], []
    for index in range(count):
        if index % 8 == 7:
            picture = text_inputs.real_page(split, index, name, size)
            where = None
        else:
            picture, where = text_inputs.page(split, index, name, size)
        turn = index % 4 if name == "pplcnet_orientation" else 0
        rows.append(steps.apply(np.ascontiguousarray(np.rot90(picture, -turn))))
        right.append(turn if name == "pplcnet_orientation" else where)
    return {key: np.concatenate(rows)}, right


def _lines(name: str, split: Split, count: int) -> tuple[dict[str, Array], list[Any]]:
    # Longer lines would be shrunk to fit: the angle model, 192 pixels wide, then reads 78 % and not 97 %.
    longest = 22 if name == "ppocrv4_rec" else 12
    made = [text_inputs.line(split, index, name, longest) for index in range(count)]
    if name == "ppocrv4_rec":
        return _images(name, [picture for picture, _ in made]), [text for _, text in made]
    pictures = [
        np.ascontiguousarray(picture[::-1, ::-1] if i % 2 else picture) for i, (picture, _) in enumerate(made)
    ]
    return _images(name, pictures), [index % 2 for index in range(count)]


def _music(name: str, split: Split, count: int) -> tuple[dict[str, Array], list[Any]]:
    (key,) = zoo_model(name)["shapes"]
    made = [sound_inputs.music(split, index) for index in range(count)]
    return {key: np.stack([sound for sound, _ in made])}, [found or None for _, found in made]


def _speech(name: str, split: Split, count: int) -> tuple[dict[str, Array], list[Any]]:
    """Pieces in the order in which they are heard, with the state that the float model has before each."""
    call = float_model(name)
    pieces, states = [], []
    for clip in sound_inputs.speech_pieces(split, count):
        state = np.zeros((2, 1, 128), np.float32)
        for piece in clip:
            pieces.append(piece)
            states.append(state)
            state = np.asarray(call({"input": piece[None], STATE: state})["stateN"])
    return {"input": np.stack(pieces), STATE: np.stack(states)}, [None] * count


def _files(name: str, split: Split, count: int) -> tuple[dict[str, Array], list[Any]]:
    found = _first(list(file_inputs.files(split)), count, f"{split} files")
    right = [file_inputs.right_classes(kind) for kind, _ in found]
    return {"bytes": np.stack([file_inputs.file_tokens(content) for _, content in found])}, right


def _sentences(name: str, split: Split, count: int) -> tuple[dict[str, Array], list[Any]]:
    texts = sources.sentences(split)
    order = np.random.default_rng(11).permutation(len(texts))
    chosen = _first([texts[index] for index in order], count, f"{split} sentences")
    ids = np.stack([text_inputs.token_ids(text) for text in chosen])
    # The padding has number 0, and no other piece has.
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).astype(np.int64),
        "token_type_ids": np.zeros_like(ids),
    }, [None] * count


_MAKERS: dict[str, Callable[[str, Split, int], tuple[dict[str, Array], list[Any]]]] = {
    "photos": _photos,
    "scenes": _scenes,
    "pages": _pages,
    "lines": _lines,
    "music": _music,
    "speech": _speech,
    "files": _files,
    "sentences": _sentences,
}


def alphabet(name: str) -> list[str]:
    """Return the text of each symbol of the reading model: blank, characters of its file, space."""
    from edgefuse.graph.reference import judge_session

    described = judge_session(model_path(name).read_bytes()).get_modelmeta().custom_metadata_map
    return ["", *described["character"].split("\n"), " "]


def main() -> int:
    """Print what each float model makes of its evaluation samples."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(METRICS))
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    for name in arguments.names or METRICS:
        inputs = samples(name, "evaluation", arguments.count)
        outputs = run(name, float_model(name), inputs)
        signs = alphabet(name) if name == "ppocrv4_rec" else ()
        right = truth(name, outputs, labels(name, "evaluation", arguments.count), signs)
        print(name, {key: (array.dtype.name, array.shape) for key, array in inputs.items()}, right)
    return 0


if __name__ == "__main__":
    sys.exit(main())
