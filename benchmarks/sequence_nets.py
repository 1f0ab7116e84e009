"""Networks over sequences, a layer or two each, in the forms in which exporters write them.

Small in every number: what the rules of fusion are counted on is which operators stand beside which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.architectures import Lines
from edgefuse.graph import Model

__all__ = ["SEQUENCE_NETS"]
WIDTH, HEADS, LENGTH = 16, 4, 6
HEAD = WIDTH // HEADS


def _heads(g: Lines, x: str, count: int = HEADS, length: int = LENGTH) -> str:
    return g("Transpose", g("Reshape", x, f"[1,{length},{count},{HEAD}]"), perm=[0, 2, 1, 3])


def _matmul(g: Lines, x: str, before: int = WIDTH, after: int = WIDTH) -> str:
    return g("MatMul", x, f"$[{before},{after}]")


def _turned(g: Lines, k: str) -> str:
    return g("Transpose", k, perm=[0, 1, 3, 2])


def _joined(g: Lines, x: str, length: int = LENGTH) -> str:
    return g("Reshape", g("Transpose", x, perm=[0, 2, 1, 3]), f"[1,{length},{WIDTH}]")


def _attend(g: Lines, scores: str, v: str, length: int = LENGTH) -> str:
    return _joined(g, g("MatMul", g("Softmax", scores, axis=-1), v), length)


def _written_rms(g: Lines, x: str, reciprocal: bool) -> str:
    square = g("Pow", x, 2.0)
    mean = g("Add", g("ReduceMean", square, "[-1]"), 1e-05)
    root = g("Sqrt", mean)
    normal = g("Mul", x, g("Reciprocal", root)) if reciprocal else g("Div", x, root)
    return g("Mul", normal, f"$[{WIDTH}]")


def _rotated(g: Lines, x: str, cos: str, sin: str) -> str:
    first = g("Slice", x, "[0]", f"[{HEAD // 2}]", "[3]")
    second = g("Slice", x, f"[{HEAD // 2}]", f"[{HEAD}]", "[3]")
    half = g("Concat", g("Neg", second), first, axis=-1)
    return g("Add", g("Mul", x, cos), g("Mul", half, sin))


def _rotated_by_split(g: Lines, x: str) -> str:
    a, b = g.split(x, 2, -1)
    half = g("Concat", g("Neg", b), a, axis=-1)
    table = f"$[{LENGTH},{HEAD}]"
    return g("Add", g("Mul", x, table), g("Mul", half, table))


def _repeated(g: Lines, x: str) -> str:
    wide = g("Expand", g("Unsqueeze", x, "[2]"), "[1,1,2,1,1]")
    return g("Reshape", wide, f"[1,{HEADS},{LENGTH},{HEAD}]")


def llama(layers: int = 2) -> Model:
    """Return a LLaMA decoder: norms written out, rotary positions, grouped queries, a gate by Sigmoid."""
    g = Lines(f"ids: int64[1,{LENGTH}]", f"mask: [1,1,{LENGTH},{LENGTH}]", f"place: [1,{LENGTH},1]")
    x = g("Gather", f"$[32,{WIDTH}]", "ids")
    angle = g("Mul", "place", f"$[{HEAD // 2}]")
    both = g("Concat", angle, angle, axis=-1)
    cos, sin = g("Cos", both), g("Sin", both)
    for _ in range(layers):
        n = _written_rms(g, x, reciprocal=True)
        q = _rotated(g, _heads(g, _matmul(g, n)), cos, sin)
        k = _rotated(g, _heads(g, _matmul(g, n, WIDTH, WIDTH // 2), HEADS // 2), cos, sin)
        v = _heads(g, _matmul(g, n, WIDTH, WIDTH // 2), HEADS // 2)
        scores = g("MatMul", q, _turned(g, _repeated(g, k)))
        masked = g("Add", g("Mul", scores, 0.5), "mask")
        x = g("Add", _matmul(g, _attend(g, masked, _repeated(g, v))), x)
        n = _written_rms(g, x, reciprocal=False)
        gate = _matmul(g, n, WIDTH, 32)
        gated = g("Mul", gate, g("Sigmoid", gate))
        x = g("Add", _matmul(g, g("Mul", gated, _matmul(g, n, WIDTH, 32)), 32), x)
    n = g("RMSNormalization", x, f"$[{WIDTH}]", axis=-1)
    return g.model(g("ArgMax", _matmul(g, n, WIDTH, 32), axis=-1))


def gemma(layers: int = 2) -> Model:
    """Return a decoder like Gemma 2 and Phi-3: scaled embedding, normalized heads, capped scores."""
    g = Lines(f"ids: int64[1,{LENGTH}]")
    x = g("Mul", g("Gather", f"$[32,{WIDTH}]", "ids"), 4.0)
    for _ in range(layers):
        n = g("RMSNormalization", x, f"$[{WIDTH}]", axis=-1)
        shaped = [g("Reshape", _matmul(g, n), f"[1,{LENGTH},{HEADS},{HEAD}]") for _ in range(2)]
        turned = [g("Transpose", s, perm=[0, 2, 1, 3]) for s in shaped]
        q, k = (_rotated_by_split(g, g("RMSNormalization", t, f"$[{HEAD}]", axis=-1)) for t in turned)
        scores = g("MatMul", g("Mul", q, 0.5), _turned(g, k))
        capped = g("Mul", g("Tanh", g("Div", scores, 50.0)), 50.0)
        mixed = _attend(g, capped, _heads(g, _matmul(g, n)))
        x = g("Add", x, _matmul(g, mixed))
        n = g("RMSNormalization", x, f"$[{WIDTH}]", axis=-1)
        gate, up = g.split(_matmul(g, n, WIDTH, 64), 2, -1)
        hidden = g("Mul", g("Gelu", gate), up)
        x = g("Add", x, _matmul(g, hidden, 32))
    return g.model(x)


def decoding_step() -> Model:
    """Return one step of a decoder with a cache, its gate as one operator."""
    g = Lines(f"x: [1,1,{WIDTH}]", f"keys: [1,{HEADS},5,{HEAD}]", f"values: [1,{HEADS},5,{HEAD}]")
    n = g("RMSNormalization", "x", f"$[{WIDTH}]", axis=-1)
    q, k, v = (_heads(g, _matmul(g, n), HEADS, 1) for _ in range(3))
    key = g("Concat", "keys", k, axis=2)
    value = g("Concat", "values", v, axis=2)
    scores = g("Mul", g("MatMul", q, _turned(g, key)), 0.5)
    x = g("Add", _matmul(g, _attend(g, scores, value, 1)), "x")
    n = g("RMSNormalization", x, f"$[{WIDTH}]", axis=-1)
    gate = g("Swish", _matmul(g, n, WIDTH, 32))
    y = g("Mul", gate, _matmul(g, n, WIDTH, 32))
    return g.model(g("Add", _matmul(g, y, 32), x), key, value)


def _written_gelu(g: Lines, x: str, tanh: bool) -> str:
    if not tanh:
        root = g("Erf", g("Div", x, 1.4142135623730951))
        return g("Mul", g("Mul", x, g("Add", root, 1.0)), 0.5)
    cubed = g("Mul", g("Pow", x, 3.0), 0.044715)
    wave = g("Tanh", g("Mul", g("Add", x, cubed), 0.7978845608))
    return g("Mul", g("Mul", x, 0.5), g("Add", wave, 1.0))


def bert_exported(layers: int = 2) -> Model:
    """Return BERT from token ids to a class: three embeddings, padding mask, GELU by Erf, pooler."""
    g = Lines(f"ids: int64[1,{LENGTH}]", f"kinds: int64[1,{LENGTH}]", f"mask: int64[1,1,1,{LENGTH}]")
    words, kinds = g("Gather", f"$[32,{WIDTH}]", "ids"), g("Gather", f"$[2,{WIDTH}]", "kinds")
    x = g.norm(g("Add", g("Add", words, kinds), f"$[1,{LENGTH},{WIDTH}]"), WIDTH)
    hidden = g("Mul", g("Sub", 1.0, g("Cast", "mask", to=1)), "-10000.0")
    for _ in range(layers):
        q, k, v = (_heads(g, g.linear(x, WIDTH, WIDTH)) for _ in range(3))
        scores = g("Div", g("MatMul", q, _turned(g, k)), 2.0)
        mixed = _attend(g, g("Add", scores, hidden), v)
        x = g.norm(g("Add", g.linear(mixed, WIDTH, WIDTH), x), WIDTH)
        y = _written_gelu(g, g.linear(x, WIDTH, 32), tanh=False)
        x = g.norm(g("Add", g.linear(y, 32, WIDTH), x), WIDTH)
    first = g("Gather", x, 0, axis=1)
    pooled = g("Tanh", g("Gemm", first, f"$[{WIDTH},{WIDTH}]", f"$[{WIDTH}]"))
    return g.model(g("Softmax", g("Gemm", pooled, f"$[{WIDTH},2]", "$[2]"), axis=-1))


def gpt2(layers: int = 2) -> Model:
    """Return GPT-2: constant causal mask, merged query, key and value, GELU by Tanh."""
    g = Lines(f"ids: int64[1,{LENGTH}]")
    x = g("Add", g("Gather", f"$[32,{WIDTH}]", "ids"), f"$[1,{LENGTH},{WIDTH}]")
    for _ in range(layers):
        merged = g.linear(g.norm(x, WIDTH), WIDTH, 3 * WIDTH)
        parts = g.split(merged, 3, -1)
        q, k, v = (_heads(g, part) for part in parts)
        scores = g("Div", g("MatMul", q, _turned(g, k)), 2.0)
        future = g("Add", scores, f"[{', '.join(['0.0'] * (LENGTH - 1))}, -10000.0]")
        x = g("Add", x, g.linear(_attend(g, future, v), WIDTH, WIDTH))
        y = _written_gelu(g, g.linear(g.norm(x, WIDTH), WIDTH, 32), tanh=True)
        x = g("Add", x, g.linear(y, 32, WIDTH))
    return g.model(_matmul(g, g.norm(x, WIDTH), WIDTH, 32))


def translator() -> Model:
    """Return an encoder with position biases and a decoder that reads it across (T5, Marian)."""
    g = Lines(
        f"ids: int64[1,{LENGTH}]", f"places: int64[1,{LENGTH}]", f"y: [1,3,{WIDTH}]", "seen: bool[1,1,3,3]"
    )
    x = g("Add", g("Gather", f"$[32,{WIDTH}]", "ids"), g("Gather", f"$[8,{WIDTH}]", "places"))
    q, k, v = (_heads(g, _matmul(g, x)) for _ in range(3))
    biased = g("Add", g("MatMul", q, _turned(g, k)), f"$[1,{HEADS},{LENGTH},{LENGTH}]")
    x = g("Add", x, _matmul(g, _attend(g, biased, v)))
    n = g("RMSNormalization", x, f"$[{WIDTH}]", axis=-1)
    x = g("Add", x, _matmul(g, g("Relu", _matmul(g, n, WIDTH, 32)), 32))
    q, k, v = (_heads(g, g.linear("y", WIDTH, WIDTH), HEADS, 3) for _ in range(3))
    shown = g("Where", "seen", g("MatMul", q, _turned(g, k)), "-60000.0")
    y = g.norm(g("Add", g.linear(_attend(g, shown, v, 3), WIDTH, WIDTH), "y"), WIDTH)
    q = _heads(g, g.linear(y, WIDTH, WIDTH), HEADS, 3)
    k, v = (_heads(g, g.linear(x, WIDTH, WIDTH)) for _ in range(2))
    scores = g("Mul", g("MatMul", q, _turned(g, k)), 0.5)
    y = g.norm(g("Add", g.linear(_attend(g, scores, v, 3), WIDTH, WIDTH), y), WIDTH)
    return g.model(g("LogSoftmax", g.linear(y, WIDTH, 32), axis=-1))


def sentence() -> Model:
    """Return a sentence embedder: embedding, norm, both operands scaled, masked mean, unit length."""
    g = Lines(f"ids: int64[1,{LENGTH}]", f"mask: [1,{LENGTH},1]")
    x = g.norm(g("Add", g("Gather", f"$[32,{WIDTH}]", "ids"), f"$[1,{LENGTH},{WIDTH}]"), WIDTH)
    q, k, v = (_heads(g, _matmul(g, x)) for _ in range(3))
    k = g("Transpose", k, perm=[0, 1, 3, 2])
    scores = g("MatMul", g("Mul", q, 0.7), g("Mul", k, 0.7))
    x = g.norm(g("Add", _matmul(g, _attend(g, scores, v)), x), WIDTH)
    total = g("ReduceSum", g("Mul", x, "mask"), "[1]", keepdims=0)
    count = g("Clip", g("ReduceSum", "mask", "[1]", keepdims=0), 1.0)
    mean = g("Div", total, count)
    return g.model(g("Div", mean, g("Max", g("ReduceL2", mean, "[-1]"), 1e-06)))


def _lstm_step(g: Lines, x: str, h: str, c: str, size: int) -> tuple[str, str]:
    a = g("MatMul", x, f"$[{WIDTH},{4 * size}]")
    s = g("Add", a, g("MatMul", h, f"$[{size},{4 * size}]"))
    biased = g("Add", s, f"$[{4 * size}]")
    i, o, f, n = g.split(biased, 4, 1)
    kept = g("Mul", g("Sigmoid", f), c)
    new = g("Mul", g("Sigmoid", i), g("Tanh", n))
    state = g("Add", kept, new)
    return (g("Mul", g("Sigmoid", o), g("Tanh", state)), state)


def _gru_step(g: Lines, x: str, h: str, size: int) -> str:

    def both() -> str:
        return g("Add", g("MatMul", x, f"$[{WIDTH},{size}]"), g("MatMul", h, f"$[{size},{size}]"))

    z, r = g("Sigmoid", both()), g("Sigmoid", both())
    product = g("Mul", r, g("MatMul", h, f"$[{size},{size}]"))
    n = g("Tanh", g("Add", g("MatMul", x, f"$[{WIDTH},{size}]"), product))
    rest = g("Mul", g("Sub", 1.0, z), n)
    return g("Add", rest, g("Mul", z, h))


def recurrent_text(steps: int = 3, size: int = 8) -> Model:
    """Return an LSTM and a GRU written out step by step over embedded text, and additive attention."""
    names = [f"t{i}" for i in range(steps)]
    g = Lines(*[f"{name}: int64[1]" for name in names], f"h0: [1,{size}]", f"c0: [1,{size}]")
    h, c, u, states = ("h0", "c0", "h0", [])
    for name in names:
        x = g("Gather", f"$[32,{WIDTH}]", name)
        h, c = _lstm_step(g, x, h, c, size)
        u = _gru_step(g, x, u, size)
        states.append(g("Unsqueeze", u, "[1]"))
    memory = g("Concat", ", ".join(states), axis=1)
    asked = g("Tanh", g("Add", memory, g("Unsqueeze", h, "[1]")))
    weights = g("Softmax", g("MatMul", asked, f"$[{size},1]"), axis=1)
    mixed = g("ReduceSum", g("Mul", memory, weights), "[1]", keepdims=0)
    return g.model(g("Sigmoid", g("Gemm", mixed, f"$[{size},3]", "$[3]")))


def state_space() -> Model:
    """Return a step of Mamba and RWKV: mixed tokens, decayed states, a squared feed-forward, softplus."""
    g = Lines("x: [1,16]", "last: [1,16]", "state: [1,16,4]", "enters: [1,16,4]")
    mixed = g("Add", "last", g("Mul", g("Sub", "x", "last"), "$[16]"))
    raw = _matmul(g, mixed)
    step = g("Log", g("Add", g("Exp", raw), 1.0))
    decay = g("Exp", g("Mul", g("Unsqueeze", step, "[2]"), "$[16,4]"))
    state = g("Add", g("Mul", decay, "state"), "enters")
    out = g("ReduceSum", state, "[2]", keepdims=0)
    gated = g("Mul", out, g("Swish", _matmul(g, mixed)))
    hidden = g("Pow", g("Relu", _matmul(g, gated, 16, 32)), 2.0)
    return g.model(g("Add", _matmul(g, hidden, 32), "x"), state)


def wavenet(layers: int = 2) -> Model:
    """Return a net of dilated convolutions over sound with gated units (WaveNet, Conformer's GLU)."""
    g = Lines("x: [1,8,32]")
    x = "x"
    for i in range(layers):
        d = 2**i
        a, b = (g("Conv", x, "$[8,8,3]", "$[8]", pads=f"[{d},{d}]", dilations=f"[{d}]") for _ in range(2))
        x = g("Add", g("Conv", g("Mul", g("Tanh", a), g("Sigmoid", b)), "$[8,8,1]"), x)
    wide = g("Conv", x, "$[16,8,1]", "$[16]")
    left, right = g.split(wide, 2, 1)
    x = g("Mul", left, g("Sigmoid", right))
    return g.model(g("Elu", g("Conv", x, "$[8,8,3]", "$[8]", pads=[1, 1])))


SEQUENCE_NETS: Mapping[str, Callable[[], Model]] = {
    "llama": llama,
    "gemma": gemma,
    "decoding_step": decoding_step,
    "bert_exported": bert_exported,
    "gpt2": gpt2,
    "translator": translator,
    "sentence": sentence,
    "recurrent_text": recurrent_text,
    "state_space": state_space,
    "wavenet": wavenet,
}
