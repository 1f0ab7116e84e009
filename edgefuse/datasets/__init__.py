"""Data sets: calibration and evaluation samples, read as they are needed. Host side, Python >= 3.10."""

from edgefuse.datasets.generate import random_dataset
from edgefuse.datasets.images import read_image
from edgefuse.datasets.opening import open_dataset
from edgefuse.datasets.sample import Array, Boxes, Dataset, Sample, Source, dataset_from_samples

__all__ = [
    "Array",
    "Boxes",
    "Dataset",
    "Sample",
    "Source",
    "dataset_from_samples",
    "open_dataset",
    "random_dataset",
    "read_image",
]
