"""The metrics of the zoo: known values on outputs made by hand, and what broken outputs are worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.metrics import METRICS, boxes, note_f1, notes, pooled, score, sqnr_db, truth
from benchmarks.sound_inputs import Note
from benchmarks.text_inputs import CORE, TEXT
from edgefuse.errors import InputError

RNG = np.random.default_rng(3)
FRAME_S = 256 / 22050


def _rows(*best: int, classes: int = 4) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[list(best)]


def _head(*cells: tuple[int, int, int, float], size: float = 0.0) -> np.ndarray:
    """Return a FastestDet head with an object of (row, column, class, objectness) in each cell."""
    head = np.zeros((85, 22, 22), np.float32)
    for row, column, kind, sure in cells:
        head[0, row, column], head[5 + kind, row, column] = sure, 1.0
        head[3:5, row, column] = size
    return head


def _window(*struck: tuple[int, int, int], onset: float = 0.9) -> dict[str, np.ndarray]:
    """Return Basic Pitch's outputs with a note of (frame, frames, MIDI pitch) each."""
    onsets, frames = np.zeros((2, 1, 172, 88), np.float32)
    for start, length, pitch in struck:
        onsets[0, start, pitch - 21] = onset
        frames[0, start : start + length, pitch - 21] = 0.8
    return {"StatefulPartitionedCall:2": onsets, "StatefulPartitionedCall:1": frames}


EXAMPLES = {
    "efficientnet_lite0": {"logits": _rows(0, 2, 1)},
    "pplcnet_orientation": {"y": _rows(0, 2, 1)},
    "ppocr_cls": {"y": _rows(0, 1, 1, classes=2)},
    "magika_v3_3": {"y": _rows(0, 2, 1)},
    "ppocrv4_det": {"y": RNG.random((2, 1, 8, 8)).astype(np.float32)},
    "ppocrv4_rec": {"y": RNG.random((2, 10, 7)).astype(np.float32)},
    "fastestdet": {"758": np.stack([_head((3, 4, 7, 0.9)), _head((10, 10, 0, 0.8))])},
    "basic_pitch": _window((20, 40, 60)),
    "minilm_l6_s128": {"y": RNG.standard_normal((3, 5, 6)).astype(np.float32)},
    "silero_vad_openvino_16k": {"output": np.array([[0.2], [0.9]]), "stateN": RNG.random((2, 2, 1, 8))},
}


