"""What goes into a model and comes out: descriptions, and the check of every array. Python 3.6."""

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from edgefuse.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TensorInfo", "bind_inputs", "check_feeds", "tensor_infos"]


class TensorInfo(NamedTuple):
    """One input or output: the user's name, numpy's dtype name, shape (sizes and symbols), layout or None."""

    name: str
    dtype: str
    shape: Tuple[Union[int, str], ...]
    layout: Optional[str] = None

    def __str__(self) -> str:
        sizes = ", ".join(str(size) for size in self.shape)
        return "{} {}[{}]".format(self.name, self.dtype, sizes)


def tensor_infos(entries: Sequence[Mapping[str, Any]]) -> Tuple[TensorInfo, ...]:
    """Return the manifest's `inputs` or `outputs` as descriptions."""
    return tuple(
        TensorInfo(entry["name"], entry["dtype"], tuple(entry["shape"]), entry.get("layout"))
        for entry in entries
    )


def bind_inputs(
    infos: Sequence[TensorInfo], positional: Sequence[Any], named: Mapping[str, Any]
) -> Dict[str, Any]:
    """Return name -> value for a call with one array, one dict, or keyword arguments.

    Raises InputError: a name missing or unknown, or one array for a model with several inputs.
    """
    names = [info.name for info in infos]
    if len(positional) > 1 or (positional and named):
        raise InputError(
            "the model is called with one array, one dict, or keyword arguments",
            got="{} positional and {} keyword arguments".format(len(positional), len(named)),
        )
    if positional and not isinstance(positional[0], Mapping):
        if len(infos) != 1:
            raise InputError(
                "the model has {} inputs and was given one array".format(len(infos)),
                expected="a dict with " + ", ".join(str(info) for info in infos),
            )
        return {names[0]: positional[0]}
    given = dict(positional[0]) if positional else dict(named)
    for name in given:
        if name not in names:
            raise InputError(
                "the model has no input {!r}{}".format(name, did_you_mean(str(name), names)),
                expected=", ".join(str(info) for info in infos),
            )
    missing = [str(info) for info in infos if info.name not in given]
    if missing:
        raise InputError("the call leaves out an input of the model", expected=", ".join(missing))
    return given


def check_feeds(infos: Sequence[TensorInfo], given: Mapping[str, Any]) -> "Dict[str, np.ndarray[Any, Any]]":
    """Return every input as a C-contiguous array of its dtype and shape.

    given: name -> anything with the buffer protocol, `__array_interface__`, `__array__` or `__dlpack__`.
    A cast is made only where it keeps kind and value (float16 to float32, int16 to int32, another byte
    order); float64 to float32 or int64 to int32 would lose and is refused. A symbol stands for one size in
    all inputs of a call, at least 1.  Raises InputError naming the input, expected and got.
    """
    symbols: Dict[str, Tuple[int, str]] = {}
    feeds = {}
    for info in infos:
        array = _as_array(info, given[info.name])
        _check_shape(info, array, symbols)
        feeds[info.name] = _cast(info, array)
    return feeds


def _as_array(info: TensorInfo, value: Any) -> "np.ndarray[Any, Any]":
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    try:
        if (
            not hasattr(value, "__array_interface__")
            and hasattr(value, "__dlpack__")
            and hasattr(np, "from_dlpack")
        ):
            return np.from_dlpack(value)
        if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
            return np.asarray(value)
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise InputError(
            "input '{}' is not an array".format(info.name),
            expected=str(info),
            got="{} ({})".format(type(value).__name__, error),
            hint="pass numpy.asarray(value, dtype='{}')".format(info.dtype),
        ) from error


def _check_shape(
    info: TensorInfo, array: "np.ndarray[Any, Any]", symbols: Dict[str, Tuple[int, str]]
) -> None:
    def refuse(why: str) -> InputError:
        return InputError(
            "input '{}' has the wrong shape: {}".format(info.name, why),
            expected=str(info),
            got="{}{}".format(array.dtype, list(array.shape)),
        )

    if array.ndim != len(info.shape):
        raise refuse("{} axes, not {}".format(array.ndim, len(info.shape)))
    for axis, wanted in enumerate(info.shape):
        size = array.shape[axis]
        if isinstance(wanted, int):
            if size != wanted:
                raise refuse("axis {} is {}, not {}".format(axis, size, wanted))
            continue
        if size < 1:
            raise refuse("axis {} ({}) is empty".format(axis, wanted))
        known, where = symbols.setdefault(wanted, (size, "{} axis {}".format(info.name, axis)))
        if known != size:
            raise refuse("axis {} ({}) is {}, and {} at {}".format(axis, wanted, size, known, where))


def _cast(info: TensorInfo, array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    import numpy as np

    wanted = np.dtype(info.dtype)
    same_kind = array.dtype.kind == wanted.kind or (array.dtype.kind == "u" and wanted.kind == "i")
    if not (same_kind and np.can_cast(array.dtype, wanted, "safe")):
        raise InputError(
            "input '{}' has the wrong dtype".format(info.name),
            expected=str(info),
            got="{}{}".format(array.dtype, list(array.shape)),
            hint="convert it yourself where that is what you mean: .astype('{}')".format(info.dtype),
        )
    return np.asarray(array, dtype=wanted, order="C")


def missing_outputs(infos: Sequence[TensorInfo], results: Mapping[str, Any]) -> List[str]:
    """Return the names of outputs that an engine's results leave out."""
    return [info.name for info in infos if info.name not in results]
