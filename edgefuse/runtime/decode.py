"""From output arrays to a small result, as the manifest's `decoder` says. Python 3.6.

classify    output (default: the first), softmax (default false: the output already holds scores),
            top (default 5): adds "top", the best classes first, with labels where the manifest has them.
"""

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence

from edgefuse.errors import ArtifactError, InputError, UnsupportedError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

__all__ = ["classify", "decoder_from_manifest"]

Decoder = Callable[[Mapping[str, Any]], Dict[str, Any]]


def classify(
    scores: "np.ndarray[Any, Any]",
    softmax: bool = False,
    top: int = 5,
    labels: Optional[Sequence[str]] = None,
) -> List[Dict[str, Any]]:
    """Return the `top` best classes of one sample as {"index", "label", "score"}, best first.

    scores: [classes], or any shape with one sample in front ([1, classes], [1, classes, 1, 1]).
    softmax: turn logits into probabilities first (float64, shifted by the maximum).
    A tie goes to the lower index; a NaN comes last.  label: None where there are no labels.
    """
    import numpy as np

    values = np.asarray(scores, dtype=np.float64).reshape(-1)
    if softmax and values.size:
        shifted = np.exp(values - values.max())
        values = shifted / shifted.sum()
    order = np.argsort(np.where(np.isnan(values), np.inf, -values), kind="stable")[:top]
    return [
        {
            "index": int(index),
            "label": labels[index] if labels is not None else None,
            "score": float(values[index]),
        }
        for index in order
    ]


def decoder_from_manifest(manifest: Mapping[str, Any]) -> Optional[Decoder]:
    """Return the function that the manifest's `decoder` describes, or None where there is none.

    Raises UnsupportedError for a kind that this version does not know, ArtifactError for a bad option.
    """
    described = manifest["decoder"]
    if described is None:
        return None
    if described["kind"] != "classify":
        raise UnsupportedError(
            "this edgefuse has no decoder '{}'".format(described["kind"]),
            expected="classify",
            hint="call the model with arrays, or upgrade edgefuse on this machine",
        )
    known: Dict[str, Any] = {
        "kind": "classify",
        "output": manifest["outputs"][0]["name"],
        "softmax": False,
        "top": 5,
    }
    for key in described:
        if key not in known:
            raise ArtifactError(
                "decoder 'classify' has no option '{}'{}".format(key, did_you_mean(key, list(known)))
            )
    known.update(described)
    labels = manifest["labels"]
    shapes = {entry["name"]: entry["shape"] for entry in manifest["outputs"]}
    if known["output"] not in shapes:
        raise ArtifactError(
            "decoder 'classify' names output '{}', which the model has not".format(known["output"])
        )
    if (
        not isinstance(known["softmax"], bool)
        or isinstance(known["top"], bool)
        or not isinstance(known["top"], int)
    ):
        raise ArtifactError("decoder 'classify': softmax is true or false, top a whole number")

    def decode(outputs: Mapping[str, Any]) -> Dict[str, Any]:
        scores = outputs[known["output"]]
        if scores.ndim > 1 and scores.shape[0] != 1:
            raise InputError(
                "decoder 'classify' takes one sample", got="an output of shape {}".format(list(scores.shape))
            )
        if labels is not None and len(labels) != scores.size:
            raise ArtifactError("{} labels for {} classes".format(len(labels), scores.size))
        return {"top": classify(scores, known["softmax"], known["top"], labels)}

    return decode
