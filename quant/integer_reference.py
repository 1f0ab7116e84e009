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
from typing import Any, Literal, Protocol

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
from edgefuse.quant.scheme_file import BiasKind, Rounding
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedBias, QuantizedWeight

__all__ = ["Arithmetic", "IntegerReference", "IntegerRun", "to_integers"]

Array = np.ndarray
Compute = Callable[[tuple[Any, ...]], list[Any]]

_BIAS_LIMIT = {"int32": 2.0**31 - 1, "int64": 2.0**63 - 1}


class Arithmetic(Protocol):
    """What the reference asks of a scheme; every `Scheme` has it.

    rounding: of float to integer.  requantization: of what an int8 kernel stores.  bias: integers beside the
    sums, or float.  saturates_pairs: products are added in pairs in saturating int16.
    """

    @property
    def rounding(self) -> Rounding: ...  # noqa: D102
    @property
    def requantization(self) -> Rounding: ...  # noqa: D102
    @property
    def bias(self) -> BiasKind: ...  # noqa: D102
    @property
    def saturates_pairs(self) -> bool: ...  # noqa: D102


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
class _Grid:
    """The integers of one tensor: its name, its parameters, and how the target rounds to them."""

    name: str
    parameters: QuantizedActivation
    rounding: Rounding


@dataclass(frozen=True, slots=True)
class _Task:
    """What differs from float32 at one node.

    reads: grids by input index.  product: computed in integers.  bias: integers that are added to the sums.
    bias_of: the product whose bias this Add adds.  stored: the grid on which the result is stored.
    """

    precision: str
    reads: Mapping[int, _Grid] = field(default_factory=dict)
    weight: QuantizedWeight | None = None
    product: bool = False
    bias: QuantizedBias | None = None
    bias_of: Node | None = None
    stored: _Grid | None = None


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
        scheme: Arithmetic | None,
        *,
        pair_saturation: bool | None = None,
        half_chunk: int | None = None,
        stored_outputs: bool = False,
        float_precision: Literal["native", "float64"] = "native",
    ) -> None:
        copy = clone_model(model)
        self._tasks = _Tasks(copy, plan, quantized, scheme, stored_outputs).found
        # Last: a bias put behind a MatMul belongs to no group, and renames what is read.
        apply_biases(copy, quantized.biases)
        self._rounding: Rounding = scheme.rounding if scheme is not None else "half_even"
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
            for index, grid in task.reads.items():
                given[index] = self._on_grid(inputs[index], grid)
            if task.bias_of is not None and self._bias != "float":
                self._round_added_bias(task, node, given)
            outputs = compute(tuple(given))
        if task.stored is not None:
            outputs[0] = self._on_grid(outputs[0], task.stored)
        return outputs

    def _integers(self, array: Array, grid: _Grid) -> Array:
        whole = to_integers(array, grid.parameters, grid.rounding)
        if self._record is not None and grid.name not in self._record.activations:
            self._record.activations[grid.name] = whole.astype(_integer_type(grid.parameters))
        return whole

    def _on_grid(self, array: Array, grid: _Grid) -> Array:
        """Return a float activation as the number that its integer stands for."""
        steps = self._integers(array, grid) - np.float32(grid.parameters.zero_point)
        return np.asarray((steps * np.float32(grid.parameters.scale)).astype(array.dtype, copy=False))

    def _product(self, node: Node, task: _Task, inputs: tuple[Any, ...], compute: Compute) -> Array:
        left, right, factor = self._operands(node, task, inputs)
        read = task.reads[0].parameters
        sums = sum_products(node, left - np.float32(read.zero_point), right, compute)
        if self._pairs and task.weight is not None:
            error, count = pair_errors(node, left - np.float32(read.low), right)
            if error is not None:
                sums = sums + error
                self._count("saturated", node, count)
        sums = self._accumulated(node, sums)
        if self._record is not None:
            self._record.sums[node.name or ""] = sums.astype(np.int64)
        if task.bias is not None:
            sums = self._accumulated(node, sums + _along_channels(node, task.bias.values, sums.ndim))
        bias = inputs[2] if len(inputs) > 2 and task.bias is None else None
        return self._scaled(node, sums, factor, bias).astype(inputs[0].dtype, copy=False)

    def _accumulated(self, node: Node, sums: Array) -> Array:
        """Return the sums as the accumulator holds them: int32, or int64 beside 16-bit activations."""
        if self._bias == "int64":
            return sums
        held, wrapped = wrap_int32(sums)
        self._count("wrapped", node, wrapped)
        return held

    def _operands(self, node: Node, task: _Task, inputs: tuple[Any, ...]) -> tuple[Array, Array, Array]:
        """Return (integers of the activation, of the other operand less zero point, scale of a product)."""
        left = self._integers(inputs[0], task.reads[0])
        step = np.float64(np.float32(task.reads[0].parameters.scale))
        if task.weight is None:
            second = task.reads[1].parameters
            right = self._integers(inputs[1], task.reads[1]) - np.float32(second.zero_point)
            return left, right, np.asarray(step * np.float64(np.float32(second.scale)))
        if node not in self._factors:
            weight = task.weight
            scale = output_factor(node, weight.values.shape, weight.expanded_scale(), left.ndim)
            self._factors[node] = scale * step
        return left, task.weight.values, self._factors[node]

    def _scaled(self, node: Node, sums: Array, factor: Array, bias: Array | None) -> Array:
        """Return sums * factor + bias in float64, alpha and beta of a Gemm included."""
        if node.op_type == "Gemm":
            factor = factor * float(attribute(node, "alpha", 1.0))
            bias = None if bias is None else bias * float(attribute(node, "beta", 1.0))
        elif bias is not None:
            bias = _along_channels(node, bias, sums.ndim)
        if bias is not None and self._bias != "float":
            sums = self._accumulated(node, sums + self._bias_integers(bias, factor))
            bias = None
        real = sums * factor
        return np.asarray(real if bias is None else real + bias)

    def _bias_integers(self, bias: Array, factor: Array) -> Array:
        limit = _BIAS_LIMIT[self._bias]
        return np.asarray(np.clip(round_steps(bias / factor, self._rounding), -limit, limit))

    def _round_added_bias(self, task: _Task, node: Node, given: list[Any]) -> None:
        """Replace the constant that an Add behind a product adds by the number its integer stands for."""
        index = next(i for i, value in enumerate(node.inputs) if constant(value) is not None)
        held = given[index]
        if task.bias is not None:
            given[index] = task.bias.dequantized().reshape(held.shape).astype(held.dtype)
        elif task.bias_of in self._factors:
            factor = self._factors[task.bias_of]
            given[index] = (self._bias_integers(held.astype(np.float64), factor) * factor).astype(held.dtype)

    def _count(self, what: str, node: Node, count: int) -> None:
        if self._record is not None and count:
            getattr(self._record, what)[node.name or ""] = count


