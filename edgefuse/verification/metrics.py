"""Metrics by name, and the one that is taken when none is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgefuse.errors import InputError, UsageError, did_you_mean
from edgefuse.runtime.tensors import TensorInfo
from edgefuse.verification.classification import Agreement, Top1, is_classifier_shape
from edgefuse.verification.custom import custom_metric
from edgefuse.verification.detection import Map50
from edgefuse.verification.fidelity import Cosine, Snr, WorstGroup
from edgefuse.verification.metric import Metric
from edgefuse.verification.segmentation import Miou
from edgefuse.verification.text import Cer

__all__ = ["METRICS", "default_metric", "make_metric"]

METRICS: dict[str, Callable[[], Metric]] = {
    "agreement": Agreement,
    "cer": Cer,
    "cosine": Cosine,
    "map50": Map50,
    "miou": Miou,
    "snr": Snr,
    "top1": Top1,
    "worst-group": WorstGroup,
}


def make_metric(name: str, *, labels: Sequence[str] | None = None, own_code: bool = True) -> Metric:
    """Return a fresh metric: a built-in name, or MODULE:FUNCTION of the user's code.

    labels: the model's labels; cer reads them as its alphabet.  own_code: False refuses MODULE:FUNCTION, for
    a name that came with an artifact: whoever made that must not choose what code is imported here.
    Raises UsageError for an unknown name, InputError where the user's code cannot be loaded.
    """
    if name == "cer":
        return Cer(labels)
    if name in METRICS:
        return METRICS[name]()
    if ":" in name and not own_code:
        raise InputError(
            f"the artifact was judged by {name}, code that did not come with it",
            hint=f"name it where you have it and trust it (--metric {name}), or name a built-in metric",
        )
    if ":" in name:
        return custom_metric(name)
    raise UsageError(
        f"there is no metric '{name}'{did_you_mean(name, list(METRICS))}",
        expected=", ".join(METRICS) + ", or MODULE:FUNCTION",
    )


def default_metric(outputs: Sequence[TensorInfo]) -> str:
    """Return the metric for a model when none is named.

    "agreement" where the only output is float [N, C] (or [N, C, 1, 1]) of at least two classes; else
    "worst-group". An embedding has such a shape too, and no classes: name cosine for one.
    """
    if len(outputs) == 1 and outputs[0].dtype.startswith("float") and is_classifier_shape(outputs[0].shape):
        return "agreement"
    return "worst-group"
