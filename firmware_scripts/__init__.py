"""What runs on the device: shell and Python 3.6 standard library only."""
