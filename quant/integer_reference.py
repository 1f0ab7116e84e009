"""A plan executed in the integers of its target, for devices that are not here and to check those that are.

int8 groups: what the group reads becomes integers, q = clamp(round(x / s) + z), products are summed exactly
(carried in float BLAS, see integer_products), an integer bias is added in integers, and the sum is scaled by
s_x * s_w into float32, in which the rest of the group runs. That order is a device's requantization too:
clamping, ReLU and Clip commute with the rounding that follows where the next group reads.
float groups run in float32, float16 groups with their tensors rounded to float16 (half_precision).
It shares no arithmetic with any backend, and ONNX Runtime takes no part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from edgefuse.errors import InternalError
from edgefuse.graph import Model, Node, Value, attribute, clone_model, constant, is_float, source_name
from edgefuse.graph.reference import Reference
from edgefuse.lowering import apply_biases
from edgefuse.plans import Group, Plan
from edgefuse.quant.half_precision import half_node
from edgefuse.quant.integer_products import (
    PRODUCTS,
    output_factor,
    pair_errors,
    round_steps,
    sum_products,
    wrap_int32,
)
from edgefuse.quant.scheme import Scheme
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedWeight

__all__ = ["IntegerReference", "IntegerRun", "to_integers"]

Array = np.ndarray
Compute = Callable[[tuple[Any, ...]], list[Any]]

_BIAS_LIMIT = {"int32": 2.0**31 - 1, "int64": 2.0**63 - 1}


@dataclass(frozen=True, slots=True)
class IntegerRun:
    """One run with its integers.

    outputs: as `IntegerReference.run` returns them.  activations: the integers of each tensor that an int8
    group reads, by value name (uint8, int8 or int32).  sums: the accumulators of each product before an
    integer bias, by node name (int64; wrapped as int32 wraps).  saturated: pairs of products that left int16,
    wrapped: accumulators that left int32, by node name; only those with any.
    """

    outputs: dict[str, Array]
    activations: dict[str, Array] = field(default_factory=dict)
    sums: dict[str, Array] = field(default_factory=dict)
    saturated: dict[str, int] = field(default_factory=dict)
    wrapped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Task:
    """What differs from float32 at one node: see _tasks."""

    precision: str
    reads: Mapping[int, tuple[str, QuantizedActivation]] = field(default_factory=dict)
    weight: QuantizedWeight | None = None
    product: bool = False
    bias_of: Node | None = None
    stored: tuple[str, QuantizedActivation] | None = None


def to_integers(array: Array, parameters: QuantizedActivation, rounding: str = "half_even") -> Array:
    """Return clamp(round(x / scale) + zero point) as float32 whole numbers; NaN becomes the zero point.

    The division is in float32, as QuantizeLinear and every int8 runtime that is known to us do it.
    """
    steps = np.asarray(array, np.float32) / np.float32(parameters.scale)
    whole = round_steps(np.nan_to_num(steps, copy=False, posinf=np.inf, neginf=-np.inf), rounding)
    whole += np.float32(parameters.zero_point)
    return np.asarray(np.clip(whole, np.float32(parameters.low), np.float32(parameters.high), out=whole))


class IntegerReference:
    """Runs `model` as `plan` and `quantized` say, in exact integers.

    scheme: rounding and the kind of the bias; None for a plan without int8.
    pair_saturation: products are added in pairs in saturating int16 (AVX2, see pair_errors); None = what the
    scheme says of its device.  The unsigned byte that the kernel sees is the integer minus the range's low.
    half_chunk: None = float16 groups add in float32; n = they add in float16 after every n terms.
    stored_outputs: a tensor that its writer stores in int8 is read as such by float readers too (a plan's
    "int8" output format taken literally); False: float readers keep the float tensor, as the payloads of
    today's backends do.  float_precision: of float groups, "native" (float32) or "float64".
    One reference may run many feeds; it is not safe to call from two threads at once.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        quantized: Quantized,
        scheme: Scheme | None,
        *,
        pair_saturation: bool | None = None,
        half_chunk: int | None = None,
        stored_outputs: bool = False,
        float_precision: Literal["native", "float64"] = "native",
    ) -> None:
        copy = clone_model(model)
        self._tasks = _tasks(copy, plan, quantized, stored_outputs)
        # Last: a bias put behind a MatMul belongs to no group, and renames what is read.
        apply_biases(copy, quantized.biases)
        self._rounding = scheme.rounding if scheme is not None else "half_even"
        self._bias = scheme.bias if scheme is not None else "float"
        saturates = scheme is not None and scheme.saturates_pairs
        self._pairs = saturates if pair_saturation is None else pair_saturation
        self._chunk = half_chunk
        self._factors: dict[Node, Array] = {}
        self._record: IntegerRun | None = None
        self._reference = Reference(copy, precision=float_precision, around=self._around)

    def run(self, feeds: Mapping[str, Array], fetch: Sequence[str] | None = None) -> dict[str, Array]:
        """Return name -> array for the outputs in order, or for the values named in `fetch`.

        feeds: as for `edgefuse.graph.reference.Reference.run`, whose errors are raised.
        """
        return self._reference.run(feeds, fetch)

    def run_integers(self, feeds: Mapping[str, Array]) -> IntegerRun:
        """Return the outputs, and the integers that led to them (kept in memory all at once)."""
        record = self._record = IntegerRun({})
        try:
            record.outputs.update(self.run(feeds))
        finally:
            self._record = None
        return record

    def _around(self, node: Node, inputs: tuple[Any, ...], compute: Compute) -> list[Any]:
        """Compute one node: in integers, in float16, or as the reference does; the hook of `Reference`."""
        task = self._tasks.get(node)
        if task is None:
            return compute(inputs)
        if task.precision == "fp16":
            return half_node(node, inputs, compute, self._chunk)
        if task.product:
            outputs = [self._product(node, task, inputs, compute)]
        else:
            given = list(inputs)
            for index, (name, parameters) in task.reads.items():
                given[index] = self._on_grid(inputs[index], name, parameters)
            if task.bias_of is not None and self._bias != "float":
                self._round_added_bias(task.bias_of, node, given)
            outputs = compute(tuple(given))
        if task.stored is not None:
            outputs[0] = self._on_grid(outputs[0], *task.stored)
        return outputs

    def _integers(self, array: Array, name: str, parameters: QuantizedActivation) -> Array:
        whole = to_integers(array, parameters, self._rounding)
        if self._record is not None and name not in self._record.activations:
            self._record.activations[name] = whole.astype(_integer_type(parameters))
        return whole

    def _on_grid(self, array: Array, name: str, parameters: QuantizedActivation) -> Array:
        """Return a float activation as the number that its integer stands for."""
        steps = self._integers(array, name, parameters) - np.float32(parameters.zero_point)
        return np.asarray((steps * np.float32(parameters.scale)).astype(array.dtype, copy=False))

    def _product(self, node: Node, task: _Task, inputs: tuple[Any, ...], compute: Compute) -> Array:
        left, right, factor = self._operands(node, task, inputs)
        sums = sum_products(node, left - np.float32(task.reads[0][1].zero_point), right, compute)
        if self._pairs and task.weight is not None:
            low = np.float32(task.reads[0][1].low)
            error, count = pair_errors(node, left - low, right)
            if error is not None:
                sums = sums + error
                self._count("saturated", node, count)
        sums, wrapped = wrap_int32(sums)
        self._count("wrapped", node, wrapped)
        if self._record is not None:
            self._record.sums[node.name or ""] = sums.astype(np.int64)
        return self._scaled(node, sums, factor, inputs[2] if len(inputs) > 2 else None).astype(
            inputs[0].dtype, copy=False
        )

    def _operands(self, node: Node, task: _Task, inputs: tuple[Any, ...]) -> tuple[Array, Array, Array]:
        """Return (integers of the activation, of the other operand less its zero point, scale of a product)."""
        name, read = task.reads[0]
        left = self._integers(inputs[0], name, read)
        if task.weight is None:
            other, second = task.reads[1]
            right = self._integers(inputs[1], other, second) - np.float32(second.zero_point)
            scale = np.asarray(np.float64(np.float32(second.scale)))
            return left, right, scale * np.float64(np.float32(read.scale))
        if node not in self._factors:
            weight = task.weight
            scale = output_factor(
                node, weight.values.shape, weight.scale.astype(np.float32), weight.axis, left.ndim
            )
            self._factors[node] = scale * np.float64(np.float32(read.scale))
        return left, task.weight.values, self._factors[node]

    def _scaled(self, node: Node, sums: Array, factor: Array, bias: Array | None) -> Array:
        """Return sums * factor + bias in float64, alpha and beta of a Gemm included."""
        if node.op_type == "Gemm":
            factor = factor * float(attribute(node, "alpha", 1.0))
            bias = None if bias is None else bias * float(attribute(node, "beta", 1.0))
        elif bias is not None:
            bias = bias.reshape(-1, *[1] * (sums.ndim - 2))
        if bias is not None and self._bias != "float":
            sums, _ = wrap_int32(sums + self._bias_integers(bias, factor))
            bias = None
        real = sums * factor
        return np.asarray(real if bias is None else real + bias)

    def _bias_integers(self, bias: Array, factor: Array) -> Array:
        limit = _BIAS_LIMIT[self._bias]
        return np.asarray(np.clip(round_steps(bias / factor, self._rounding), -limit, limit))

    def _round_added_bias(self, anchor: Node, node: Node, given: list[Any]) -> None:
        """Replace the constant that an Add behind a product adds by the number its integer stands for."""
        factor = self._factors.get(anchor)
        index = next(i for i, value in enumerate(node.inputs) if constant(value) is not None)
        if factor is not None:
            scaled = self._bias_integers(given[index].astype(np.float64), factor) * factor
            given[index] = scaled.astype(given[index].dtype)

    def _count(self, what: str, node: Node, count: int) -> None:
        if self._record is not None and count:
            getattr(self._record, what)[node.name or ""] = count


