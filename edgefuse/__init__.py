"""edgefuse: an ONNX model in, a verified artifact for one named device out, loaded by a robot in one line.

    import edgefuse
    with edgefuse.load("model.efa") as model:
        outputs = model(frame)

Importing this package imports nothing else: each function loads its own room when it is called. It runs
under Python 3.6, where only `load` and what it needs is used (the build side needs Python 3.10 and the
[build] extra).
"""

__version__ = "0.1.0"

__all__ = ["__version__", "load"]


def load(path, simulate=False, **options):
    """Return the artifact at `path` as a `Model`, ready to be called.

    path: a `.efa` file.  simulate: run in the exact reference of the target's arithmetic, for a device that
    is not here.  options: `threads` (int >= 1) and `family` (which payload family to prefer).
    Raises ArtifactError (altered, cut short, too new), DeviceError (made for other hardware),
    ToolMissingError (the runtime that the payload needs is not installed).
    """
    from edgefuse.runtime import load as load_artifact

    return load_artifact(path, simulate=simulate, **options)
