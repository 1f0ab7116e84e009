"""If, Loop, Scan and SequenceMap: kernels that run subgraphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edgefuse.errors import UnsupportedError
from edgefuse.graph.kernels.call import Array, Call, Kernel

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["KERNELS", "MOST_TURNS", "NO_LIMIT", "EndlessLoopError"]

# Turns of a Loop that only its condition ends, after which it counts as one that never ends.
MOST_TURNS = 20_000
# Exporters write the largest integer where they mean "no number of turns".
NO_LIMIT = 2**31 - 1


class EndlessLoopError(UnsupportedError):
    """A Loop without a number of turns whose condition still holds after MOST_TURNS turns."""


def _if(call: Call) -> tuple[Any, ...]:
    taken = bool(np.asarray(call.get(0)).reshape(-1)[0])
    return tuple(call.subgraph("then_branch" if taken else "else_branch", ()))


def _truth(value: Any) -> bool:
    return bool(np.asarray(value).reshape(-1)[0])


def _empty_scan(value: ir.Value, float64: bool) -> Array:
    """Return what a scan output is after zero rounds: no rows, the declared shape (0 where unknown)."""
    dims = [d if isinstance(d, int) else 0 for d in value.shape or ()]
    dtype = np.dtype(np.float64 if value.dtype is None else value.dtype.numpy())
    return np.zeros((0, *dims), np.float64 if float64 and dtype.kind == "f" else dtype)


def _stack(values: list[Any], output: ir.Value, call: Call, axis: int = 0) -> Array:
    return np.stack(values, axis) if values else _empty_scan(output, call.float64)


def _loop(call: Call) -> tuple[Any, ...]:
    limit, condition, state = call.get(0), call.get(1), list(call.inputs[2:])
    body: ir.Graph = call.attributes["body"]
    count = len(state)
    scanned: list[list[Any]] = [[] for _ in body.outputs[1 + count :]]
    rounds = NO_LIMIT if limit is None else int(np.asarray(limit).reshape(-1)[0])
    keep_on = True if condition is None else _truth(condition)
    step = 0
    while keep_on and step < rounds:
        if rounds >= NO_LIMIT and step == MOST_TURNS:
            raise EndlessLoopError(
                f"{call.label} does not end: its condition still holds after {MOST_TURNS} turns",
                hint="real data where these were made up (--calib, --eval), or a model whose loop has a "
                "largest number of turns",
            )
        # The body's condition input is the value of the round before; without one it is true.
        results = call.subgraph("body", (np.array(step, np.int64), np.array(keep_on), *state))
        keep_on = _truth(results[0])
        state = results[1 : 1 + count]
        for rows, value in zip(scanned, results[1 + count :], strict=True):
            rows.append(value)
        step += 1
    outputs = body.outputs[1 + count :]
    return (*state, *(_stack(rows, value, call) for rows, value in zip(scanned, outputs, strict=True)))


def _scan_once(call: Call, state: list[Any], scans: list[Array], options: dict[str, list[int]]) -> list[Any]:
    """Run one Scan over all steps and return final states, then scan outputs."""
    body: ir.Graph = call.attributes["body"]
    count, outputs = len(state), body.outputs[len(state) :]
    in_axes = options["in_axes"] or [0] * len(scans)
    backward = options["in_directions"] or [0] * len(scans)
    rows = [np.moveaxis(s, a, 0)[:: -1 if b else 1] for s, a, b in zip(scans, in_axes, backward, strict=True)]
    collected: list[list[Any]] = [[] for _ in outputs]
    for step in range(len(rows[0]) if rows else 0):
        results = call.subgraph("body", (*state, *(r[step] for r in rows)))
        state = results[:count]
        for bucket, value in zip(collected, results[count:], strict=True):
            bucket.append(value)
    out_axes = options["out_axes"] or [0] * len(outputs)
    out_backward = options["out_directions"] or [0] * len(outputs)
    stacked = []
    for bucket, value, axis, back in zip(collected, outputs, out_axes, out_backward, strict=True):
        stacked.append(_stack(bucket[:: -1 if back else 1], value, call, axis))
    return [*state, *stacked]


def _scan(call: Call) -> tuple[Any, ...]:
    scan_count = int(call.attributes["num_scan_inputs"])
    if call.opset >= 9:
        options = {
            "in_axes": call.ints("scan_input_axes"),
            "in_directions": call.ints("scan_input_directions"),
            "out_axes": call.ints("scan_output_axes"),
            "out_directions": call.ints("scan_output_directions"),
        }
        split = len(call.inputs) - scan_count
        return tuple(_scan_once(call, list(call.inputs[:split]), list(call.inputs[split:]), options))
    # Scan-8: a batch axis in front of every tensor, optional lengths as first input.
    lengths, values = call.optional(0), list(call.inputs[1:])
    split = len(values) - scan_count
    options = {"in_axes": [], "in_directions": call.ints("directions"), "out_axes": [], "out_directions": []}
    samples = []
    for index in range(len(values[-1])):
        stop = None if lengths is None else int(lengths[index])
        state, scans = [v[index] for v in values[:split]], [v[index][:stop] for v in values[split:]]
        samples.append(_scan_once(call, state, scans, options))
    # Shorter sequences are padded with zeros to the longest.
    longest = len(values[-1][0]) if values else 0
    for sample in samples:
        for place in range(split, len(sample)):
            missing = longest - len(sample[place])
            sample[place] = np.pad(sample[place], [(0, missing)] + [(0, 0)] * (sample[place].ndim - 1))
    return tuple(np.stack(column) for column in zip(*samples, strict=True))


def _sequence_map(call: Call) -> tuple[Any, ...]:
    first = call.inputs[0]
    columns: list[list[Any]] = []
    for index in range(len(first)):
        row = [v[index] if isinstance(v, list) else v for v in call.inputs]
        columns.append(call.subgraph("body", row))
    if not columns:
        return tuple([] for _ in range(call.outputs))
    return tuple(list(column) for column in zip(*columns, strict=True))


KERNELS: dict[str, Kernel] = {"If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
