"""What a zoo model's outputs are worth: beside the float model's (`score`), or as such (`truth`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.sound_inputs import Note
from benchmarks.text_inputs import CORE
from edgefuse.errors import InputError
from edgefuse.verification import OutputErrors
from edgefuse.verification.classification import predicted_classes
from edgefuse.verification.detection import box_overlap
from edgefuse.verification.text import ctc_greedy

__all__ = ["METRICS", "boxes", "note_f1", "notes", "pooled", "score", "sqnr_db", "truth"]

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]

# The usual threshold of each decoder: PP-OCR's map, Basic Pitch's onsets and frames.
TEXT_THRESHOLD = 0.3
BOX_SCORE, BOX_OVERLAP, SAME_BOX = 0.35, 0.45, 0.5
ONSET_THRESHOLD, FRAME_THRESHOLD = 0.5, 0.3
FRAMES_PER_SECOND = 22050 / 256
SHORTEST_FRAMES, GAP_FRAMES, SAME_ONSET_S = 11, 11, 0.05
LOWEST_PITCH = 21
ONSETS, FRAMES = "StatefulPartitionedCall:2", "StatefulPartitionedCall:1"


def score(name: str, reference: Arrays, outputs: Arrays, inputs: Arrays | None = None) -> dict[str, float]:
    """Return "sqnr_db" and the metric of zoo model `name`, of `outputs` beside the float model's `reference`.

    reference, outputs: the model's outputs by name, [samples, ...], of the same samples in the same order.
    inputs: only minilm_l6_s128 reads them (the attention mask); without them its padding is what is zero in
    the reference, as `zoo_inputs.run` leaves it.
    sqnr_db: over all values of all samples, of the worst output; infinite where all are equal.
    agreement, iou, equal_strings, box_f1, note_f1, nearest: shares from 0 to 1; cosine: -1 to 1; snr: dB.
    An output that holds a NaN, or has another shape, counts as wrong.
    Raises InputError for an unknown name, or outputs that lack one.
    """
    if name not in METRICS:
        raise InputError(f"there is no metric for '{name}'", expected=", ".join(METRICS))
    for output in reference:
        if output not in outputs or len(outputs[output]) != len(reference[output]):
            got = str(len(outputs[output])) if output in outputs else "none"
            raise InputError(
                f"{name}: output '{output}' does not answer the reference",
                f"{len(reference[output])} samples",
                got,
            )
    outputs = {output: outputs[output] for output in reference}
    if name == "minilm_l6_s128":
        reference, outputs = _unpadded(reference, outputs, inputs)
    return {"sqnr_db": sqnr_db(reference, outputs), **METRICS[name](reference, outputs)}


def sqnr_db(reference: Arrays, outputs: Arrays) -> float:
    """Return signal to noise in dB of the worst output, energies summed over all samples."""
    errors = OutputErrors()
    errors.update(outputs, reference)
    return min(row.sqnr_db for row in errors.results())


def _only(arrays: Arrays) -> Array:
    (array,) = arrays.values()
    return array


def _agreement(reference: Arrays, outputs: Arrays) -> dict[str, float]:
    wanted, got = predicted_classes(_only(reference)), predicted_classes(_only(outputs))
    return {"agreement": float(((wanted == got) & (wanted >= 0)).mean())}


def _iou(reference: Arrays, outputs: Arrays) -> dict[str, float]:
    """Pixels over the threshold in both / in either, pooled over samples; 1 where there are none."""
    wanted, got = _only(reference) > TEXT_THRESHOLD, _only(outputs) > TEXT_THRESHOLD
    union = int((wanted | got).sum())
    return {"iou": float((wanted & got).sum() / union) if union else 1.0}


def _equal_strings(reference: Arrays, outputs: Arrays) -> dict[str, float]:
    pairs = zip(_only(reference), _only(outputs), strict=True)
    return {"equal_strings": float(np.mean([ctc_greedy(want) == ctc_greedy(got) for want, got in pairs]))}


def _snr(reference: Arrays, outputs: Arrays) -> dict[str, float]:
    """Signal to noise of the probability alone, and whether it says speech (over one half) alike."""
    wanted, got = reference["output"], outputs["output"]
    return {
        "snr": sqnr_db({"output": wanted}, {"output": got}),
        "agreement": float(((wanted > 0.5) == (got > 0.5)).mean()),
    }


def boxes(head: Array) -> tuple[Array, Array, Array]:
    """Return corners float64 [n, 4] (0..1 of the picture), scores [n] and classes [n] of one FastestDet head.

    head: float [85, rows, columns]: objectness, four of the box, 80 classes. Score = objectness^0.6 times
    class^0.4, over 0.35; boxes that overlap a better one of their class by more than 0.45 are dropped.
    """
    rows, columns = head.shape[1:]
    found = np.clip(head[0], 0, None) ** 0.6 * np.clip(head[5:].max(axis=0), 0, None) ** 0.4
    y, x = np.nonzero(found > BOX_SCORE)
    box = head[1:5, y, x].astype(np.float64)
    center = np.stack([(x + np.tanh(box[0])) / columns, (y + np.tanh(box[1])) / rows], axis=1)
    half = 0.5 / (1.0 + np.exp(-box[2:4].T))
    corners, scores = np.concatenate([center - half, center + half], axis=1), found[y, x]
    classes = head[5:, y, x].argmax(axis=0)
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    for index in order:
        same = [k for k in kept if classes[k] == classes[index]]
        overlaps = box_overlap(corners[[index]], corners[same], np.zeros(len(same), bool))
        if not (overlaps > BOX_OVERLAP).any():
            kept.append(int(index))
    return corners[kept], scores[kept], classes[kept]


def _box_f1(reference: Arrays, outputs: Arrays) -> dict[str, float]:
    """Share of boxes found alike: one to one, of one class, overlap at least 0.5, best score first."""
    hits = total = 0
    for want, got in zip(_only(reference), _only(outputs), strict=True):
        left, right = boxes(want), boxes(np.nan_to_num(got, nan=0.0))
        total += len(left[0]) + len(right[0])
        overlap = box_overlap(right[0], left[0], np.zeros(len(left[0]), bool))
        overlap[right[2][:, None] != left[2][None, :]] = 0.0
        for row in range(len(overlap)):
            best = int(overlap[row].argmax()) if overlap.shape[1] else 0
            if overlap.shape[1] and overlap[row, best] >= SAME_BOX:
                hits += 1
                overlap[:, best] = 0.0
    return {"box_f1": 2 * hits / total if total else 1.0}


def notes(onsets: Array, frames: Array) -> list[Note]:
    """Return the notes in one window: peaks of at least 0.5 in the onset map, where the note then sounds.

    onsets, frames: float [172, 88]. A note lasts until its frames were under 0.3 for 11 in a row, and over
    11 frames (128 ms). Latest first, so that a note that is struck again ends there (Bittner et al. 2022).
    """
    onsets = np.nan_to_num(onsets)
    sounding = np.nan_to_num(frames) >= FRAME_THRESHOLD
    found: list[Note] = []
    before, after = np.zeros_like(onsets), np.zeros_like(onsets)
    before[1:], after[:-1] = onsets[:-1], onsets[1:]
    peaks = np.argwhere((onsets >= ONSET_THRESHOLD) & (onsets > before) & (onsets > after))
    for frame, key in peaks[::-1]:
        end, silent = int(frame) + 1, 0
        while end < len(onsets) and silent < GAP_FRAMES:
            silent = 0 if sounding[end, key] else silent + 1
            end += 1
        if end - silent - frame <= SHORTEST_FRAMES:
            continue
        sounding[frame : end - silent, key] = False
        found.append(Note(frame / FRAMES_PER_SECOND, int(key) + LOWEST_PITCH))
    return sorted(found)


def note_f1(wanted: Sequence[Sequence[Note]], got: Sequence[Sequence[Note]]) -> float:
    """Return the F1 of notes over windows: one to one, the same pitch, onsets within 50 ms."""
    hits = total = 0
    for left, right in zip(wanted, got, strict=True):
        total += len(left) + len(right)
        free = list(left)
        for note in right:
            near = [n for n in free if n.pitch == note.pitch and abs(n.onset - note.onset) <= SAME_ONSET_S]
            if near:
                free.remove(min(near, key=lambda n: abs(n.onset - note.onset)))
                hits += 1
    return 2 * hits / total if total else 1.0


def _all_notes(outputs: Arrays) -> list[list[Note]]:
    return [notes(*pair) for pair in zip(outputs[ONSETS], outputs[FRAMES], strict=True)]


def _note_f1(reference: Arrays, outputs: Arrays) -> dict[str, float]:
    return {"note_f1": note_f1(_all_notes(reference), _all_notes(outputs))}


def _unpadded(reference: Arrays, outputs: Arrays, inputs: Arrays | None) -> tuple[Arrays, Arrays]:
    (name,) = reference
    if inputs is None:
        mask = (reference[name] != 0).any(axis=2)
    else:
        mask = np.asarray(inputs["attention_mask"]).reshape(reference[name].shape[:2]) != 0
    wanted, got = (np.where(mask[:, :, None], side[name], 0) for side in (reference, outputs))
    return {name: wanted}, {name: got}


def pooled(hidden: Array) -> Array:
    """Return float64 [samples, width] of length 1, the direction of the mean over tokens.

    hidden: float [samples, tokens, width], 0 in the padding (which then does not turn the mean).
    """
    mean = hidden.sum(axis=1, dtype=np.float64)
    result: Array = mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
    return result


def _sentence(reference: Arrays, outputs: Arrays) -> dict[str, float]:
    """Mean cosine of the sentences' vectors, and the share whose nearest other sentence is the same one."""
    wanted, got = pooled(_only(reference)), pooled(np.nan_to_num(_only(outputs)))
    same = []
    for side in (wanted, got):
        likeness = side @ side.T
        np.fill_diagonal(likeness, -math.inf)
        same.append(likeness.argmax(axis=1))
    return {
        "cosine": float((wanted * got).sum(axis=1).mean()),
        "nearest": float((same[0] == same[1]).mean()) if len(wanted) > 1 else 1.0,
    }