def test_every_zoo_metric_has_an_example() -> None:
    assert set(EXAMPLES) == set(METRICS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_equal_outputs_are_perfect(name: str) -> None:
    found = score(name, EXAMPLES[name], EXAMPLES[name])
    assert found.pop("sqnr_db") == math.inf
    assert found
    assert all(value in (math.inf, pytest.approx(1.0)) for value in found.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_nan_is_never_right(name: str) -> None:
    broken = {key: np.full_like(array, np.nan) for key, array in EXAMPLES[name].items()}
    found = score(name, EXAMPLES[name], broken)
    assert found["sqnr_db"] == -math.inf
    first = next(value for key, value in found.items() if key != "sqnr_db")
    assert first <= 0.0 or (name == "minilm_l6_s128" and first == pytest.approx(0.0))


def test_unknown_names_missing_outputs_and_other_counts_are_refused() -> None:
    with pytest.raises(InputError, match="no metric for 'resnet'"):
        score("resnet", {}, {})
    with pytest.raises(InputError, match="output 'logits'"):
        score("efficientnet_lite0", EXAMPLES["efficientnet_lite0"], {"other": _rows(0, 2, 1)})
    with pytest.raises(InputError, match="does not answer"):
        score("efficientnet_lite0", EXAMPLES["efficientnet_lite0"], {"logits": _rows(0, 2)})


def test_outputs_under_more_names_than_the_reference_are_taken() -> None:
    outputs = {"logits": _rows(0, 2, 1), "logits:0": _rows(1, 1, 1)}
    assert score("efficientnet_lite0", EXAMPLES["efficientnet_lite0"], outputs)["agreement"] == 1.0


def test_agreement_counts_rows() -> None:
    found = score("magika_v3_3", {"y": _rows(0, 1, 2, 3)}, {"y": _rows(0, 1, 2, 0)})
    assert found["agreement"] == 0.75


def test_sqnr_is_of_the_worst_output() -> None:
    reference = {"a": np.full((2, 4), 10.0), "b": np.full((2, 4), 10.0)}
    outputs = {"a": np.full((2, 4), 11.0), "b": np.full((2, 4), 10.1)}
    assert sqnr_db(reference, outputs) == pytest.approx(20.0)


def test_iou_is_pooled_over_pixels() -> None:
    want, got = np.zeros((1, 1, 2, 4)), np.zeros((1, 1, 2, 4))
    want[..., 0, :], got[..., :2] = 0.9, 0.9
    assert score("ppocrv4_det", {"y": want}, {"y": got})["iou"] == pytest.approx(2 / 6)
    assert score("ppocrv4_det", {"y": want}, {"y": np.zeros_like(want)})["iou"] == 0.0
    assert score("ppocrv4_det", {"y": np.zeros_like(want)}, {"y": np.zeros_like(want)})["iou"] == 1.0


def test_strings_are_read_by_the_best_path() -> None:
    reference = {"y": np.stack([_rows(0, 1, 1, 0, 2), _rows(3, 0, 3, 0, 0)])}
    other_path = {"y": np.stack([_rows(1, 0, 0, 2, 2), _rows(3, 3, 0, 0, 0)])}
    assert score("ppocrv4_rec", reference, other_path)["equal_strings"] == 0.5


def test_boxes_have_their_place_size_and_score() -> None:
    corners, scores, classes = boxes(_head((11, 0, 5, 0.81)))
    np.testing.assert_allclose(corners, [[-0.25, 0.25, 0.25, 0.75]], atol=1e-6)
    assert scores.tolist() == [pytest.approx(0.81**0.6)]
    assert classes.tolist() == [5]


def test_weak_and_doubled_boxes_are_dropped() -> None:
    assert len(boxes(_head((3, 3, 1, 0.1)))[0]) == 0
    assert len(boxes(_head((3, 3, 1, 0.9), (3, 4, 1, 0.8)))[0]) == 1
    assert boxes(_head((3, 3, 1, 0.9), (3, 4, 2, 0.8)))[2].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("cells", "f1"),
    [
        ([(3, 4, 7, 0.7), (15, 15, 2, 0.9)], 1.0),
        ([(3, 4, 7, 0.9)], 2 / 3),
        ([(3, 4, 8, 0.9), (15, 15, 2, 0.9)], 0.5),
        ([(3, 19, 7, 0.9)], 0.0),
        ([], 0.0),
    ],
)
def test_box_f1(cells: list[tuple[int, int, int, float]], f1: float) -> None:
    reference = {"758": _head((3, 4, 7, 0.9), (15, 15, 2, 0.9))[None]}
    assert score("fastestdet", reference, {"758": _head(*cells)[None]})["box_f1"] == pytest.approx(f1)


def test_no_boxes_on_both_sides_agree() -> None:
    assert score("fastestdet", {"758": _head()[None]}, {"758": _head()[None]})["box_f1"] == 1.0


def test_one_box_is_matched_once() -> None:
    reference = {"758": _head((3, 4, 7, 0.9))[None]}
    twice = {"758": _head((3, 4, 7, 0.9), (3, 7, 7, 0.9), size=0.0)[None]}
    assert score("fastestdet", reference, twice)["box_f1"] <= 1.0


def _notes_of(outputs: dict[str, np.ndarray]) -> list[Note]:
    onsets, frames = outputs.values()
    return notes(onsets[0], frames[0])


def test_notes_are_peaks_that_sound() -> None:
    assert _notes_of(_window((20, 40, 60), (50, 30, 64))) == [Note(20 * FRAME_S, 60), Note(50 * FRAME_S, 64)]
    assert _notes_of(_window((20, 11, 60))) == []
    assert _notes_of(_window((20, 12, 60))) == [Note(20 * FRAME_S, 60)]
    assert _notes_of(_window((20, 40, 60), onset=0.4)) == []
    assert len(_notes_of(_window((20, 40, 60), (60, 40, 60)))) == 2


def test_a_note_bridges_short_silence_only() -> None:
    window = _window((20, 6, 60))
    _, frames = window.values()
    frames[0, 32:40, 60 - 21] = 0.8
    assert len(_notes_of(window)) == 1
    frames[0, 32:40, 60 - 21] = 0.0
    frames[0, 40:60, 60 - 21] = 0.8
    assert _notes_of(window) == []


@pytest.mark.parametrize(
    ("got", "f1"),
    [
        ([Note(0.5, 60), Note(1.0, 64)], 1.0),
        ([Note(0.549, 60), Note(0.951, 64)], 1.0),
        ([Note(0.56, 60), Note(1.0, 64)], 0.5),
        ([Note(0.5, 61), Note(1.0, 64)], 0.5),
        ([Note(0.5, 60), Note(0.51, 60), Note(1.0, 64)], 0.8),
        ([], 0.0),
    ],
)
def test_note_f1(got: list[Note], f1: float) -> None:
    assert note_f1([[Note(0.5, 60), Note(1.0, 64)]], [got]) == pytest.approx(f1)


def test_notes_of_another_window_do_not_count() -> None:
    assert note_f1([[Note(0.5, 60)], []], [[], [Note(0.5, 60)]]) == 0.0


def test_padding_is_not_read() -> None:
    hidden = RNG.standard_normal((4, 6, 8)).astype(np.float32)
    mask = np.ones((4, 6), np.int64)
    mask[:, 4:] = 0
    other = np.where(mask[:, :, None] != 0, hidden, 99.0)
    found = score("minilm_l6_s128", {"y": hidden}, {"y": other}, {"attention_mask": mask})
    assert found == {"sqnr_db": math.inf, "cosine": pytest.approx(1.0), "nearest": 1.0}
    zeroed = np.where(mask[:, :, None] != 0, hidden, 0.0)
    assert score("minilm_l6_s128", {"y": zeroed}, {"y": other})["cosine"] == pytest.approx(1.0)
    assert score("minilm_l6_s128", {"y": hidden}, {"y": other})["cosine"] < 0.99


def test_the_nearest_sentence_may_change_while_the_cosine_hardly_does() -> None:
    angles = np.array([0.0, 1.0, 1.9, 2.7])
    turned = np.array([0.0, 0.94, 1.95, 2.7])
    sides = [np.stack([np.cos(each), np.sin(each)], axis=1)[:, None, :] for each in (angles, turned)]
    found = score("minilm_l6_s128", {"y": sides[0]}, {"y": sides[1]})
    assert found["cosine"] == pytest.approx(np.cos(turned - angles).mean())
    assert found["nearest"] == 0.75
    np.testing.assert_allclose(pooled(np.array([[[3.0, 0.0], [0.0, 4.0]]])), [[0.6, 0.8]])


def test_the_voice_detector_is_judged_on_its_probability() -> None:
    reference = {"output": np.array([[0.4], [0.8]]), "stateN": np.ones((2, 2, 1, 4))}
    outputs = {"output": np.array([[0.6], [0.8]]), "stateN": np.full((2, 2, 1, 4), 0.0)}
    found = score("silero_vad_openvino_16k", reference, outputs)
    assert found["snr"] == pytest.approx(10 * math.log10(0.8 / 0.04))
    assert found["agreement"] == 0.5
    assert found["sqnr_db"] == pytest.approx(0.0)


def test_truth_of_classes_takes_numbers_and_sets() -> None:
    assert truth("efficientnet_lite0", {"y": _rows(0, 1, 2)}, [0, 1, 1]) == {"top1": pytest.approx(2 / 3)}
    assert (
        truth("magika_v3_3", {"y": _rows(0, 1, 2)}, [frozenset({0, 3}), None, frozenset({1})])["top1"] == 0.5
    )
    assert truth("minilm_l6_s128", {"y": _rows(0, 1)}, [None, None]) == {}


def test_truth_of_a_text_passes_over_spaces_only() -> None:
    alphabet = ["", "a", "b", " "]
    outputs = {"y": np.stack([_rows(1, 0, 3, 2), _rows(1, 0, 0, 2)])}
    assert truth("ppocrv4_rec", outputs, ["ab", "ab"], alphabet) == {"equal_strings": 1.0}
    assert truth("ppocrv4_rec", outputs, ["a b", "ba"], alphabet) == {"equal_strings": 0.5}


def test_truth_of_a_map_is_what_it_finds_and_what_it_makes_up() -> None:
    where = np.zeros((4, 4), np.uint8)
    where[1], where[2] = TEXT, CORE
    found = np.zeros((1, 1, 4, 4))
    found[..., 2, :2] = found[..., 0, :2] = 0.9
    assert truth("ppocrv4_det", {"y": found}, [where]) == {"lines_found": 0.5, "outside": 0.5}
    assert truth("ppocrv4_det", {"y": 0 * found}, [where]) == {"lines_found": 0.0, "outside": 0.0}


def test_truth_of_notes() -> None:
    window = _window((20, 40, 60), (50, 30, 64))
    assert truth("basic_pitch", window, [[Note(20 * FRAME_S, 60)]])["note_f1"] == pytest.approx(2 / 3)
