"""Compression asked for in words, applied step by step: what each step did, in figures.

A step makes a smaller model; whoever called judges it by its loss (an accuracy budget) and goes on with it or
with the model before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from edgefuse.analysis import summarize
from edgefuse.errors import UnsupportedError, UsageError, did_you_mean
from edgefuse.graph import Model, bind_dimensions
from edgefuse.quant.low_rank import Price, low_rank
from edgefuse.quant.prune_channels import CRITERIA, SCOPES, Criterion, Scope, prune_channels
from edgefuse.quant.prune_weights import prune_weights
from edgefuse.quant.reconstruct import reconstruct
from edgefuse.quant.sparsity_2_4 import sparsify_2_4

__all__ = [
    "Compressed",
    "Judge",
    "Request",
    "apply_request",
    "compress",
    "compression_requests",
    "parse_prune",
]

Feeds = Mapping[str, np.ndarray]

_WHAT = ("channels", "weights")


@dataclass(frozen=True, slots=True)
class Request:
    """One thing asked for.

    kind: "channels" | "weights" | "low-rank" | "sparsity".  share: of channels or weights that go, or of
    the rank that stays.  threshold: instead of a share; see `prune_channels`, `prune_weights`.  criterion: of
    channels, None = "activation" with samples and "l2" without.  scope: whether the share is taken of each
    layer or of the model; None = of the model where activations are the criterion, else of each layer.
    text: as the user wrote it.
    """

    kind: str
    text: str
    share: float | None = None
    threshold: float | None = None
    criterion: Criterion | None = None
    scope: Scope | None = None


@dataclass(frozen=True, slots=True)
class Compressed:
    """One step done.

    model: the smaller model.  changed: node name -> what became of it.  refused: node name -> why it stayed.
    fitted: layers fitted again to calibration data behind the step.  notes: for the user.
    """

    request: Request
    model: Model
    changed: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    fitted: int = 0
    notes: tuple[str, ...] = ()

    def figures(self, before: Model, after: Model | None = None) -> dict[str, Any]:
        """Return MACs, parameters and nodes before and after; the models need a number for every size.

        after: the smaller model with numbers for its sizes, where `self.model` leaves some open.
        """
        totals = [summarize(m).total for m in (before, after if after is not None else self.model)]
        return {
            "request": self.request.text,
            "macs": [t.macs for t in totals],
            "parameters": [t.parameters for t in totals],
            "changed_nodes": len(self.changed),
            "refused": dict(self.refused),
            "fitted_layers": self.fitted,
        }


class Judge(Protocol):
    """Decides on steps, by their loss."""

    def refuses(self, request: Request) -> str:
        """Return why a request is not even tried, "" where it is."""
        ...

    def takes(self, step: Compressed, why_not: str) -> bool:
        """Return whether to go on with the step's model; never where `why_not` says that there is nothing."""
        ...

    def sized(self, model: Model) -> Model:
        """Return the model with a number for every size."""
        ...


def parse_prune(text: str) -> tuple[Request, ...]:
    """Return the requests in the value of `--prune`, such as "channels=30%" or "channels=20%:l1,weights=0.1".

    A percentage is a share; a bare number is a threshold, as a part of the layer's mean. Behind a colon may
    stand a criterion of channels (l1, l2, activation, deviation) and a scope (layer, model).
    Raises UsageError for anything else.

    >>> parse_prune("channels=30%:l1")[0].share, parse_prune("weights=0.1")[0].threshold
    (0.3, 0.1)
    """
    return tuple(_parse_one(part.strip()) for part in text.split(","))


def _parse_one(text: str) -> Request:
    expected = "channels=30%, weights=50%, channels=0.2 (a part of the layer's mean), channels=30%:l1:layer"
    found = re.fullmatch(r"([a-z]+)=(\d+(?:\.\d+)?|\.\d+)(%?)((?::[a-z0-9]+)*)", text)
    if not found:
        raise UsageError(f"--prune {text!r} cannot be read", expected=expected)
    what, number, percent, words = found.groups()
    if what not in _WHAT:
        raise UsageError(f"--prune knows no {what!r}{did_you_mean(what, _WHAT)}", expected=expected)
    amount = float(number) / 100 if percent else float(number)
    if amount <= 0 or (percent and amount >= 1):
        raise UsageError(f"--prune {text!r}: a share lies between 0 % and 100 %", expected=expected)
    known = (*SCOPES, *(CRITERIA if what == "channels" else ()))
    chosen: dict[str, Any] = {}
    for word in words.split(":")[1:]:
        key = "scope" if word in SCOPES else "criterion"
        if word not in known or key in chosen:
            raise UsageError(f"--prune {text!r}: {word!r} says nothing more", expected=", ".join(known))
        chosen[key] = word
    return Request(what, text, amount if percent else None, None if percent else amount, **chosen)


