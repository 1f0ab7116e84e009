from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgefuse.errors import ArtifactError, InputError, UnsupportedError
from edgefuse.runtime import load
from edgefuse.runtime.decode import classify, decoder_from_manifest

Make = Callable[..., Path]


def test_the_best_classes_come_first() -> None:
    top = classify(np.array([[0.1, 0.7, 0.2]], np.float32), top=2, labels=["a", "b", "c"])
    assert [(entry["index"], entry["label"]) for entry in top] == [(1, "b"), (2, "c")]
    assert top[0]["score"] == pytest.approx(0.7)
    assert classify(np.zeros((1, 3)), top=9)[0] == {"index": 0, "label": None, "score": 0.0}
    assert [entry["index"] for entry in classify(np.array([1, 3, 3, 2]), top=3)] == [1, 2, 3]


def test_softmax_is_stable_and_sums_to_one() -> None:
    top = classify(np.array([1000.0, 1000.0, -1000.0]), softmax=True, top=3)
    assert [entry["score"] for entry in top] == [0.5, 0.5, 0.0]
    scores = [entry["score"] for entry in classify(np.array([1.0, 2.0, 3.0]), softmax=True)]
    assert sum(scores) == pytest.approx(1)
    assert scores[0] / scores[1] == pytest.approx(np.e)


def test_nan_comes_last() -> None:
    top = classify(np.array([np.nan, -5.0, np.inf]), top=3)
    assert [entry["index"] for entry in top] == [2, 1, 0]


IMAGE = {"dtype": "float32", "layout": "NCHW"}


def image_model(**changes: Any) -> dict[str, Any]:
    tensor = {**IMAGE, "shape": ["n", 3, 1, 2]}
    return {
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
        "preprocess": {"height": 1, "width": 2},
        "decoder": {"kind": "classify", "top": 2},
        "labels": list("abcdef"),
        **changes,
    }


def without_vectors(samples: ModuleType) -> list[dict[str, Any]]:
    return [samples.payload("planned", self_test=[])]


def test_predict_takes_an_image_to_labels(make: Make, toy: Any, samples: ModuleType) -> None:
    path = make(**image_model(), payloads=without_vectors(samples))
    image = np.array([[[1, 2, 3], [9, 5, 4]]], np.uint8)
    with load(path) as model:
        result = model.predict(image)
        assert [(entry["label"], entry["score"]) for entry in result["top"]] == [("b", 18.0), ("d", 10.0)]
        np.testing.assert_array_equal(result["outputs"]["y"], [[[[2, 18]], [[4, 10]], [[6, 8]]]])
        flipped = model.predict(image[:, :, ::-1], color="bgr")
        assert flipped["top"] == result["top"]
        with pytest.raises(InputError, match="not an image"):
            model.predict(np.zeros((2, 2, 4), np.uint8))


def test_predict_without_a_decoder_gives_the_outputs(make: Make, toy: Any, samples: ModuleType) -> None:
    with load(make(**image_model(decoder=None), payloads=without_vectors(samples))) as model:
        assert list(model.predict(np.zeros((5, 5), np.uint8))) == ["outputs"]


def test_predict_needs_preprocessing_and_one_input(make: Make, toy: Any, samples: ModuleType) -> None:
    payloads = without_vectors(samples)
    with (
        load(make(**image_model(preprocess=None), payloads=payloads)) as model,
        pytest.raises(UnsupportedError, match="no prep"),
    ):
        model.predict(np.zeros((1, 2, 3), np.uint8))
    two = [{"name": name, **IMAGE, "shape": [1, 3, 1, 2]} for name in ("x", "z")]
    with (
        load(make(**image_model(inputs=two), payloads=payloads)) as model,
        pytest.raises(UnsupportedError, match="2 in"),
    ):
        model.predict(np.zeros((1, 2, 3), np.uint8))


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"decoder": {"kind": "yolo"}}, UnsupportedError, "no decoder 'yolo'"),
        ({"decoder": {"kind": "classify", "tops": 1}}, ArtifactError, "did you mean 'top'"),
        ({"decoder": {"kind": "classify", "output": "z"}}, ArtifactError, "names output 'z'"),
        ({"decoder": {"kind": "classify", "softmax": 1}}, ArtifactError, "softmax is true or false"),
        ({"decoder": {"kind": "classify", "top": True}}, ArtifactError, "top a whole number"),
    ],
)
def test_bad_decoders_are_named(samples: ModuleType, changes: dict[str, Any], error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        decoder_from_manifest(samples.manifest(**image_model(**changes)))


def test_wrong_counts_are_noticed(samples: ModuleType) -> None:
    decode = decoder_from_manifest(samples.manifest(**image_model()))
    assert decode is not None
    assert decode({"y": np.zeros((1, 6))})["top"][0]["label"] == "a"
    with pytest.raises(ArtifactError, match="6 labels for 7 classes"):
        decode({"y": np.zeros((1, 7))})
    with pytest.raises(InputError, match="takes one sample"):
        decode({"y": np.zeros((2, 6))})