def _integer_type(parameters: QuantizedActivation) -> type[np.integer[Any]]:
    if parameters.low >= 0 and parameters.high <= 255:
        return np.uint8
    return np.int8 if parameters.low >= -128 and parameters.high <= 127 else np.int32


def _along_channels(node: Node, values: Array, rank: int) -> Array:
    """Return [channels] shaped to broadcast over the node's output."""
    return values.reshape(-1, *[1] * (rank - 2)) if node.op_type in ("Conv", "ConvTranspose") else values


class _Tasks:
    """What to do at each node that does not simply run in float32: `found`."""

    def __init__(
        self, model: Model, plan: Plan, quantized: Quantized, scheme: Arithmetic | None, stored_outputs: bool
    ) -> None:
        self._quantized = quantized
        self._stored_outputs = stored_outputs
        self._rounding: Rounding = scheme.rounding if scheme is not None else "half_even"
        self._requantization: Rounding = scheme.requantization if scheme is not None else "half_even"
        # What an int8 kernel rounds as it stores it; everything else is rounded by a kernel of its own.
        self._requantized = {
            name
            for group in plan.groups
            if group.precision == "int8" and group.output.dtype == "int8"
            for name in group.writes
        }
        self.found: dict[Node, _Task] = {}
        nodes = {node.name: node for node in model.graph}
        for group in plan.groups:
            held = [nodes[name] for name in group.nodes]
            if group.precision == "fp16":
                self.found.update({node: _Task("fp16") for node in held})
            elif group.precision == "int8":
                self._int8(group, held)
            elif self._stored(group, held[-1]) is not None:
                self.found[held[-1]] = _Task(group.precision, stored=self._stored(group, held[-1]))

    def _grid(self, value: Value) -> _Grid | None:
        name = value.name or ""
        parameters = self._quantized.activations.get(name)
        if parameters is None:
            return None
        return _Grid(name, parameters, self._requantization if name in self._requantized else self._rounding)

    def _stored(self, group: Group, last: Node) -> _Grid | None:
        if not self._stored_outputs or group.output.dtype != "int8":
            return None
        return self._grid(last.outputs[0])

    def _reads(self, node: Node, inside: set[int]) -> dict[int, _Grid]:
        found = {}
        for index, value in enumerate(node.inputs):
            if value is None or id(value) in inside or not is_float(value) or constant(value) is not None:
                continue
            grid = self._grid(value)
            if grid is not None:
                found[index] = grid
        return found

    def _int8(self, group: Group, held: list[Node]) -> None:
        inside = {id(v) for node in held for v in node.outputs}
        for position, node in enumerate(held):
            reads = self._reads(node, inside)
            weight = self._quantized.weights.get((node.name or "", 1))
            product = node.op_type in PRODUCTS and (weight is not None or {0, 1} <= set(reads))
            if product and 0 not in reads:
                raise InternalError(
                    f"node {source_name(node)!r} is planned in int8 and what it reads has no range"
                )
            self.found[node] = _Task(
                "int8",
                reads,
                weight,
                product,
                bias=self._quantized.integer_biases.get(node.name or ""),
                bias_of=held[0] if position == 1 and _adds_bias(held[0], node) else None,
                stored=self._stored(group, node) if node is held[-1] else None,
            )


def _adds_bias(anchor: Node, node: Node) -> bool:
    """Return whether `node` adds a constant to a product without a bias of its own: a bias in other words."""
    if node.op_type != "Add" or anchor.op_type not in PRODUCTS or len(anchor.inputs) > 2:
        return False
    return sum(constant(value) is not None for value in node.inputs) == 1
