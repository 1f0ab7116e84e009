"""Package list only; everything else is in pyproject.toml.

The rooms `targets/`, `quant/` and `firmware_scripts/` are found by listing folders, so that a new family
touches its own folder and nothing else.
"""

from setuptools import find_packages, setup

ROOMS = ("targets", "quant", "firmware_scripts")

packages = find_packages(include=["edgefuse", "edgefuse.*"])
for room in ROOMS:
    packages += ["edgefuse." + name for name in find_packages(include=[room, room + ".*"])]

setup(packages=packages)