def compression_requests(prune: str | None, rank: float | None, sparsity: str | None) -> tuple[Request, ...]:
    """Return what `--prune`, `--low-rank` and `--sparsity` ask for, in the order in which it is done.

    Channels first: factors and patterns of what is removed anyway would be wasted. Raises UsageError.
    """
    found = list(parse_prune(prune)) if prune else []
    if rank is not None:
        if not 0 < rank < 1:
            raise UsageError(
                "--low-rank is the share of the rank that stays", expected="0 < share < 1", got=str(rank)
            )
        found.append(Request("low-rank", f"low-rank {rank:g}", rank))
    if sparsity is not None:
        if sparsity != "2:4":
            raise UsageError(f"--sparsity {sparsity!r} is unknown", expected="2:4")
        found.append(Request("sparsity", "sparsity 2:4"))
    order = ("channels", "low-rank", "weights", "sparsity")
    return tuple(sorted(found, key=lambda r: order.index(r.kind)))


def compress(
    model: Model,
    requests: Sequence[Request],
    judge: Judge,
    samples: Sequence[Feeds] | None = None,
    price: Price | None = None,
) -> Model:
    """Return the model after every step that `judge` takes; the judge keeps what became of each.

    Else as `apply_request`.
    """
    for request in requests:
        step = Compressed(request, model)
        why = judge.refuses(request)
        if not why:
            step = apply_request(model, request, samples, price, judge.sized(model))
            why = "" if step.changed else "nothing in the model could be changed"
        model = step.model if judge.takes(step, why) else model
    return model


def apply_request(
    model: Model,
    request: Request,
    samples: Sequence[Feeds] | None = None,
    price: Price | None = None,
    sized: Model | None = None,
) -> Compressed:
    """Return the model with one request applied and, where there are samples, fitted to the model before it.

    samples: calibration feeds, all held in memory.  price, sized: see `low_rank`.
    """
    steps = {"channels": _channels, "weights": _weights, "low-rank": _low_rank, "sparsity": _sparsity}
    return steps[request.kind](model, request, samples, price, sized)


_Samples = Sequence[Feeds] | None


def _channels(model: Model, request: Request, samples: _Samples, _: object, __: object) -> Compressed:
    # Norms of weights say nothing across layers: taken of the whole model they leave nothing of the outputs.
    made = prune_channels(
        model,
        share=request.share,
        threshold=request.threshold,
        criterion=request.criterion or ("activation" if samples else "l2"),
        scope=request.scope or ("model" if samples and request.criterion not in ("l1", "l2") else "layer"),
        samples=samples,
    )
    changed = {name: f"{lost} of {had} channels removed" for name, (lost, had) in made.removed.items()}
    fitted, notes = _fit(model, made.model, samples, made.kept) if changed else (0, ())
    return Compressed(request, made.model, changed, made.refused, fitted, notes)


def _low_rank(
    model: Model, request: Request, samples: _Samples, price: Price | None, sized: Model | None
) -> Compressed:
    made = low_rank(model, request.share or 0.0, samples=samples, price=price, sized=sized)
    changed = {name: f"rank {rank} of {full}" for name, (rank, full) in made.ranks.items()}
    fitted, notes = _fit(model, made.model, samples, {}) if changed else (0, ())
    return Compressed(request, made.model, changed, made.refused, fitted, notes)


def _weights(model: Model, request: Request, samples: _Samples, _: object, __: object) -> Compressed:
    made = prune_weights(
        model, share=request.share, threshold=request.threshold, scope=request.scope or "layer"
    )
    changed = {name: f"{part:.0%} zero" for name, part in made.zeros.items() if part}
    fitted, notes = _fit(model, made.model, samples, {}, weights=False) if changed else (0, ())
    notes = (*notes, "single zeros save no time: no kernel skips them")
    return Compressed(request, made.model, changed, made.refused, fitted, notes)


def _sparsity(model: Model, request: Request, samples: _Samples, _: object, __: object) -> Compressed:
    made = sparsify_2_4(model, samples)
    changed = {name: f"{part:.0%} zero" for name, part in made.zeros.items()}
    fitted, notes = _fit(model, made.model, samples, {}, weights=False) if changed else (0, ())
    return Compressed(request, made.model, changed, made.refused, fitted, notes)


def _fit(
    before: Model,
    after: Model,
    samples: _Samples,
    kept: Mapping[str, tuple[int, np.ndarray]],
    weights: bool = True,
) -> tuple[int, tuple[str, ...]]:
    """Fit `after` to `before` in place; return (layers fitted, notes)."""
    if not samples:
        return 0, ("no calibration data: nothing was fitted again behind the change",)
    try:
        fitted = reconstruct(before, after, samples, kept, weights=weights)
    except UnsupportedError as error:
        return 0, (f"nothing was fitted again: {error.message}",)
    bind_dimensions(after, {})
    return fitted, ()