def _integer_type(parameters: QuantizedActivation) -> type[np.integer[Any]]:
    if parameters.low >= 0 and parameters.high <= 255:
        return np.uint8
    return np.int8 if parameters.low >= -128 and parameters.high <= 127 else np.int32


def _tasks(model: Model, plan: Plan, quantized: Quantized, stored_outputs: bool) -> dict[Node, _Task]:
    """Return what to do at each node that does not simply run in float32."""
    nodes = {node.name: node for node in model.graph}
    tasks: dict[Node, _Task] = {}
    for group in plan.groups:
        held = [nodes[name] for name in group.nodes]
        if group.precision == "fp16":
            tasks.update({node: _Task("fp16") for node in held})
        elif group.precision == "int8":
            tasks.update(_int8_tasks(group, held, quantized, stored_outputs))
        elif stored_outputs and group.output.dtype == "int8":
            stored = _stored(held[-1].outputs[0], quantized)
            if stored is not None:
                tasks[held[-1]] = _Task(group.precision, stored=stored)
    return tasks


def _int8_tasks(
    group: Group, held: list[Node], quantized: Quantized, stored_outputs: bool
) -> dict[Node, _Task]:
    inside = {id(v) for node in held for v in node.outputs}
    tasks = {}
    for position, node in enumerate(held):
        reads = {}
        for index, value in enumerate(node.inputs):
            if value is None or id(value) in inside or not is_float(value) or constant(value) is not None:
                continue
            parameters = quantized.activations.get(value.name or "")
            if parameters is not None:
                reads[index] = (value.name or "", parameters)
        weight = quantized.weights.get((node.name or "", 1))
        product = node.op_type in PRODUCTS and (weight is not None or {0, 1} <= set(reads))
        if product and 0 not in reads:
            raise InternalError(
                f"node {source_name(node)!r} is planned in int8 and what it reads has no range"
            )
        stores = stored_outputs and group.output.dtype == "int8" and node is held[-1]
        tasks[node] = _Task(
            "int8",
            reads,
            weight,
            product,
            bias_of=held[0] if position == 1 and _adds_bias(held[0], node) else None,
            stored=_stored(node.outputs[0], quantized) if stores else None,
        )
    return tasks


def _adds_bias(anchor: Node, node: Node) -> bool:
    """Return whether `node` adds a constant to a product without a bias of its own: a bias in other words."""
    if node.op_type != "Add" or anchor.op_type not in PRODUCTS or len(anchor.inputs) > 2:
        return False
    return sum(constant(value) is not None for value in node.inputs) == 1


def _stored(value: Value, quantized: Quantized) -> tuple[str, QuantizedActivation] | None:
    parameters = quantized.activations.get(value.name or "")
    return None if parameters is None else (value.name or "", parameters)