# What each model is judged by; the first name is the metric of the tables.
METRICS: dict[str, Callable[[Arrays, Arrays], dict[str, float]]] = {
    "efficientnet_lite0": _agreement,
    "pplcnet_orientation": _agreement,
    "ppocr_cls": _agreement,
    "magika_v3_3": _agreement,
    "ppocrv4_det": _iou,
    "ppocrv4_rec": _equal_strings,
    "fastestdet": _box_f1,
    "basic_pitch": _note_f1,
    "minilm_l6_s128": _sentence,
    "silero_vad_openvino_16k": _snr,
}


def truth(
    name: str, outputs: Arrays, labels: Sequence[Any], alphabet: Sequence[str] = ()
) -> dict[str, float]:
    """Return how right `outputs` are on absolute grounds; {} where nothing is known to be right.

    labels: as `zoo_inputs.labels` gives them; None for a sample of which nothing is known.
    top1: class index, or a set of right ones.  equal_strings: the text, but for spaces;
    alphabet: the text of each symbol.
    lines_found, outside: share of text that the map finds, and share of what it finds that is no text.
    note_f1: notes.
    """
    known = [index for index, label in enumerate(labels) if label is not None]
    if not known:
        return {}
    wanted = [labels[index] for index in known]
    if name == "basic_pitch":
        found = _all_notes(outputs)
        return {"note_f1": note_f1(wanted, [found[index] for index in known])}
    rows = _only(outputs)[known]
    if name == "ppocrv4_rec":
        read = ["".join(alphabet[symbol] for symbol in ctc_greedy(row) if symbol >= 0) for row in rows]
        same = (a.replace(" ", "") == b.replace(" ", "") for a, b in zip(wanted, read, strict=True))
        return {"equal_strings": float(np.mean(list(same)))}
    if name == "ppocrv4_det":
        over, where = rows[:, 0] > TEXT_THRESHOLD, np.stack(wanted)
        core = where == CORE
        return {
            "lines_found": float(over[core].mean()),
            "outside": float((over & (where == 0)).sum() / max(1, int(over.sum()))),
        }
    classes = predicted_classes(rows)
    right = [
        c in label if isinstance(label, frozenset) else c == label
        for c, label in zip(classes, wanted, strict=True)
    ]
    return {"top1": float(np.mean(right))}
